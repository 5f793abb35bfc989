# SPDX-License-Identifier: Apache-2.0
"""The two drivers, gpu.nvidia.com and compute-domain.nvidia.com: their kinds of devices, their features, and how each
plans a claim.

This is the only file that knows all kinds and features. A new kind of GPU is a line in `KINDS` and one in `_FORMS`; a
new feature is a line in `PHASES` and one in `plan_claim`. Planning has two halves: `look` reads everything that a plan
depends on, and the other half is pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.config import (
    Chosen,
    ConfigError,
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
    VfioDeviceConfig,
    config_for,
    require_one_backend,
)
from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER_NAME
from dra_driver.gpu.devices import VgpuDevice, vfio_name
from dra_driver.gpu.fabric import NO_SWITCHES, SwitchFacts
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import NvmlError
from dra_driver.gpu.policy import NodePolicy
from dra_driver.kube.resource import AllocatedDevice, ResourceClaim
from dra_driver.names import DRIVER_NAME

from .checkfacts import Check
from .claims.model import ClaimRef, Device, Driver, Kind, Plan, Step
from .claims.reader import allocated
from .errors import ObsoleteClaimError, PrepareError, StoppedError
from .features.additional_devices import AdditionalDevicesStep, additional_device_steps
from .features.domain.offers import HostDaemon, clique_for
from .features.domain.plan import (
    DomainFacts,
    DomainRequest,
    FindDomain,
    devices_and_steps,
    requested,
    require_allowed,
    unknown_domain,
)
from .features.domain.steps import DaemonFolderStep, DaemonReadyStep, MembershipStep
from .features.domain.version1 import read_version_1
from .features.fabric.check import fabric_findings
from .features.fabric.partitions import FabricPartitions
from .features.fabric.plan import MemberGpu, fabric_steps
from .features.fabric.step import FabricStep
from .features.memory_limits.step import MemoryLimitStep, memory_limit_steps
from .features.mps.check import mps_findings
from .features.mps.plan import MpsSupport, mps_steps
from .features.mps.remains import MpsRemains
from .features.mps.services import knows_protocol_3
from .features.mps.step import MpsStep
from .features.time_slicing import time_slicing_findings, time_slicing_steps
from .kinds.channel import ChannelKind
from .kinds.container import Allotted, ContainerKind, share_limits
from .kinds.daemon import DaemonKind
from .kinds.gpu import GpuKind
from .kinds.mig.check import mig_findings
from .kinds.mig.device import MigKind
from .kinds.mig.instance import InstanceStep, LookStep
from .kinds.mig.mode import MigModeStep, may_switch, whole_gpu_steps
from .kinds.settings.steps import ComputeModeStep, TimeSliceStep
from .kinds.vfio.check import passthrough_findings
from .kinds.vfio.device import SeenGpu, VfioKind, passthrough_of, vfio_kind
from .kinds.vfio.kubevirt import ResourceOfClass, no_resource, resource_variables
from .kinds.vfio.step import VfioStep, vfio_step
from .kinds.vgpu import VgpuKind, VgpuStep, vgpu_kind
from .kinds.vgpucheck import vgpu_findings
from .node.gpus import Found, Gpus
from .node.node import Node

KINDS: Final = (GpuKind, MigKind, VfioKind, VgpuKind)

PHASES: Final = (
    (FabricStep,),  # a GPU is in its partition before it is changed, and until all of them are back
    (MigModeStep, InstanceStep, LookStep, ComputeModeStep, TimeSliceStep),
    (MpsStep,),  # of the instances and modes of all GPUs
    (MemoryLimitStep, AdditionalDevicesStep),
    (VgpuStep,),
    (VfioStep,),  # NVML must be initialized anew after each of them
)

DOMAIN_KINDS: Final = (ChannelKind, DaemonKind)

DOMAIN_PHASES: Final = (
    (DaemonFolderStep, MembershipStep),
    (DaemonReadyStep,),  # waits, when the node is in the domain
)

CHECKS: Final[Mapping[str, Check]] = {
    "MIG": mig_findings,
    "time-slicing": time_slicing_findings,
    "MPS": mps_findings,
    "virtual machines": passthrough_findings,
    "vGPUs": vgpu_findings,
    "NVSwitches": fabric_findings,
}
"""The checks of kinds and features by their names, for the command `check`."""

REMAINS: Final = (MpsRemains,)
"""What features leave on a node, for the command `cleanup`."""

_LOOKS: Final = 3


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Everything that a plan depends on beside the claim.

    `pool` is this node's pool. `found` has the usable hardware of the claim's device names, and `gpus` has the node's
    GPUs by UUID. `policy` tells for which GPUs the MIG mode may be switched, and what enforces shares. `mps` tells how
    MPS can be served. `seen` is what NVML reports, or has reported, about GPUs for virtual machines, by address.
    `groups` are the GPUs of their IOMMU groups, the given one first. `variables` are KubeVirt's variables for the
    devices of each request. `switches` has the NVSwitch partitions.
    """

    pool: str
    found: Mapping[str, Found | None]
    gpus: Mapping[str, Gpu]
    policy: NodePolicy
    mps: MpsSupport
    seen: Mapping[str, SeenGpu]
    groups: Mapping[str, tuple[PciGpu, ...]]
    variables: Mapping[str, tuple[str, ...]]
    switches: SwitchFacts


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """Plans claims for GPUs. `policy` returns the node's current policy. With `mps_shared_memory`, clients of MPS get
    the /dev/shm of their daemon. `resource_of` reads the extended resources of DeviceClasses.
    """

    policy: Callable[[], NodePolicy] = NodePolicy
    mps_shared_memory: bool = True
    resource_of: ResourceOfClass = no_resource

    def driver(self) -> Driver:
        """The driver as the engine sees it."""
        return Driver(DRIVER_NAME, KINDS, PHASES, self.plan)

    def plan(self, node: Node, ref: ClaimRef, claim: ResourceClaim) -> Plan:
        """The plan of a claim. Raises PrepareError, ApiError, NoDriverError or NvmlError.

        A GPU may be taken for a virtual machine, or come back, while this looks at the node. Then inventory and marks
        contradict each other, and it looks again. Raises StoppedError if that happens too often. The first attempt
        begins with the GPUs that are known: whether they are current is found out at its end in any case.
        """
        for attempt in range(_LOOKS):
            gpus = node.gpus() if attempt else node.access.known()
            try:
                plan = plan_claim(ref, claim, self.look(node, gpus, claim))
            except (PrepareError, NvmlError):
                if gpus.is_current:
                    raise
            else:
                if gpus.is_current:
                    return plan
        raise StoppedError(f"GPUs of the node came and went while claim {ref} was planned; kubelet tries again")

    def look(self, node: Node, gpus: Gpus, claim: ResourceClaim) -> GpuFacts:
        """Read everything that the plan of a claim depends on."""
        policy, names = self.policy(), _names(claim, node.name)
        if any(_usable(gpus, name, policy) is None for name in names):
            gpus.refresh()  # the hardware may have changed
            missing = [name for name in names if _usable(gpus, name, policy) is None]
            _require_none_away(missing, node, gpus)
        found = {name: _usable(gpus, name, policy) for name in names}
        pci = [device for device in found.values() if isinstance(device, PciGpu)]
        groups = {gpu.address: _group(gpu, gpus) for gpu in pci}
        machines = any(isinstance(device, PciGpu | VgpuDevice) for device in found.values())
        whole = any(isinstance(device, PciGpu | Gpu) for device in found.values())
        return GpuFacts(
            pool=node.name,
            found=found,
            gpus={gpu.uuid: gpu for gpu in gpus.inventory.gpus},
            policy=policy,
            mps=MpsSupport(knows_protocol_3(gpus.inventory.driver_version), self.mps_shared_memory),
            seen={gpu.address: _seen(gpu, node, gpus) for group in groups.values() for gpu in group},
            groups=groups,
            variables=resource_variables(claim, self.resource_of) if machines else {},
            switches=node.session.fabric.read() if whole else NO_SWITCHES,
        )


