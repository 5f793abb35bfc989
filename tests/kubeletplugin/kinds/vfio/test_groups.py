# SPDX-License-Identifier: Apache-2.0
"""A claim for GPUs that share an IOMMU group gets all of them, or none is changed."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.policy import GpuRule, NodePolicy, PassthroughMode
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.errors import PrepareError, StoppedError, StuckError
from tests.kubeletplugin.inside import ApiServer, Plugin
from tests.support.kernel import NVIDIA, VFIO, Kernel
from tests.support.waiting import wait_for

from .conftest import HARDWARE, TIMES

pytestmark = pytest.mark.node

GROUP, OTHERS = (0, 1, 2), (3, 4)
"""The GPUs of two groups, by index."""
ONLY = NodePolicy((GpuRule(passthrough=PassthroughMode.ONLY),))
DEVICE = "gpu-vfio-0"


@pytest.fixture
def plugin(tmp_path: Path, kernel: Kernel, api: ApiServer) -> Iterator[Plugin]:
    """A plugin that runs on a node with two groups."""
    for first, *rest in (GROUP, OTHERS):
        for one in rest:
            kernel.join(kernel.gpus[one], kernel.group(kernel.gpus[first]))
    plugin = Plugin(tmp_path, api, hardware=HARDWARE, times=TIMES, policy=ONLY)
    yield plugin
    plugin.stop()


def on_vfio(kernel: Kernel) -> list[int]:
    """The GPUs that are bound to a vfio driver."""
    return [index for index, address in enumerate(kernel.gpus) if kernel.driver(address) == VFIO]


def marked(plugin: Plugin, kernel: Kernel) -> list[int]:
    """The GPUs with a mark."""
    return [kernel.gpus.index(mark.address) for mark in VfioMarks(plugin.root / "vfio").all()]


def unprepared(plugin: Plugin, claim: ClaimRef) -> bool:
    """Whether kubelet's call succeeds."""
    try:
        plugin.engine.unprepare(claim)
    except (PrepareError, StoppedError):
        return False
    return True


