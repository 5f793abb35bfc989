# SPDX-License-Identifier: Apache-2.0
"""What one look at a GPU tells, whatever cannot be read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.health.conditions import Reading, failed_reading, read_gpu
from dra_driver.gpu.nvml import (
    Fabric,
    FabricState,
    Nvml,
    NvmlError,
    Placement,
    RecoveryAction,
    RemappedRows,
    Return,
)
from dra_driver.gpu.simulated.description import parse_description
from dra_driver.gpu.simulated.faults import Fault
from tests.gpu.calls import make_instance, refusal
from tests.support.hardware import ControlledNode
from tests.support.nodes import TestNode, make_node

Change = Callable[[ControlledNode], object]

FINE = Reading(
    recovery_action=RecoveryAction.NONE,
    remapped_rows=RemappedRows(0, 0, pending=False, failed=False),
    links_up=18,
    fabric=Fabric(FabricState.NOT_SUPPORTED),
)
"""What an H100 without a fabric tells: since Ampere, GPUs retire no pages."""


@pytest.fixture
def node(tmp_path: Path) -> TestNode:
    """Eight H100."""
    return make_node(tmp_path, "h100x8")


def read(nvml: Nvml, index: int, *, instances: bool = False) -> Reading:
    """A look at a GPU, also at one that cannot be looked at."""
    try:
        return read_gpu(nvml, nvml.device_by_index(index), instances=instances)
    except NvmlError as error:
        return failed_reading(error)


def fails(call: str, code: Return) -> Change:
    """A call to GPU 3 that fails."""
    return lambda hardware: hardware.inject(Fault(call, gpu=3, code=code))


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda hardware: None, FINE),
        (lambda hardware: hardware.lose_gpu(3), Reading(lost=True)),
        (lambda hardware: hardware.unplug(3), Reading(lost=True)),
        (lambda hardware: hardware.lose_gpu(4), FINE),
        (lambda hardware: hardware.set_nvlinks(3, False), replace(FINE, links_up=0)),
        (fails("nvmlDeviceGetHandleByIndex", Return.NOT_FOUND), Reading(lost=True)),
        (fails("nvmlDeviceGetNvLinkState", Return.GPU_IS_LOST), Reading(lost=True)),
        (fails("nvmlDeviceGetFieldValues", Return.NOT_SUPPORTED), replace(FINE, recovery_action=None)),
        (fails("nvmlDeviceGetRemappedRows", Return.UNKNOWN), replace(FINE, remapped_rows=None)),
        (fails("nvmlDeviceGetNvLinkState", Return.NOT_SUPPORTED), replace(FINE, links_up=None)),
        (fails("nvmlDeviceGetNvLinkState", Return.UNKNOWN), replace(FINE, links_up=None)),
        (fails("nvmlDeviceGetMigMode", Return.NOT_SUPPORTED), FINE),
        (
            fails("nvmlDeviceGetHandleByIndex", Return.UNKNOWN),
            Reading(problem="nvmlDeviceGetHandleByIndex: UNKNOWN (injected fault)"),
        ),
        (
            fails("nvmlDeviceGetRemappedRows", Return.RESET_REQUIRED),
            Reading(
                recovery_action=RecoveryAction.GPU_RESET,
                problem="nvmlDeviceGetRemappedRows: RESET_REQUIRED (injected fault)",
            ),
        ),
    ],
)
def test_a_look_tells_what_it_can(node: TestNode, change: Change, seen: Reading) -> None:
    change(node.node)
    assert read(node.nvml, 3) == seen


T4_NODE = """
driverVersion: 570.158.01
cudaVersion: "12.8"
gpus: [{model: T4-PCIE-16GB, count: 4}]
"""


def test_an_older_gpu_tells_of_pages_and_of_no_rows_or_links(tmp_path: Path) -> None:
    hardware = ControlledNode.create(tmp_path, parse_description(T4_NODE, ""), "node-a")
    nvml = hardware.nvml()
    nvml.initialize()
    hardware.set_retired_pages_pending(3, True)
    seen = read(nvml, 3)
    assert (seen.retired_pages_pending, seen.remapped_rows, seen.links_up) == (True, None, None)


def test_an_absent_driver_is_not_a_fault_of_the_gpu(node: TestNode) -> None:
    node.node.unload_driver()
    assert refusal(read, node.nvml, 3) is Return.DRIVER_NOT_LOADED


def test_a_split_gpu_tells_where_its_instances_are_and_nothing_of_links(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8-mig")
    make_instance(node.nvml, node.nvml.device_by_index(3), 2, 4)
    assert read(node.nvml, 3).instances is None
    seen = read(node.nvml, 3, instances=True)
    assert (seen.split, seen.links_up, seen.fabric) == (True, None, None)
    assert seen.instances == frozenset({Placement(4, 4)})
    node.node.inject(Fault("nvmlDeviceGetGpuInstances", code=Return.UNKNOWN))
    assert read(node.nvml, 3, instances=True).instances is None


def test_a_gpu_that_is_not_split_has_no_instances(node: TestNode) -> None:
    assert read(node.nvml, 3, instances=True).instances == frozenset()