def gpu_driver() -> Driver:
    """The driver for those who only read records or undo claims."""
    return GpuDriver().driver()


@dataclass(frozen=True, slots=True)
class DomainDriver:
    """Plans claims for channels and daemons. `find` finds ComputeDomains, `namespace` is that of the driver's own
    objects, and `host` is the node's own IMEX daemon, if that is the one to use.
    """

    find: FindDomain = unknown_domain
    namespace: str = ""
    host: HostDaemon | None = None

    def driver(self) -> Driver:
        """The driver as the engine sees it."""
        return Driver(DOMAIN_DRIVER_NAME, DOMAIN_KINDS, DOMAIN_PHASES, self.plan, {1: read_version_1})

    def plan(self, node: Node, ref: ClaimRef, claim: ResourceClaim) -> Plan:
        """The plan of a claim. Raises PrepareError, ApiError, NoDriverError or NvmlError. The PrepareError is an
        ObsoleteClaimError if the claim or its domain is gone or invalid.
        """
        try:
            request = requested(ref, claim, node.name)
            require_allowed(ref, request, self.namespace, host_managed=self.host is not None)
            domain = self.find(request.domain, "" if request.is_daemon else ref.namespace)
        except PrepareError as error:
            raise ObsoleteClaimError(str(error)) from None
        clique = clique_for(node, self.host, is_daemon=request.is_daemon)
        facts = DomainFacts(domain, clique, self.namespace, self.host is not None)
        return plan_domain_claim(ref, node.name, request, facts)


