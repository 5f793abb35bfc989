# SPDX-License-Identifier: Apache-2.0
"""The check of GPUs for virtual machines. They need an IOMMU, a vfio driver, whole groups, and no other users.

Nothing is checked if the policy gives no GPU of the node to virtual machines. No finding is a failure, because pods
without virtual machines get GPUs anyway.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dra_driver.gpu.devices import among_peers
from dra_driver.gpu.functions import is_vfio, obstacle_text
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.gpu.options import Hardware
from dra_driver.gpu.pci import NVIDIA_DRIVER
from dra_driver.gpu.policy import PassthroughMode

from ...checkfacts import CheckFacts
from ...finding import CheckResult, NodeCheck
from ...host.modules import VfioModules
from ...host.openers import names_of, openers
from ...host.programs import HostPrograms

IOMMU, MODULES, GROUPS = NodeCheck("IOMMU"), NodeCheck("vfio modules"), NodeCheck("IOMMU groups")
USERS = NodeCheck("GPU users")


@dataclass(frozen=True, slots=True)
class MachineGpu:
    """A GPU that the policy gives to virtual machines. `module` is that of its vfio driver, and `available` tells
    whether it is loaded or can be loaded. `users` are the processes that have the GPU open, except while a prepared
    claim has the GPU.
    """

    pci: PciGpu
    module: str
    available: bool
    users: str = ""


def passthrough_findings(facts: CheckFacts) -> Iterator[CheckResult]:
    """Read sysfs, modules and processes. Nothing if the policy gives no GPU to virtual machines. Raises OSError."""
    policy, inventory, hardware = facts.policy, facts.inventory, facts.node.folders.hardware
    if inventory is None or not policy.has_machines:
        return
    by_address = {gpu.pci_address: gpu for gpu in inventory.gpus}
    pairs = [(pci, by_address.get(pci.address)) for pci in inventory.pci_gpus]
    ways = {pci.address: (policy.for_gpu(gpu, pci).passthrough, gpu) for pci, gpu in pairs}
    together = {address for address, (way, gpu) in ways.items() if way is PassthroughMode.ONLY or (way and gpu is None)}
    wanted = [(among_peers(pci, together.__contains__), gpu) for pci, gpu in pairs if ways[pci.address][0]]
    claimed = frozenset(uuid for record in facts.records for uuid in record.plan.keys)
    machines = [_machine_gpu(hardware, pci, gpu, claimed) for pci, gpu in wanted]
    folder = hardware.sys_root / "kernel/iommu_groups"
    groups = len(list(folder.iterdir())) if folder.is_dir() else 0
    yield from machine_findings(machines, groups, (hardware.machine_root / "dev/iommu").exists())


def machine_findings(gpus: Sequence[MachineGpu], groups: int, iommufd: bool) -> Iterator[CheckResult]:
    """Whether virtual machines can get the GPUs that the policy gives them. `groups` is the number of IOMMU groups, and
    `iommufd` tells whether the kernel has it.
    """
    if not gpus:
        return
    if not groups:
        yield IOMMU.warned(
            "it is off (/sys/kernel/iommu_groups is empty), so no virtual machine can get a GPU",
            "enable it in the firmware (VT-d, AMD-Vi, SMMU) and with intel_iommu=on or amd_iommu=on on the kernel's"
            " command line, and restart the node",
        )
        return
    yield IOMMU.passed(f"{groups} groups, {'with' if iommufd else 'without'} iommufd (/dev/iommu)")
    yield from _modules(gpus)
    yield from _groups(gpus)
    yield from _users(gpus)


def _machine_gpu(hardware: Hardware, pci: PciGpu, gpu: Gpu | None, claimed: Iterable[str]) -> MachineGpu:
    modules = VfioModules(hardware.sys_root, HostPrograms(hardware.machine_root, hardware.enter_root))
    module = modules.choose(pci.address)
    users = ""
    if gpu is not None and gpu.uuid not in claimed:
        users = names_of(openers([hardware.dev_root / f"dev/nvidia{gpu.minor}"]))
    return MachineGpu(pci, module, modules.is_available(module), users)


def _modules(gpus: Iterable[MachineGpu]) -> Iterator[CheckResult]:
    for module, available in sorted({(gpu.module, gpu.available) for gpu in gpus}):
        if available:
            yield MODULES.passed(f"{module} is loaded or can be loaded")
        else:
            yield MODULES.warned(
                f"there is no kernel module {module}, so no virtual machine can get the GPUs that need it:"
                f" {', '.join(gpu.pci.address for gpu in gpus if gpu.module == module)}",
                "install the package of the kernel's additional modules (linux-modules-extra, kernel-modules-core)",
            )


def _groups(gpus: Iterable[MachineGpu]) -> Iterator[CheckResult]:
    problems = {gpu.pci.address: problem for gpu in gpus if (problem := _problem(gpu.pci))}
    for address, (text, remedy) in problems.items():
        yield GROUPS.warned(f"no virtual machine can get GPU {address}: {text}", remedy)
    fine = [(gpu.pci.address, *gpu.pci.group_gpus) for gpu in gpus if gpu.pci.address not in problems]
    if fine:
        texts = [" with ".join(group) for group in {frozenset(group): sorted(group) for group in fine}.values()]
        yield GROUPS.passed(f"virtual machines can get {', '.join(texts)}")


def _problem(pci: PciGpu) -> tuple[str, str] | None:
    """Why a virtual machine cannot get a GPU, and the remedy."""
    if pci.iommu_group is None:
        return "it has no IOMMU group", "see that the firmware enables the IOMMU for its PCI root port"
    if pci.group_obstacles:
        text = obstacle_text(pci.iommu_group, pci.group_obstacles)
        remedy = "enable ACS in the firmware, move the board to another slot, or set passthrough to false for it"
        if set(pci.group_obstacles) <= set(pci.group_gpus):
            remedy += "; or set passthrough to only for all GPUs of the group, which are one device then"
        return text, remedy
    if pci.virtual_functions:
        remedy = f"write 0 to /sys/bus/pci/devices/{pci.address}/sriov_numvfs when nothing uses them"
        return f"{pci.virtual_functions} SR-IOV virtual functions of it are enabled", remedy
    if pci.driver not in (None, NVIDIA_DRIVER) and not is_vfio(pci.driver):
        return f"it is bound to {pci.driver}, which this driver does not change", "bind it to nvidia or to vfio-pci"
    return None


def _users(gpus: Iterable[MachineGpu]) -> Iterator[CheckResult]:
    for gpu in gpus:
        if gpu.users:
            yield USERS.warned(
                f"GPU {gpu.pci.address} has no claim and is in use by {gpu.users}: claims of virtual machines wait for"
                " them",
                "end these processes, or configure them to leave this GPU out; nvidia-persistenced needs nothing",
            )
