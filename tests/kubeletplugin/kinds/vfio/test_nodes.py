# SPDX-License-Identifier: Apache-2.0
"""A claim whose container cannot get its device nodes disturbs no other claim."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.passthrough import VfioMarks
from kubeletplugin.claims.pauses import LONGEST_PAUSE, Pauses
from kubeletplugin.errors import PrepareError
from tests.kubeletplugin.inside import QUICK, ApiServer, CallThread, Plugin
from tests.support.clock import Clock
from tests.support.kernel import LOAD, NVIDIA, VFIO, Kernel
from tests.support.waiting import wait_for

from .conftest import HARDWARE

pytestmark = pytest.mark.node

WITH_INTERFACE = {"iommu": {"enableAPIDevice": True}}
IOMMUFD = {"iommu": {"backendPolicy": "PreferIommuFD"}}
SECONDS = 2.0


@pytest.fixture
def plugin(tmp_path: Path, kernel: Kernel, api: ApiServer) -> Iterator[Plugin]:
    """A plugin that does not wait for long for nodes."""
    plugin = Plugin(tmp_path, api, hardware=HARDWARE, times=replace(QUICK, node=SECONDS))
    yield plugin
    plugin.stop()


def binds(kernel: Kernel) -> list[str]:
    """The writes by which GPUs left a driver or went to one, so far."""
    return [one for one in kernel.writes if one.partition(" ")[0].endswith(("bind", "driver_override"))]


def test_a_gpu_is_not_taken_without_the_node_of_the_interface(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    generation = plugin.place.session.generation
    with pytest.raises(PrepareError, match=r"dev/vfio/vfio is missing: udev has not made it, or its kernel module"):
        plugin.engine.prepare(api.add(["gpu-vfio-0"], machine=WITH_INTERFACE))
    assert binds(kernel) == []
    assert VfioMarks(plugin.root / "vfio").all() == ()
    assert plugin.place.session.generation == generation, "NVML was usable all the time"


def test_the_node_of_the_interface_may_come_with_its_module(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    def load(_number: int, path: str, _text: str) -> None:
        if path == LOAD:
            (kernel.dev / "vfio/vfio").touch()

    kernel.strike = load
    claim = api.add(["gpu-vfio-0"], machine=WITH_INTERFACE)
    plugin.engine.prepare(claim)
    assert plugin.nodes_of(claim)["gpu-vfio-0"] == [f"/dev/vfio/{kernel.group(kernel.gpus[0])}", "/dev/vfio/vfio"]


def test_nodes_of_iommufd_that_udev_makes_late_are_awaited(tmp_path: Path, kernel: Kernel, api: ApiServer) -> None:
    plugin = Plugin(tmp_path, api, hardware=HARDWARE, times=replace(QUICK, node=60.0))
    (kernel.dev / "iommu").touch()
    kernel.makes_function_nodes = True
    claim = api.add(["gpu-vfio-1"], machine=IOMMUFD)
    plugin.engine.prepare(claim)
    assert plugin.nodes_of(claim)["gpu-vfio-1"] == [
        f"/dev/vfio/{kernel.group(kernel.gpus[1])}",
        "/dev/vfio/devices/vfio0",
    ]


def test_other_claims_are_prepared_while_a_claim_waits_for_nodes(
    tmp_path: Path, kernel: Kernel, api: ApiServer
) -> None:
    plugin = Plugin(tmp_path, api, hardware=HARDWARE, times=replace(QUICK, node=60.0))
    (kernel.dev / "iommu").touch()
    waiting = CallThread(lambda: plugin.engine.prepare(api.add(["gpu-vfio-1"], machine=IOMMUFD)))
    group = kernel.dev / f"vfio/{kernel.group(kernel.gpus[1])}"
    wait_for(group.exists, "the node of the group")
    wait_for(plugin.has_driver, "NVML")
    plugin.engine.prepare(api.add(["gpu-0"]))
    assert not waiting.over
    kernel.make_function_nodes(kernel.gpus[1])
    waiting.result()
    plugin.stop()


def test_a_gpu_that_was_given_back_is_not_taken_again_at_once(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    (kernel.dev / "iommu").touch()
    claim, before = api.add(["gpu-vfio-1"], machine=IOMMUFD), kernel.picture()
    missing = r"dev/vfio/devices/vfio\d+ is missing: udev has not made it"
    with pytest.raises(PrepareError, match=missing):
        plugin.engine.prepare(claim)
    assert kernel.picture() == before
    assert VFIO in str(binds(kernel))
    count = len(binds(kernel))
    wait_for(plugin.has_driver, "NVML with the GPU")
    generation = plugin.place.session.generation
    with pytest.raises(PrepareError, match=rf"{missing}.*; the GPU was given back, and is taken for this claim again"):
        plugin.engine.prepare(claim)
    assert len(binds(kernel)) == count
    assert plugin.place.session.generation == generation
    other = api.add(["gpu-vfio-1"])
    plugin.engine.prepare(other)  # a pause is that of a claim, and not of its GPU
    plugin.engine.unprepare(other)


def test_a_claim_that_was_unprepared_has_no_pause(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    (kernel.dev / "iommu").touch()
    claim = api.add(["gpu-vfio-1"], machine=IOMMUFD)
    with pytest.raises(PrepareError, match="is missing"):
        plugin.engine.prepare(claim)
    plugin.engine.unprepare(claim)
    kernel.makes_function_nodes = True
    plugin.engine.prepare(claim)
    assert kernel.driver(kernel.gpus[1]) == VFIO


def test_a_gpu_that_cannot_be_taken_has_no_pause(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    """Nothing was bound, so nothing was undone."""
    claim = api.add(["gpu-vfio-0"], machine=WITH_INTERFACE)
    with pytest.raises(PrepareError, match="is missing"):
        plugin.engine.prepare(claim)
    assert kernel.driver(kernel.gpus[0]) == NVIDIA
    (kernel.dev / "vfio/vfio").touch()
    plugin.engine.prepare(claim)


def must_wait(pauses: Pauses) -> bool:
    """Whether the claim must not be tried yet."""
    try:
        pauses.check("claim")
    except PrepareError:
        return True
    return False


def tried(pauses: Pauses, clock: Clock) -> float:
    """An attempt fails. Returns the seconds until the next one may begin."""
    pauses.begin("claim", PrepareError("no node"))
    began = clock.now
    while must_wait(pauses):
        clock.now += 0.5
    return clock.now - began


def test_pauses_of_a_claim_grow_to_minutes() -> None:
    clock = Clock()
    pauses = Pauses(15.0, clock)
    lengths = [tried(pauses, clock) for _ in range(9)]
    assert lengths[0] <= 16
    assert all(later > 0.9 * earlier for earlier, later in itertools.pairwise(lengths[:5]))
    assert all(LONGEST_PAUSE / 2 <= one <= LONGEST_PAUSE + 1 for one in lengths[5:])
    pauses.end("claim")
    assert tried(pauses, clock) <= 16


def test_a_claim_that_nobody_tries_any_more_is_forgotten() -> None:
    clock = Clock()
    pauses = Pauses(15.0, clock)
    for _ in range(6):
        tried(pauses, clock)
    clock.now += 2 * LONGEST_PAUSE
    pauses.begin("another", PrepareError("no node"))
    assert tried(pauses, clock) <= 16