def domain_driver() -> Driver:
    """The driver compute-domain.nvidia.com for those who only read records or undo claims."""
    return DomainDriver().driver()


def plan_domain_claim(ref: ClaimRef, pool: str, request: DomainRequest, facts: DomainFacts) -> Plan:
    """The plan of a claim for a channel or a daemon. Pure."""
    devices, steps = devices_and_steps(request, facts)
    return Plan(ref, pool, devices, domain_driver().ordered(steps, devices))


# Looking


def _names(claim: ResourceClaim, pool: str) -> list[str]:
    results = claim.allocation.results if claim.allocation is not None else ()
    return [result.device for result in results if result.driver == DRIVER_NAME and result.pool == pool]


def _require_none_away(missing: list[str], node: Node, gpus: Gpus) -> None:
    """Raises PrepareError if a device is missing whose GPU may come back."""
    if missing and gpus.inventory.failures:
        reasons = "; ".join(f"GPU {failure.index}: {failure.reason}" for failure in gpus.inventory.failures)
        raise PrepareError(
            f"there is no device {missing[0]} on node {node.name} at the moment; these GPUs cannot be read: {reasons}"
        )
    if missing and (taken := node.taken.all()):
        addresses = ", ".join(mark.address for mark in taken)
        raise PrepareError(
            f"there is no device {missing[0]} on node {node.name} at the moment; these GPUs are bound to a vfio driver"
            f" for virtual machines: {addresses}; kubelet tries again"
        )


def _usable(gpus: Gpus, device: str, policy: NodePolicy) -> Found | None:
    """The hardware of a device name. None if its GPU is in the wrong MIG mode and must stay in it, or is a host of
    vGPUs, which no container can use.
    """
    found = gpus.find(device)
    gpu = gpus.inventory.gpu(found.gpu_uuid) if isinstance(found, MigDevice) else found
    if not isinstance(gpu, Gpu):
        return found
    usable = gpu.vgpu_host is None and (gpu.in_mig_mode is isinstance(found, MigDevice) or may_switch(gpu, policy))
    return found if usable else None


def _group(pci: PciGpu, gpus: Gpus) -> tuple[PciGpu, ...]:
    return (pci, *(other for other in gpus.inventory.pci_gpus if other.address in pci.group_gpus))


def _seen(pci: PciGpu, node: Node, gpus: Gpus) -> SeenGpu:
    """What NVML reports about a GPU on the PCI bus, or reported before it was taken for a virtual machine."""
    gpu = next((known for known in gpus.inventory.gpus if known.pci_address == pci.address), None)
    if gpu is not None:
        return SeenGpu(gpu, gpu.uuid, gpu.module_id)
    mark = node.taken.get(pci.address)
    uuid = "" if mark is None else mark.gpu_uuid
    return SeenGpu(None, uuid, node.of(FabricPartitions).marks.module_of(uuid))


# Planning. Pure.


class _Planned:
    """What has been planned of a claim so far: devices of all kinds, and the steps that each of them needs by itself.
    `allotted` are the devices of containers, without administrators'. `members` are whole GPUs, for NVSwitch
    partitions.
    """

    def __init__(self, ref: ClaimRef, claim: ResourceClaim, facts: GpuFacts) -> None:
        self.ref = ref
        self.claim = claim
        self.facts = facts
        self.devices: list[Device] = []
        self.steps: list[Step] = []
        self.allotted: list[Allotted] = []
        self.machines: list[Chosen] = []
        self.members: list[MemberGpu] = []

    def add(self, result: AllocatedDevice, kind: Kind, name: str = "") -> Device:
        """Add a device of a result, by default with the name in it."""
        name = name or result.device
        device = Device(name, result.base_request, kind, result.admin_access, result.share_id)
        self.devices.append(device)
        return device

    def chosen(self, result: AllocatedDevice, kind: type[DeviceConfig]) -> Chosen:
        """The configuration of a result. Raises PrepareError."""
        try:
            return config_for(result, kind, self.claim)
        except ConfigError as error:
            raise PrepareError(str(error)) from None


