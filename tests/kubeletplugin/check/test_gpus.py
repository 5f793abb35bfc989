# SPDX-License-Identifier: Apache-2.0
"""GPUs, MIG and device nodes, on simulated nodes in every state."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.inventory import Failure
from dra_driver.gpu.nvml import MigMode, NvmlError, Return
from dra_driver.gpu.options import Hardware
from kubeletplugin.check.driver import GpuFacts, gpu_findings, read_gpus
from kubeletplugin.check.finding import CheckResult, Level
from tests.support.hardware import ControlledNode
from tests.support.nodes import driver_root_of, make_node

from .support import levels, of_level


def hardware_of(node: ControlledNode) -> Hardware:
    root = node.driver_root
    return Hardware(node.nvml, root, root, root, root / "proc", root / "sys", root)


def read(node: ControlledNode) -> GpuFacts:
    return read_gpus(hardware_of(node), driver_root_of(node.driver_root))


@pytest.fixture
def facts(tmp_path: Path) -> GpuFacts:
    """Of a node in good order; GPUs 4 to 7 are in MIG mode."""
    return replace(read(make_node(tmp_path, "h100x8-mixed").node), odd=())


def named(facts: GpuFacts, check: str) -> list[CheckResult]:
    return [one for one in gpu_findings(facts) if one.check == check]


def test_a_node_in_good_order_passes(facts: GpuFacts) -> None:
    findings = list(gpu_findings(facts))
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
    (found,) = gpu_findings(read(node))
    assert found.level is Level.FAIL
    assert code.name in found.text
    assert remedy in found.remedy


def test_a_gpu_that_is_left_out_is_a_warning_and_the_others_are_counted(facts: GpuFacts) -> None:
    assert facts.inventory
    inventory = replace(
        facts.inventory, gpus=facts.inventory.gpus[1:], failures=(Failure(0, "nvmlDeviceGetUUID: GPU_IS_LOST"),)
    )
    first, second = named(replace(facts, inventory=inventory), "gpus")
    assert (first.level, first.text) == (Level.WARN, "GPU 0 is left out: nvmlDeviceGetUUID: GPU_IS_LOST")
    assert second.text.startswith("7 x ")


def test_a_fact_that_a_gpu_does_not_tell_is_a_warning(facts: GpuFacts) -> None:
    assert facts.inventory
    gpu = replace(facts.inventory.gpus[0], problems=("numa_node is not known",))
    first, _ = named(replace(facts, inventory=replace(facts.inventory, gpus=(gpu,))), "gpus")
    assert first.level is Level.WARN
    assert f"GPU 0 ({gpu.uuid}): numa_node is not known" in first.text


def test_a_node_without_gpus_is_a_warning(facts: GpuFacts) -> None:
    assert facts.inventory
    findings = list(gpu_findings(replace(facts, inventory=replace(facts.inventory, gpus=()))))
    assert of_level(findings, Level.WARN) == ["gpus"]


def test_a_mig_mode_that_waits_for_a_reset_is_a_warning(facts: GpuFacts) -> None:
    assert facts.inventory
    gpu = replace(facts.inventory.gpus[0], mig_mode=MigMode(current=False, pending=True))
    first, second = named(replace(facts, inventory=replace(facts.inventory, gpus=(gpu,))), "mig")
    assert "waits for a reset that switches MIG mode on; it is still off" in first.text
    assert "--gpu-reset" in first.remedy
    assert second.text == "1 of 1 GPUs support MIG, 0 in MIG mode"


def test_gpus_that_cannot_be_split_are_no_complaint(facts: GpuFacts) -> None:
    assert facts.inventory
    gpu = replace(facts.inventory.gpus[0], mig_mode=None)
    without = replace(facts, inventory=replace(facts.inventory, gpus=(gpu,)), capabilities=False)
    assert [one.text for one in named(without, "mig")] == ["no GPU supports MIG"]
    assert not named(without, "mig capabilities")


@pytest.mark.parametrize(("in_mig_mode", "level"), [(True, "fail"), (False, "warn")])
def test_missing_mig_capabilities_fail_where_mig_is_in_use(facts: GpuFacts, in_mig_mode: bool, level: str) -> None:
    assert facts.inventory
    gpu = replace(facts.inventory.gpus[0], mig_mode=MigMode(in_mig_mode, in_mig_mode))
    without = replace(facts, inventory=replace(facts.inventory, gpus=(gpu,)), capabilities=False)
    assert [str(one.level) for one in named(without, "mig capabilities")] == [level]


@pytest.mark.parametrize(
    ("path", "level", "says"),
    [
        ("/dev/nvidiactl", "fail", "no program can use a GPU"),
        ("/dev/nvidia3", "fail", "cannot be given to a pod"),
        ("/dev/nvidia-uvm", "warn", "CUDA programs cannot start"),
    ],
)
def test_a_device_node_that_nobody_can_make_is_named(facts: GpuFacts, path: str, level: str, says: str) -> None:
    (found,) = named(replace(facts, missing=(path,)), "device nodes")
    assert (str(found.level), path in found.text, says in found.text) == (level, True, True)


def test_device_nodes_are_missing_only_when_their_driver_is_not_registered_either(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8").node
    (node.driver_root / "dev/nvidia3").unlink()
    assert read(node).missing == ()
    (node.driver_root / "proc/devices").write_text("Character devices:\n  1 mem\n", encoding="ascii")
    assert read(node).missing == ("/dev/nvidia3",)
    assert not read(node).capabilities


def test_a_file_in_the_place_of_a_device_node_is_a_warning(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8").node
    control = node.driver_root / "dev/nvidiactl"
    control.unlink()
    control.touch()
    warnings = [one for one in named(read(node), "device nodes") if one.level is Level.WARN]
    assert any("nvidiactl is not a character device" in one.text for one in warnings)


def test_an_error_without_a_known_remedy_sends_to_nvidia_smi() -> None:
    error = NvmlError(Return.MEMORY, "nvmlInitWithFlags")
    (found,) = gpu_findings(GpuFacts(None, error))
    assert "nvidia-smi" in found.remedy
