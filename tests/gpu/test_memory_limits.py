# SPDX-License-Identifier: Apache-2.0
"""Limits of the memory of cgroups: the strictness of the simulated NVML, and which GPUs have limits."""

from pathlib import Path

import pytest

from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.memory_limits import NO_LIMIT, MemoryLimits
from dra_driver.gpu.nvml import Nvml, NvmlError, Return
from dra_driver.gpu.simulated.faults import Fault
from tests.support.hardware import ControlledNode
from tests.support.limits import DRIVER, Tree
from tests.support.nodes import make_node

MIB = 1 << 20
GET = "nvmlDeviceGetMemoryLimits_v1"


@pytest.fixture
def node(tmp_path: Path) -> ControlledNode:
    made = make_node(tmp_path / "node", "l40sx4").node
    made.load_driver(DRIVER)
    return made


def initialized(node: ControlledNode) -> Nvml:
    nvml = node.nvml()
    nvml.initialize()
    return nvml


def cgroups(node: ControlledNode, *, dmem: bool) -> Tree:
    return Tree(node.driver_root / "sys/fs/cgroup", dmem=dmem)


@pytest.mark.parametrize("dmem", [True, False])
def test_limits_are_per_gpu_and_end_with_their_cgroup_or_the_driver(node: ControlledNode, dmem: bool) -> None:
    tree = cgroups(node, dmem=dmem)
    path = f"{tree.root}{tree.pod()}"
    nvml = initialized(node)
    first, second = nvml.device_by_index(0), nvml.device_by_index(1)
    assert nvml.memory_limits(first, path) == MemoryLimits(NO_LIMIT, 0)
    nvml.set_memory_limits(first, path, MemoryLimits(hard=5 * MIB, soft=MIB))
    assert nvml.memory_limits(first, path) == MemoryLimits(5 * MIB, MIB)
    assert nvml.memory_limits(second, path) == MemoryLimits()
    tree.remove(tree.pod())
    other = f"{tree.root}{tree.pod(1)}"
    nvml.set_memory_limits(first, other, MemoryLimits(hard=5 * MIB))
    assert nvml.memory_limits(first, f"{tree.root}{tree.pod()}") == MemoryLimits()
    nvml.set_memory_limits(first, other, MemoryLimits())
    assert nvml.memory_limits(first, other) == MemoryLimits()
    nvml.set_memory_limits(first, other, MemoryLimits(hard=5 * MIB))
    node.load_driver()
    nvml = initialized(node)
    assert nvml.memory_limits(nvml.device_by_index(0), other) == MemoryLimits()


def test_limits_that_hardware_refuses_are_refused(node: ControlledNode, tmp_path: Path) -> None:
    tree = cgroups(node, dmem=True)
    path = f"{tree.root}{tree.pod()}"
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    nvml = initialized(node)
    gpu = nvml.device_by_index(0)
    for cgroup, limits, code in [
        (path, MemoryLimits(hard=MIB, soft=2 * MIB), Return.INVALID_ARGUMENT),
        ("kubepods", MemoryLimits(hard=MIB), Return.INVALID_ARGUMENT),
        (str(tmp_path / "none"), MemoryLimits(hard=MIB), Return.INVALID_ARGUMENT),
        (str(tmp_path / "file"), MemoryLimits(hard=MIB), Return.INVALID_ARGUMENT),
        (str(tmp_path / "folder"), MemoryLimits(hard=MIB), Return.NOT_SUPPORTED),
    ]:
        with pytest.raises(NvmlError) as refused:
            nvml.set_memory_limits(gpu, cgroup, limits)
        assert refused.value.code is code, cgroup
    Path(path, "dmem.max").unlink()
    with pytest.raises(NvmlError) as refused:
        nvml.set_memory_limits(gpu, path, MemoryLimits(hard=MIB))
    assert refused.value.code is Return.NOT_FOUND
    assert nvml.memory_limits(gpu, path) == MemoryLimits()


def test_a_mig_device_is_refused(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node", "h100x8-mig").node
    node.load_driver(DRIVER)
    tree = cgroups(node, dmem=True)
    nvml = initialized(node)
    gpu = nvml.device_by_index(0)
    nvml.set_mig_mode(gpu, True)
    instance = nvml.create_gpu_instance(gpu, 19, nvml.gpu_instance_placements(gpu, 19)[0])
    nvml.create_compute_instance(instance, 0)
    (mig,) = nvml.mig_devices(gpu)
    for call in (
        lambda: nvml.memory_limits(mig, f"{tree.root}{tree.pod()}"),
        lambda: nvml.set_memory_limits(mig, f"{tree.root}{tree.pod()}", MemoryLimits(hard=MIB)),
    ):
        with pytest.raises(NvmlError) as refused:
            call()
        assert refused.value.code is Return.INVALID_ARGUMENT


def test_an_older_driver_has_no_limits(tmp_path: Path) -> None:
    made = make_node(tmp_path / "node", "l40sx4")
    gpu = made.nvml.device_by_index(0)
    with pytest.raises(NvmlError) as refused:
        made.nvml.memory_limits(gpu, "/")
    assert refused.value.code is Return.FUNCTION_NOT_FOUND
    with pytest.raises(NvmlError) as refused:
        made.nvml.set_memory_limits(gpu, "/", MemoryLimits(hard=MIB))
    assert refused.value.code is Return.FUNCTION_NOT_FOUND
    assert [gpu.memory_limits for gpu in made.inventory().gpus] == [False] * 4


@pytest.mark.parametrize(
    ("code", "limits", "problems"),
    [
        (None, True, ()),
        (Return.NOT_FOUND, True, ()),
        (Return.INVALID_ARGUMENT, True, ()),
        (Return.NOT_SUPPORTED, False, ()),
        (Return.FUNCTION_NOT_FOUND, False, ()),
        (Return.NO_PERMISSION, False, (f"{GET}: NO_PERMISSION (injected fault), for limits of memory",)),
    ],
)
def test_a_gpu_tells_whether_it_has_limits(
    tmp_path: Path, code: Return | None, limits: bool, problems: tuple[str, ...]
) -> None:
    made = make_node(tmp_path / "node", "l40sx4")
    made.node.load_driver(DRIVER)
    if code is not None:
        made.node.inject(Fault(GET, gpu=1, code=code))
    gpus = read_inventory(initialized(made.node), made.sys_root).gpus
    assert [gpu.memory_limits for gpu in gpus] == [True, limits, True, True]
    assert [gpu.problems for gpu in gpus] == [(), problems, (), ()]
