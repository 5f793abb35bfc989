# SPDX-License-Identifier: Apache-2.0
"""The stand-in for nvidia-smi and the compute mode: what the real ones refuse is refused."""

import subprocess
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import ComputeMode, NvmlError, Return
from tests.support.hardware import ControlledNode
from tests.support.nodes import make_node

pytestmark = pytest.mark.node

REFUSED = [
    (["mig", "-lgi"], 2),
    (["compute-policy", "-i", "UUID"], 2),
    (["compute-policy", "-i", "UUID", "--set-timeslice", "4"], 2),
    (["compute-policy", "-i", "UUID", "--set-timeslice", "Long"], 2),
    (["compute-policy", "-i", "UUID", "--set-timeslice", ""], 2),
    (["compute-policy", "-i", "UUID", "--set", "1"], 2),
    (["compute-policy", "-i", "UUID", "--list", "--set-timeslice", "1"], 2),
    (["compute-policy", "-i", "GPU-0", "--list"], 6),
]


def smi(node: ControlledNode, *arguments: str) -> tuple[int, str]:
    """What the program says, and its exit code."""
    uuid = node_uuid(node)
    command = [str(node.driver_root / "usr/bin/nvidia-smi"), *(one.replace("UUID", uuid) for one in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout


def node_uuid(node: ControlledNode) -> str:
    nvml = node.nvml()
    nvml.initialize()
    return nvml.uuid(nvml.device_by_index(0))


@pytest.fixture
def node(tmp_path: Path) -> ControlledNode:
    return make_node(tmp_path, "l40sx4").node


def test_a_level_is_set_shown_and_gone_with_the_driver(node: ControlledNode) -> None:
    assert smi(node, "compute-policy", "-i", "UUID", "--list") == (0, "GPU 0: Timeslice: Default\n")
    assert smi(node, "compute-policy", "-i", "UUID", "--set-timeslice", "2")[0] == 0
    assert smi(node, "compute-policy", "-i", "UUID", "--list") == (0, "GPU 0: Timeslice: Medium\n")
    assert node.nvidia_smi.level(node_uuid(node)) == 2
    assert len(node.nvidia_smi.calls()) == 3
    node.load_driver()
    assert node.nvidia_smi.level(node_uuid(node)) == 0


@pytest.mark.parametrize(("arguments", "code"), REFUSED)
def test_arguments_that_nvidia_smi_refuses_fail_and_change_nothing(
    node: ControlledNode, arguments: list[str], code: int
) -> None:
    assert smi(node, *arguments)[0] == code
    assert node.nvidia_smi.level(node_uuid(node)) == 0


def test_nvidia_smi_fails_without_a_driver(node: ControlledNode) -> None:
    uuid = node_uuid(node)
    node.unload_driver()
    command = [str(node.driver_root / "usr/bin/nvidia-smi"), "compute-policy", "-i", uuid, "--list"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=60).returncode == 9


def test_compute_modes(node: ControlledNode) -> None:
    nvml = node.nvml()
    nvml.initialize()
    gpu = nvml.device_by_index(1)
    nvml.set_compute_mode(gpu, ComputeMode.PROHIBITED)
    assert [nvml.compute_mode(gpu), nvml.compute_mode(nvml.device_by_index(0))] == [2, 0]
    with pytest.raises(NvmlError) as caught:
        nvml.set_compute_mode(gpu, 4)
    assert caught.value.code is Return.INVALID_ARGUMENT
    node.load_driver()
    nvml = node.nvml()
    nvml.initialize()
    assert nvml.compute_mode(nvml.device_by_index(1)) == ComputeMode.DEFAULT


def test_a_gpu_in_mig_mode_has_no_compute_mode_to_choose(tmp_path: Path) -> None:
    nvml = make_node(tmp_path, "h100x8-mig").nvml
    with pytest.raises(NvmlError) as caught:
        nvml.set_compute_mode(nvml.device_by_index(0), ComputeMode.EXCLUSIVE_PROCESS)
    assert caught.value.code is Return.NOT_SUPPORTED
