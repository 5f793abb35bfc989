# SPDX-License-Identifier: Apache-2.0
"""What is read from real GPUs, against nvidia-smi; and the comparison itself, against simulated ones.

The tests marked `gpu` only read. They are skipped where there is no GPU to read from.
"""

import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.inventory import Inventory, read_inventory
from dra_driver.gpu.nvml import NvmlError
from dra_driver.gpu.nvml_library import NvmlLibrary
from dra_driver.gpu.pci import NVIDIA_DRIVER
from dra_driver.gpu.simulated.files import MAJORS
from tests.gpu.calls import make_instance
from tests.gpu.nvidia_smi import device_node_differences, differences, read_smi
from tests.support.nodes import make_node

pytestmark = pytest.mark.node

SYS, DEV, PROC_DEVICES = Path("/sys"), Path("/dev"), Path("/proc/devices")


# Real GPUs


def nvidia_smi(*arguments: str) -> str:
    """What nvidia-smi prints."""
    return subprocess.run(["nvidia-smi", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def hardware() -> Inventory:
    """What this machine has."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi on PATH: this machine has no NVIDIA driver")
    nvml = NvmlLibrary()
    try:
        nvml.initialize()
    except NvmlError as error:
        pytest.skip(f"no NVML: {error}")
    try:
        inventory = read_inventory(nvml, SYS, dev_root=Path("/"), driver_root=Path("/"))
    finally:
        nvml.shutdown()
    if not inventory.gpus:
        pytest.skip("this machine has no GPU")
    return inventory


@pytest.mark.gpu
def test_discovery_is_complete_and_without_problems(hardware: Inventory) -> None:
    assert hardware.failures == ()
    assert [problem for gpu in hardware.gpus for problem in gpu.problems] == []


@pytest.mark.gpu
def test_every_field_is_nvidia_smis(hardware: Inventory) -> None:
    assert differences(hardware, read_smi(nvidia_smi)) == []


@pytest.mark.gpu
def test_every_gpu_has_its_device_node(hardware: Inventory) -> None:
    assert device_node_differences(hardware, DEV, PROC_DEVICES.read_text(encoding="ascii")) == []


@pytest.mark.gpu
def test_gpus_are_on_the_pci_bus(hardware: Inventory) -> None:
    if not (SYS / "bus/pci/devices").is_dir():
        pytest.skip("no PCI bus in sysfs: it is hidden from this process")
    bound = [gpu.address for gpu in hardware.pci_gpus if gpu.driver == NVIDIA_DRIVER]
    assert {gpu.pci_address for gpu in hardware.gpus} <= set(bound)
    assert all(gpu.pcie_root for gpu in hardware.gpus)


@pytest.mark.gpu
def test_profiles_of_switchable_gpus_are_known_in_either_mode(hardware: Inventory) -> None:
    switchable = [gpu for gpu in hardware.gpus if gpu.mig_switchable]
    if not switchable:
        pytest.skip("no GPU here switches MIG mode without a reset")
    for gpu in switchable:
        assert gpu.mig_profiles
        assert all(profile.placements for profile in gpu.mig_profiles)


# The comparison

NODE = """
driverVersion: 570.158.01
cudaVersion: "12.8"
gpus:
- {model: H100-SXM5-80GB, pciAddresses: ["0000:1b:00.0"], minors: [1]}
- {model: H100-SXM5-80GB, pciAddresses: ["10000:01:00.0"], minors: [0], mig: true}
"""
XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<timestamp>Mon Jan  1 00:00:00 2024</timestamp>
	<driver_version>570.158.01</driver_version>
	<cuda_version>12.8</cuda_version>
	<attached_gpus>2</attached_gpus>
	<gpu id="00000000:1B:00.0">
		<product_name>NVIDIA H100 80GB HBM3</product_name>
		<product_architecture>Hopper</product_architecture>
		<addressing_mode>HMM</addressing_mode>
		<mig_mode>
			<current_mig>Disabled</current_mig>
			<pending_mig>Disabled</pending_mig>
		</mig_mode>
		<mig_devices>
			None
		</mig_devices>
		<uuid>{whole}</uuid>
		<minor_number>1</minor_number>
		<gpu_module_id>1</gpu_module_id>
		<pci>
			<pci_bus_id>00000000:1B:00.0</pci_bus_id>
		</pci>
		<fb_memory_usage>
			<total>81559 MiB</total>
		</fb_memory_usage>
	</gpu>
	<gpu id="00010000:01:00.0">
		<product_name>NVIDIA H100 80GB HBM3</product_name>
		<product_architecture>Hopper</product_architecture>
		<mig_mode>
			<current_mig>Enabled</current_mig>
			<pending_mig>Enabled</pending_mig>
		</mig_mode>
		<uuid>{split}</uuid>
		<minor_number>0</minor_number>
		<pci>
			<pci_bus_id>00010000:01:00.0</pci_bus_id>
		</pci>
		<fb_memory_usage>
			<total>81559 MiB</total>
		</fb_memory_usage>
	</gpu>
</nvidia_smi_log>
"""
LISTING = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: {whole})
GPU 1: NVIDIA H100 80GB HBM3 (UUID: {split})
  MIG 3g.40gb     Device  0: (UUID: {mig})
"""
CAPABILITIES = "{whole}, 9.0\n{split}, 9.0\n"
PROFILES = """\
+-----------------------------------------------------------------------------+
| GPU instance profiles:                                                      |
| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                              Free/Total   GiB              CE    JPEG  OFA  |
|=============================================================================|
|   1  MIG 1g.10gb       19     3/7        9.75       No     16     1     0   |
|                                                             1     1     0   |
+-----------------------------------------------------------------------------+
|   1  MIG 1g.10gb+me    20     1/1        9.75       No     16     1     0   |
|                                                             1     1     1   |
+-----------------------------------------------------------------------------+
|   1  MIG 1g.20gb       15     2/4        19.62      No     26     1     0   |
|                                                             1     1     0   |
+-----------------------------------------------------------------------------+
|   1  MIG 2g.20gb       14     2/3        19.62      No     32     2     0   |
|                                                             2     2     0   |
+-----------------------------------------------------------------------------+
|   1  MIG 3g.40gb        9     1/2        39.50      No     60     3     0   |
|                                                             3     3     0   |
+-----------------------------------------------------------------------------+
|   1  MIG 4g.40gb        5     1/1        39.50      No     64     4     0   |
|                                                             4     4     0   |
+-----------------------------------------------------------------------------+
|   1  MIG 7g.80gb        0     0/1        79.25      No     132    7     0   |
|                                                             8     7     1   |
+-----------------------------------------------------------------------------+
"""
PLACEMENTS = """\
GPU  1 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
GPU  1 Profile ID 20 Placements: {0,1,2,3,4,5,6}:1
GPU  1 Profile ID 15 Placements: {0,2,4,6}:2
GPU  1 Profile ID 14 Placements: {0,2,4}:2
GPU  1 Profile ID  9 Placements: {0,4}:4
GPU  1 Profile ID  5 Placement : {0}:4
GPU  1 Profile ID  0 Placement : {0}:8
"""


class HandmadeSmi:
    """nvidia-smi on NODE with a 3g.40gb instance; `replace` turns one thing that it says into another."""

    def __init__(self, whole: str, split: str, mig: str) -> None:
        uuids = {"whole": whole, "split": split, "mig": mig}
        self._answers = {
            "-q -x": XML.format(**uuids),
            "-L": LISTING.format(**uuids),
            "--query-gpu=uuid,compute_cap --format=csv,noheader": CAPABILITIES.format(**uuids),
            "mig -lgip": PROFILES,
            "mig -lgipp": PLACEMENTS,
        }

    def replace(self, command: str, old: str, new: str) -> None:
        """Where `command` said `old`, it says `new`, once."""
        assert old in self._answers[command]
        self._answers[command] = self._answers[command].replace(old, new, 1)

    def __call__(self, *arguments: str) -> str:
        return self._answers[" ".join(arguments)]


@pytest.fixture
def simulated(tmp_path: Path) -> tuple[Inventory, HandmadeSmi, Path]:
    """The inventory of NODE, what nvidia-smi says of it, and the root of its files."""
    (tmp_path / "node.yaml").write_text(NODE)
    node = make_node(tmp_path / "node", str(tmp_path / "node.yaml"))
    whole, split = (node.nvml.device_by_index(index) for index in (0, 1))
    _, mig = make_instance(node.nvml, split, 2, 4)
    smi = HandmadeSmi(node.nvml.uuid(whole), node.nvml.uuid(split), node.nvml.uuid(mig))
    return read_inventory(node.nvml, node.sys_root), smi, node.node.driver_root


def test_a_simulated_node_is_as_nvidia_smi_would_say(simulated: tuple[Inventory, HandmadeSmi, Path]) -> None:
    inventory, smi, _ = simulated
    assert differences(inventory, read_smi(smi)) == []


OTHERWISE = {
    "driver version": ("-q -x", "570.158.01", "570.158.02"),
    "CUDA version": ("-q -x", "12.8", "12.4"),
    "GPU 0: product_name": ("-q -x", "HBM3", "HBM2"),
    "GPU 0: product_architecture": ("-q -x", "Hopper", "Ampere"),
    "GPU 0: addressing_mode": ("-q -x", "HMM", "ATS"),
    "GPU 0: mig_mode/current_mig": ("-q -x", "<current_mig>Disabled", "<current_mig>Enabled"),
    "GPU 0: mig_mode/pending_mig": ("-q -x", "<pending_mig>Disabled", "<pending_mig>N/A"),
    "GPU 0: minor_number": ("-q -x", "<minor_number>1", "<minor_number>0"),
    "GPU 0: gpu_module_id": ("-q -x", "<gpu_module_id>1", "<gpu_module_id>8"),
    "GPU 0: pci/pci_bus_id": ("-q -x", "<pci_bus_id>00000000:1B", "<pci_bus_id>00000000:1C"),
    "GPU 0: fb_memory_usage/total": ("-q -x", "81559 MiB", "81920 MiB"),
    "GPU 0: compute_cap": ("--query-gpu=uuid,compute_cap --format=csv,noheader", "9.0", "8.0"),
    "GPU 1: MIG devices": ("-L", "UUID: MIG-", "UUID: MIG-0"),
    "GPU 1: MIG profiles": ("mig -lgip", "MIG 1g.20gb       15", "MIG 1g.20gb       16"),
    "GPU 1: MIG profile 19": ("mig -lgipp", "{0,1,2,3,4,5,6}:1", "{0,1,2,3,4,5}:1"),
    "GPU 1: MIG profile 9": ("mig -lgip", "MIG 3g.40gb", "MIG 3g.48gb"),
    "GPU 1: MIG profile 0": ("mig -lgip", "79.25", "79.50"),
    "GPU 1: MIG profile 5": ("mig -lgip", "64     4     0", "64     4     1"),
}


@pytest.mark.parametrize(("what", "change"), OTHERWISE.items(), ids=list(OTHERWISE))
def test_difference_to_nvidia_smi_is_named(
    simulated: tuple[Inventory, HandmadeSmi, Path], what: str, change: tuple[str, str, str]
) -> None:
    inventory, smi, _ = simulated
    smi.replace(*change)
    (line,) = differences(inventory, read_smi(smi))
    assert line.startswith(f"{what}: ")
    assert " is not nvidia-smi's " in line


def test_a_gpu_that_only_one_of_them_sees_is_named(simulated: tuple[Inventory, HandmadeSmi, Path]) -> None:
    inventory, smi, _ = simulated
    uuids = [gpu.uuid for gpu in inventory.gpus]
    seen = differences(replace(inventory, gpus=inventory.gpus[1:]), read_smi(smi))
    assert seen == [f"UUIDs: {uuids[1:]} is not nvidia-smi's {uuids}"]


def test_values_that_older_drivers_do_not_print_are_not_compared(
    simulated: tuple[Inventory, HandmadeSmi, Path],
) -> None:
    inventory, smi, _ = simulated
    smi.replace("-q -x", "<gpu_module_id>1</gpu_module_id>", "")
    smi.replace("-q -x", "<addressing_mode>HMM</addressing_mode>", "")
    assert differences(inventory, read_smi(smi)) == []


LISTED = f"Character devices:\n  1 mem\n{MAJORS['nvidia']} nvidia\n{MAJORS['nvidia-caps']} nvidia-caps\n"


def test_device_nodes_are_compared_by_their_numbers(simulated: tuple[Inventory, HandmadeSmi, Path]) -> None:
    inventory, _, root = simulated
    dev = root / "dev"
    if not stat.S_ISCHR((dev / "nvidia0").stat().st_mode):
        pytest.skip("this process may not make device nodes, so the simulated ones are files")
    assert device_node_differences(inventory, dev, LISTED) == []
    assert device_node_differences(inventory, dev, LISTED.replace("195 nvidia\n", "195 nvidia-frontend\n")) == []
    assert device_node_differences(inventory, dev, LISTED.replace("195", "511")) == [
        "nvidia1: is (195, 1), not (511, 1)",
        "nvidia0: is (195, 0), not (511, 0)",
    ]
    (dev / "nvidia0").rename(dev / "nvidia1")
    assert device_node_differences(inventory, dev, LISTED) == [
        "nvidia1: is (195, 0), not (195, 1)",
        "nvidia0: does not exist",
    ]


def test_missing_or_wrong_device_node_is_named(simulated: tuple[Inventory, HandmadeSmi, Path], tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert device_node_differences(simulated[0], tmp_path, LISTED) == [
        "nvidia1: does not exist",
        "nvidia0: is no character device",
    ]
    assert device_node_differences(simulated[0], tmp_path, "") == ["/proc/devices: nvidia is not listed"]