def plan_claim(ref: ClaimRef, claim: ResourceClaim, facts: GpuFacts) -> Plan:
    """The plan for the devices of `claim` that belong to this driver. Raises PrepareError."""
    planned = _Planned(ref, claim, facts)
    for result in allocated(ref, claim, DRIVER_NAME):
        found = _found(result, facts)
        _FORMS[type(found)](planned, result, found)
    _require_one_backend(planned.machines)
    planned.steps += [
        *fabric_steps(planned.members, facts.switches),
        *time_slicing_steps(planned.allotted),
        *mps_steps(planned.allotted, ref.uid, facts.mps),
    ]
    for allotted in planned.allotted:
        planned.steps += [*memory_limit_steps(allotted), *additional_device_steps(allotted, facts.policy)]
    devices = tuple(planned.devices)
    return Plan(ref, facts.pool, devices, gpu_driver().ordered(planned.steps, devices))


def _found(result: AllocatedDevice, facts: GpuFacts) -> Found:
    if result.pool != facts.pool:
        raise PrepareError(f"device {result.device} is in pool {result.pool}, which is not on this node ({facts.pool})")
    found = facts.found.get(result.device)
    if found is None:
        raise PrepareError(
            f"there is no device {result.device} on node {facts.pool}: the GPU was removed or its MIG mode was changed"
            " after the claim was allocated; delete the pod to have it scheduled again"
        )
    return found


def _plan_gpu(planned: _Planned, result: AllocatedDevice, gpu: Gpu) -> None:
    _plan_container(planned, result, GpuKind.of(gpu), gpu, GpuConfig)
    if not result.admin_access:
        planned.members.append((result.device, gpu.uuid, gpu.module_id))
        planned.steps += whole_gpu_steps(gpu, planned.facts.policy)


def _plan_mig(planned: _Planned, result: AllocatedDevice, found: MigDevice) -> None:
    gpu = planned.facts.gpus[found.gpu_uuid]
    _plan_container(planned, result, MigKind(found), gpu, MigDeviceConfig)
    if result.admin_access:
        planned.steps.append(LookStep(result.device, found))
    else:
        planned.steps.append(MigModeStep(gpu.uuid, True, may_switch(gpu, planned.facts.policy)))
        planned.steps.append(InstanceStep(result.device, found))


def _plan_container(
    planned: _Planned, result: AllocatedDevice, kind: ContainerKind, gpu: Gpu, config: type[DeviceConfig]
) -> None:
    """Plan a device of containers. The settings of a device with admin access are not changed."""
    device = planned.add(result, kind)
    if not result.admin_access:
        limits = share_limits(result, gpu, kind.part is not None, planned.facts.policy)
        planned.allotted.append(Allotted(device, kind, gpu, planned.chosen(result, config), limits))


def _plan_vfio(planned: _Planned, result: AllocatedDevice, found: PciGpu) -> None:
    """Plan a GPU of a virtual machine, and the other GPUs of its IOMMU group."""
    facts = planned.facts
    planned.machines.append(planned.chosen(result, VfioDeviceConfig))
    access = passthrough_of(planned.machines[-1].config, facts.variables.get(result.request, ()))
    added: list[Device] = []
    for pci in facts.groups[found.address]:
        seen, name = facts.seen[pci.address], result.device if pci is found else vfio_name(pci)
        kind = vfio_kind(result, pci, seen, facts.policy, access)
        added.append(planned.add(result, kind, name))
        planned.members.append((name, kind.gpu_uuid, seen.module_id))
        planned.steps += whole_gpu_steps(seen.gpu, facts.policy) if seen.gpu is not None else ()
    planned.steps += [vfio_step(device.name, added) for device in added]


def _plan_vgpu(planned: _Planned, result: AllocatedDevice, found: VgpuDevice) -> None:
    planned.machines.append(planned.chosen(result, VfioDeviceConfig))
    access = passthrough_of(planned.machines[-1].config, planned.facts.variables.get(result.request, ()))
    kind = vgpu_kind(result, found, planned.ref.uid, access)
    planned.add(result, kind)
    planned.steps.append(VgpuStep(result.device, kind))


_FORMS: Final[Mapping[type, Callable[[_Planned, AllocatedDevice, Any], None]]] = {
    Gpu: _plan_gpu,
    MigDevice: _plan_mig,
    PciGpu: _plan_vfio,
    VgpuDevice: _plan_vgpu,
}
"""How each form of hardware is planned."""


def _require_one_backend(machines: list[Chosen]) -> None:
    try:
        require_one_backend(machines)
    except ConfigError as error:
        raise PrepareError(str(error)) from None