def test_a_claim_gets_all_gpus_of_its_groups_and_brings_them_back(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    before, claim = kernel.picture(), api.add([DEVICE, "gpu-vfio-3"])
    on = plugin.gpus()[1].uuid
    kernel.node.nvidia_smi.set_persistence(on, True)
    plan = plugin.engine.prepare(claim).plan
    assert on_vfio(kernel) == marked(plugin, kernel) == [*GROUP, *OTHERS]
    assert {one.name for one in plan.devices} == {f"gpu-vfio-{index}" for index in (*GROUP, *OTHERS)}
    assert [one.name for one in plan.given()] == [DEVICE, "gpu-vfio-3"], "kubelet knows the allocated devices"
    assert plugin.record(claim).plan == plan
    wait_for(lambda: plugin.has_driver() and not plugin.gpus(), "NVML without the GPUs")
    assert plugin.engine.prepare(claim).plan == plan
    for device, first in ((DEVICE, GROUP[0]), ("gpu-vfio-3", OTHERS[0])):
        assert plugin.nodes_of(claim)[device] == [f"/dev/vfio/{kernel.group(kernel.gpus[first])}"]
    plugin.engine.unprepare(claim)
    assert (kernel.picture(), marked(plugin, kernel)) == (before, [])
    wait_for(lambda: plugin.has_driver() and len(plugin.gpus()) == 5, "NVML with the GPUs")
    assert kernel.node.nvidia_smi.persistence(on)


@pytest.mark.parametrize("index", [GROUP[0], GROUP[-1]])
def test_nothing_is_bound_if_any_of_the_gpus_is_in_use(
    kernel: Kernel, plugin: Plugin, api: ApiServer, index: int
) -> None:
    before, claim = kernel.picture(), api.add([DEVICE])
    node = kernel.dev / f"nvidia{index}"
    node.unlink()
    node.touch()  # a node of a device that does not exist cannot be opened
    with (
        node.open("rb"),
        pytest.raises(PrepareError, match=rf"GPU {kernel.gpus[index]} .*is in use by .*\(PID {os.getpid()}\)"),
    ):
        plugin.engine.prepare(claim)
    assert (kernel.picture(), marked(plugin, kernel)) == (before, [])
    assert not [one for one in kernel.writes if "bind" in one], "no GPU was bound even for a moment"


def test_a_machine_that_uses_one_gpu_keeps_the_group(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    before, claim = kernel.picture(), api.add([DEVICE])
    plugin.engine.prepare(claim)
    cdevs = (kernel.sys / "bus/pci/devices" / kernel.gpus[0] / "vfio-dev").iterdir()
    node = kernel.dev / "vfio/devices" / next(cdevs).name
    node.parent.mkdir(exist_ok=True)
    node.touch()
    with node.open("rb"), pytest.raises(PrepareError, match="the virtual machine still runs"):
        plugin.engine.unprepare(claim)
    assert on_vfio(kernel) == list(GROUP)
    plugin.engine.unprepare(claim)
    assert kernel.picture() == before


def test_a_driver_that_refuses_one_gpu_leaves_everything_as_it_was(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    """One GPU of the group is bound before it, and one is to follow."""
    before, refused = kernel.picture(), kernel.gpus[GROUP[1]]

    def refuse(_number: int, path: str, text: str) -> None:
        if path == f"bus/pci/drivers/{VFIO}/bind" and text == refused:
            raise OSError(errno.EINVAL, "")

    kernel.strike = refuse
    with pytest.raises(PrepareError, match=f"refuses to write '{refused}'"):
        plugin.engine.prepare(api.add([DEVICE]))
    assert (kernel.picture(), marked(plugin, kernel)) == (before, [])


def test_an_unbind_that_does_not_return_keeps_all_of_them_until_it_does(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    before, claim = kernel.picture(), api.add([DEVICE])
    kernel.hold(kernel.gpus[1])
    with pytest.raises(StuckError):
        plugin.engine.prepare(claim)
    assert (
        "does not finish" in {one.address: one.stuck for one in VfioMarks(plugin.root / "vfio").all()}[kernel.gpus[1]]
    )
    kernel.release(kernel.gpus[1])
    wait_for(lambda: unprepared(plugin, claim), "the GPUs")
    assert (kernel.picture(), marked(plugin, kernel)) == (before, [])


@pytest.mark.parametrize(("indexes", "driver"), [(GROUP, VFIO), (GROUP[1:], VFIO), (GROUP, None)])
def test_gpus_that_an_administrator_bound_are_left_as_they_were(
    kernel: Kernel, plugin: Plugin, api: ApiServer, indexes: tuple[int, ...], driver: str | None
) -> None:
    for index in indexes:
        kernel.force(kernel.gpus[index], driver)
    wait_for(lambda: plugin.has_driver() and len(plugin.gpus()) == 5 - len(indexes), "NVML without the GPUs")
    wait_for(lambda: driver is None or (kernel.dev / f"vfio/{kernel.group(kernel.gpus[0])}").exists(), "the node")
    before, claim = kernel.picture(), api.add([DEVICE])
    plugin.engine.prepare(claim)
    assert on_vfio(kernel) == list(GROUP)
    if driver is not None:
        assert not set(marked(plugin, kernel)) & (set(indexes) - {0})
    plugin.engine.unprepare(claim)
    assert (kernel.picture(), marked(plugin, kernel)) == (before, [])


def test_a_container_and_a_machine_never_have_a_part_each(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    container, machine = api.add(["gpu-2"]), api.add([DEVICE])
    plugin.engine.prepare(container)
    with pytest.raises(PrepareError, match="in use by claim"):
        plugin.engine.prepare(machine)
    assert (on_vfio(kernel), marked(plugin, kernel)) == ([], [])
    plugin.engine.unprepare(container)
    plugin.engine.prepare(machine)
    with pytest.raises(PrepareError, match=r"in use by claim|kubelet tries again"):
        plugin.engine.prepare(api.add(["gpu-vfio-1"]))
    assert on_vfio(kernel) == list(GROUP)


def test_a_gpu_that_the_policy_keeps_is_not_taken(
    tmp_path: Path, kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    plugin.stop()
    policy = NodePolicy((GpuRule(passthrough=True), GpuRule(indexes=(0, 1), passthrough=PassthroughMode.ONLY)))
    later = Plugin(tmp_path, api, hardware=HARDWARE, policy=policy)
    with pytest.raises(PrepareError, match=f"GPU {kernel.gpus[2]}.* cannot be given to a virtual machine"):
        later.engine.prepare(api.add([DEVICE]))
    assert {kernel.driver(address) for address in kernel.gpus} == {NVIDIA}
    later.stop()


def test_the_next_plugin_brings_a_group_back(tmp_path: Path, kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    before, claim = kernel.picture(), api.add([DEVICE])
    record = plugin.engine.prepare(claim)
    plugin.stop()
    later = Plugin(tmp_path, api, hardware=HARDWARE, policy=ONLY)
    assert on_vfio(kernel) == list(GROUP)
    assert later.engine.prepare(claim) == record
    later.engine.unprepare(claim)
    assert kernel.picture() == before
    later.stop()
