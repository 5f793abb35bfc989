# SPDX-License-Identifier: Apache-2.0
"""GPUs, MIG and device nodes, on simulated nodes in every state."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.inventory import Failure, Inventory
from dra_driver.gpu.nvml import MigMode, Return
from kubeletplugin.check.driver import gpu_findings, inventory_findings, node_findings, read_gpus
from kubeletplugin.finding import CheckResult, Level
from kubeletplugin.kinds.mig.check import mig_findings, mig_mode_findings
from tests.support.hardware import ControlledNode
from tests.support.nodes import driver_root_of, make_node

from .support import facts_of, hardware_of, levels, of_level


def findings_of(node: ControlledNode) -> list[CheckResult]:
    hardware = hardware_of(node)
    of_gpus = gpu_findings(read_gpus(hardware), driver_root_of(node.driver_root))
    return [*of_gpus, *mig_findings(facts_of(node.driver_root.parent, hardware))]


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    """Of a node in good order; GPUs 4 to 7 are in MIG mode."""
    return hardware_of(make_node(tmp_path, "h100x8-mixed").node).inventory()


def named(findings: Iterable[CheckResult], check: str) -> list[CheckResult]:
    return [one for one in findings if one.check == check]


def test_a_node_in_good_order_passes(inventory: Inventory) -> None:
    findings = [
        *inventory_findings(inventory),
        *node_findings((), ()),
        *mig_mode_findings(inventory.gpus, offered=True),
    ]
    assert levels(findings) == [
        (check, "pass") for check in ("nvml", "gpus", "device nodes", "mig", "mig capabilities")
    ]
    assert findings[0].text == "driver 570.158.01, CUDA 12.8"
    assert findings[1].text == "8 x NVIDIA H100 80GB HBM3"
    assert findings[3].text == "8 of 8 GPUs support MIG, 4 in MIG mode"


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (Return.DRIVER_NOT_LOADED, "modprobe nvidia"),
        (Return.LIBRARY_NOT_FOUND, "nvidiaDriverRoot"),
        (Return.LIB_RM_VERSION_MISMATCH, "restart the node"),
        (Return.NO_PERMISSION, "privileged"),
        (Return.UNKNOWN, "nvidia-smi"),
    ],
)
def test_nvml_that_does_not_answer_is_the_only_finding(tmp_path: Path, code: Return, remedy: str) -> None:
    node = make_node(tmp_path, "h100x8").node
    node.unload_driver(code)
    (found,) = findings_of(node)
    assert found.level is Level.FAIL
    assert code.name in found.text
    assert remedy in found.remedy


def test_a_gpu_that_is_left_out_is_a_warning_and_the_others_are_counted(inventory: Inventory) -> None:
    failures = (Failure(0, "nvmlDeviceGetUUID: GPU_IS_LOST"),)
    fewer = replace(inventory, gpus=inventory.gpus[1:], failures=failures)
    first, second = named(inventory_findings(fewer), "gpus")
    assert (first.level, first.text) == (Level.WARN, "GPU 0 is left out: nvmlDeviceGetUUID: GPU_IS_LOST")
    assert second.text.startswith("7 x ")


def test_a_fact_that_a_gpu_does_not_tell_is_a_warning(inventory: Inventory) -> None:
    gpu = replace(inventory.gpus[0], problems=("numa_node is not known",))
    first, _ = named(inventory_findings(replace(inventory, gpus=(gpu,))), "gpus")
    assert first.level is Level.WARN
    assert f"GPU 0 ({gpu.uuid}): numa_node is not known" in first.text


def test_a_node_without_gpus_is_a_warning(inventory: Inventory) -> None:
    findings = inventory_findings(replace(inventory, gpus=()))
    assert of_level(findings, Level.WARN) == ["gpus"]


def test_a_mig_mode_that_waits_for_a_reset_is_a_warning(inventory: Inventory) -> None:
    gpu = replace(inventory.gpus[0], mig_mode=MigMode(current=False, pending=True))
    first, second = named(mig_mode_findings([gpu], offered=True), "mig")
    assert "waits for a reset that switches MIG mode on; it is still off" in first.text
    assert "--gpu-reset" in first.remedy
    assert second.text == "1 of 1 GPUs support MIG, 0 in MIG mode"


def test_gpus_that_cannot_be_split_are_no_complaint(inventory: Inventory) -> None:
    gpu = replace(inventory.gpus[0], mig_mode=None)
    assert [one.text for one in mig_mode_findings([gpu], offered=False)] == ["no GPU supports MIG"]


@pytest.mark.parametrize(("in_mig_mode", "level"), [(True, "fail"), (False, "warn")])
def test_missing_mig_capabilities_fail_where_mig_is_in_use(inventory: Inventory, in_mig_mode: bool, level: str) -> None:
    gpu = replace(inventory.gpus[0], mig_mode=MigMode(in_mig_mode, in_mig_mode))
    found = named(mig_mode_findings([gpu], offered=False), "mig capabilities")
    assert [str(one.level) for one in found] == [level]


@pytest.mark.parametrize(
    ("path", "level", "says"),
    [
        ("/dev/nvidiactl", "fail", "no program can use a GPU"),
        ("/dev/nvidia3", "fail", "cannot be given to a pod"),
        ("/dev/nvidia-uvm", "warn", "CUDA programs cannot start"),
    ],
)
def test_a_device_node_that_nobody_can_make_is_named(path: str, level: str, says: str) -> None:
    (found,) = node_findings([path], ())
    assert str(found.level) == level
    assert path in found.text
    assert says in found.text


def test_device_nodes_are_missing_only_when_their_driver_is_not_registered_either(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8").node
    (node.driver_root / "dev/nvidia3").unlink()
    assert not any(" is missing: " in one.text for one in findings_of(node))
    (node.driver_root / "proc/devices").write_text("Character devices:\n  1 mem\n", encoding="ascii")
    assert [one.text for one in findings_of(node) if " is missing: " in one.text] == [
        "/dev/nvidia3 is missing: the GPU cannot be given to a pod"
    ]
    assert any("the driver offers no MIG capabilities" in one.text for one in findings_of(node))


def test_a_file_in_the_place_of_a_device_node_is_a_warning(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8").node
    control = node.driver_root / "dev/nvidiactl"
    control.unlink()
    control.touch()
    warnings = [one for one in named(findings_of(node), "device nodes") if one.level is Level.WARN]
    assert any("nvidiactl is not a character device" in one.text for one in warnings)
