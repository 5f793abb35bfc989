# SPDX-License-Identifier: Apache-2.0
"""What GPUs for virtual machines need of the node."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.inventory import PciGpu
from dra_driver.gpu.pci import read_pci_gpus
from dra_driver.gpu.policy import GpuRule, NodePolicy, PassthroughMode
from kubeletplugin.host.modules import VfioModules
from kubeletplugin.host.programs import HostPrograms
from kubeletplugin.kinds.vfio.check import MachineGpu, machine_findings, passthrough_findings
from kubeletplugin.kinds.vgpucheck import vgpu_findings
from tests.gpu.test_vgpus import VFIO, write_node
from tests.kubeletplugin.check.support import facts_of, hardware_of, levels, only
from tests.kubeletplugin.check.test_command import Node as Command
from tests.support.nodes import make_node

ADDRESS = "0000:1b:00.0"
PCI = PciGpu(0, ADDRESS, 0x2330, "GH100", "nvidia", 16, 1 << 37, None, None)
GPU = MachineGpu(PCI, "vfio_pci", available=True)
ALL = NodePolicy((GpuRule(passthrough=True),))


def with_gpu(**changes: Any) -> MachineGpu:
    """The only GPU of a node is so."""
    return replace(GPU, pci=replace(PCI, **changes))


@pytest.mark.parametrize(
    ("gpus", "groups", "expected"),
    [
        ([], 8, []),
        ([GPU], 8, [("IOMMU", "pass"), ("vfio modules", "pass"), ("IOMMU groups", "pass")]),
        ([GPU], 0, [("IOMMU", "warn")]),
        (
            [replace(GPU, available=False)],
            8,
            [("IOMMU", "pass"), ("vfio modules", "warn"), ("IOMMU groups", "pass")],
        ),
        (
            [replace(GPU, users="python (PID 7)")],
            8,
            [("IOMMU", "pass"), ("vfio modules", "pass"), ("IOMMU groups", "pass"), ("GPU users", "warn")],
        ),
    ],
)
def test_nothing_is_a_failure_because_pods_get_gpus_anyway(
    gpus: list[MachineGpu], groups: int, expected: list[tuple[str, str]]
) -> None:
    assert levels(machine_findings(gpus, groups, iommufd=True)) == expected


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        (with_gpu(iommu_group=None), "it has no IOMMU group"),
        (with_gpu(group_obstacles=("0000:43:00.0",)), "its IOMMU group 16 also has 0000:43:00.0"),
        (with_gpu(virtual_functions=4), "4 SR-IOV virtual functions of it are enabled"),
        (with_gpu(driver="nouveau"), "it is bound to nouveau, which this driver does not change"),
    ],
)
def test_a_gpu_that_no_machine_can_get_is_named_with_the_reason_and_the_remedy(gpu: MachineGpu, text: str) -> None:
    found = only(one for one in machine_findings([gpu], 8, iommufd=True) if one.check == "IOMMU groups")
    assert found.text.startswith(f"no virtual machine can get GPU {ADDRESS}: {text}")
    assert str(found.level) == "warn"
    assert bool(found.remedy)


@pytest.mark.parametrize(
    ("rules", "problems", "fine"),
    [
        ((GpuRule(passthrough=True),), [0, 1], ["2", "3"]),
        ((GpuRule(passthrough=PassthroughMode.ONLY), GpuRule(indexes=(1,), passthrough=False)), [0], ["2", "3"]),
        ((GpuRule(passthrough=PassthroughMode.ONLY),), [], ["0 with 1", "2", "3"]),
    ],
)
def test_gpus_of_one_group_are_for_machines_together_or_not_at_all(
    tmp_path: Path, rules: tuple[GpuRule, ...], problems: list[int], fine: list[str]
) -> None:
    made = make_node(tmp_path / "node", "h100x8").node
    hardware = hardware_of(made)
    addresses = [one.address for one in read_pci_gpus(hardware.sys_root)]
    first, second = (hardware.sys_root / "bus/pci/devices" / address for address in addresses[:2])
    (first / "iommu_group/devices" / second.name).symlink_to(second.resolve())
    (second / "iommu_group").unlink()
    (second / "iommu_group").symlink_to((first / "iommu_group").resolve())
    policy = NodePolicy((*rules, GpuRule(indexes=(4, 5, 6, 7), passthrough=False)))
    found = [one for one in passthrough_findings(facts_of(tmp_path, hardware, policy)) if one.check == "IOMMU groups"]
    warned = [one for one in found if str(one.level) == "warn"]
    assert [addresses[index] in one.text for index, one in zip(problems, warned, strict=True)] == [True] * len(problems)
    assert all("set passthrough to only for all GPUs of the group" in one.remedy for one in warned)
    named = [" with ".join(addresses[int(index)] for index in text.split(" with ")) for text in fine]
    assert found[-1].text == f"virtual machines can get {', '.join(named)}"


@pytest.mark.parametrize("driver", [None, "nvidia", "vfio-pci", "nvgrace_gpu_vfio_pci"])
def test_a_gpu_on_one_of_its_drivers_is_fine(driver: str | None) -> None:
    findings = machine_findings([with_gpu(driver=driver)], 8, iommufd=True)
    (found,) = (one for one in findings if one.check == "IOMMU groups")
    assert (str(found.level), found.text) == ("pass", f"virtual machines can get {ADDRESS}")


def test_a_node_is_read_if_its_policy_gives_gpus_to_machines(tmp_path: Path) -> None:
    made = make_node(tmp_path / "node", "h100x8").node
    hardware = hardware_of(made)
    facts = facts_of(tmp_path, hardware)
    assert list(passthrough_findings(facts)) == []
    assert list(passthrough_findings(replace(facts, policy=NodePolicy((GpuRule(passthrough=False),))))) == []
    device = made.driver_root / "dev/nvidia1"
    device.unlink()
    device.touch()  # a node of a device that does not exist cannot be opened
    with device.open("rb"):
        policy = NodePolicy((GpuRule(indexes=(0, 1), passthrough=True),))
        found = list(passthrough_findings(replace(facts, policy=policy)))
    assert found[0].text == "8 groups, with iommufd (/dev/iommu)"
    addresses = [one.address for one in read_pci_gpus(hardware.sys_root)]
    (users,) = (one.text for one in found if one.check == "GPU users")
    assert users.startswith(f"GPU {addresses[1]} has no claim and is in use by ")
    assert f"(PID {os.getpid()})" in users


@pytest.mark.parametrize(
    ("host", "types", "expected"),
    [
        (VFIO, ("12Q",), [("pass", "GPU 0000:41:00.0 is published as 4 vGPUs (L40S-12Q)")]),
        (VFIO, ("13Q",), [("warn", "GPU 0000:41:00.0: left out: its vGPUs: it has no type 13Q")]),
        ("", ("12Q",), [("warn", "GPU 0000:41:00.0: left out: its vGPUs: NVIDIA's vGPU manager does not run for it")]),
        (VFIO, (), []),
    ],
)
def test_vgpus_that_claims_can_get_are_counted(
    tmp_path: Path, host: str, types: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    made = make_node(tmp_path / "node", write_node(tmp_path, host)).node
    facts = facts_of(tmp_path, hardware_of(made), NodePolicy((GpuRule(vgpu_types=types),)))
    found = list(vgpu_findings(facts))
    assert [(str(one.level), one.text[: len(text)]) for one, (_, text) in zip(found, expected, strict=True)] == expected
    assert all(one.remedy for one in found if str(one.level) == "warn")


@pytest.mark.parametrize(
    ("listing", "available"),
    [
        ({"modules.dep": "kernel/drivers/vfio/pci/vfio-pci.ko.zst: kernel/drivers/vfio/vfio.ko.zst\n"}, True),
        ({"modules.dep": "kernel/drivers/vfio/pci/vfio-pci.ko: kernel/drivers/vfio/vfio.ko\n"}, True),
        ({"modules.builtin": "kernel/drivers/vfio/pci/vfio-pci.ko\n"}, True),
        ({"modules.dep": "extra/my.ko: kernel/drivers/vfio/pci/vfio-pci.ko\n"}, False),
        ({}, False),
    ],
)
def test_a_module_is_available_if_the_running_kernel_has_its_file(
    tmp_path: Path, listing: dict[str, str], available: bool
) -> None:
    folder = tmp_path / "lib/modules/6.8"
    folder.mkdir(parents=True)
    for name, text in listing.items():
        (folder / name).write_text(text)
    modules = VfioModules(tmp_path / "sys", HostPrograms(tmp_path, enter=False), "6.8")
    assert modules.is_available("vfio_pci") is available
    (tmp_path / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    assert modules.is_available("vfio_pci")


@pytest.mark.node
def test_the_command_reads_the_policy(tmp_path: Path) -> None:
    node = Command(tmp_path)
    policy = tmp_path / "policy.yaml"
    policy.write_text("gpus:\n- passthrough: true\n")
    found = [one["check"] for one in json.loads(node.check("-o", "json").stdout)["findings"]]
    assert "IOMMU" not in found
    done = node.check("-o", "json", f"--policy-file={policy}")
    found = [one["check"] for one in json.loads(done.stdout)["findings"]]
    assert {"IOMMU", "vfio modules", "IOMMU groups"} <= set(found), done.stdout
    assert done.returncode == 0


def test_node_without_nvml_has_no_findings_about_machines(tmp_path: Path) -> None:
    made = make_node(tmp_path / "node", "h100x8").node
    made.unload_driver()
    facts = facts_of(tmp_path, hardware_of(made), ALL)
    assert [*passthrough_findings(facts), *vgpu_findings(facts)] == []
