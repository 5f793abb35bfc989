# SPDX-License-Identifier: Apache-2.0
"""The plan of a claim: from allocation and configuration to devices and the steps that make them ready. Pure.

A plan is recorded before any step is done. Everything that is done, answered or undone later follows from the plan
alone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

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
from dra_driver.gpu.devices import VgpuDevice, vfio_name
from dra_driver.gpu.fabric import SwitchFacts
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.policy import Enforcement, MigPolicy, NodePolicy
from dra_driver.kube.resource import AllocatedDevice, ResourceClaim
from dra_driver.names import DRIVER_NAME, AdditionalDevice

from ..errors import PrepareError
from ..kinds.targets import ClaimRef, ContainerTarget, Found, MigSlot, Target, VfioGpu, Vgpu, WholeGpu
from ..kinds.vfio.binder import VfioAccess
from ..kinds.vfio.passthrough import NOTHING_EXTRA, Passthrough, SeenGpu, passthrough_of, vfio_target, vgpu_target
from ..steps import InstanceStep, LookStep, MigModeStep, MpsStep, Step, VfioStep, VgpuStep
from .fabric import MemberGpu, fabric_steps
from .sharing import Configured, MpsSupport, enforced, mps_steps, setting_steps


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """An allocated device, once for each result of the allocation. Devices with `admin` access are injected
    unchanged. `passthrough` has a meaning only for GPUs of virtual machines.

    `memory_limit` is the most GPU memory, in MiB, that containers with this share may allocate, if NVML limits it.
    Containers also get `additional_devices`. `has_plain_name` marks a share of a record before version 5: running
    containers know its CDI device without the share's ID.
    """

    name: str
    request: str
    target: Target
    admin: bool = False
    share_id: str | None = None
    passthrough: Passthrough = NOTHING_EXTRA
    memory_limit: int | None = None
    additional_devices: tuple[AdditionalDevice, ...] = ()
    has_plain_name: bool = False

    @property
    def cdi_name(self) -> str:
        """The name of the CDI device in the claim's spec. A claim may have several shares of one device."""
        return self.name if self.share_id is None or self.has_plain_name else f"{self.name}-{self.share_id}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a claim needs on this node. `pool` is the pool of all its devices. The steps are done in their order, and
    undone in reverse order.
    """

    claim: ClaimRef
    pool: str
    devices: tuple[PlannedDevice, ...]
    steps: tuple[Step, ...] = ()

    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of the plan's GPUs, without duplicates."""
        return tuple(dict.fromkeys(one.target.gpu_uuid for one in self.devices))

    def given(self) -> tuple[PlannedDevice, ...]:
        """The devices that containers are given by name. GPUs that share an IOMMU group are given by the first of them,
        which is the device that was allocated.
        """
        leaders: dict[object, PlannedDevice] = {}
        for one in self.devices:
            target = one.target
            leaders.setdefault((one.request, target.group) if isinstance(target, VfioGpu) else id(one), one)
        return tuple(leaders.values())

    def mps(self) -> tuple[MpsStep, ...]:
        """The steps for MPS."""
        return tuple(step for step in self.steps if isinstance(step, MpsStep))


def make_plan(
    ref: ClaimRef,
    claim: ResourceClaim,
    pool: str,
    find: Callable[[str], Found | None],
    policy: NodePolicy,
    mps: MpsSupport,
    seen: Callable[[PciGpu], SeenGpu],
    variables: Mapping[str, tuple[str, ...]],
    switches: SwitchFacts,
    group: Callable[[PciGpu], tuple[PciGpu, ...]],
    gpu_with: Callable[[str], Gpu | None],
) -> Plan:
    """The plan for the devices of `claim` that belong to this driver.

    `pool` is this node's pool. `find` returns the hardware of a device name in it. `policy` tells for which GPUs the
    MIG mode may be switched, and what enforces shares. `mps` tells how MPS can be served. `seen` tells what NVML
    reports, or has reported, about a GPU for virtual machines. `variables` are KubeVirt's variables for the devices of
    each request. `switches` has the NVSwitch partitions. `group` gives the GPUs of an IOMMU group, the given one first.
    `gpu_with` gives the GPU with a UUID. Raises PrepareError.
    """
    ours = allocated(ref, claim, DRIVER_NAME)
    found = [_found(result, pool, find) for result in ours]
    devices: list[PlannedDevice] = []
    configured: list[Configured] = []
    machines: list[Chosen] = []
    gpus: list[Gpu] = []
    members: list[MemberGpu] = []
    for result, one in zip(ours, found, strict=True):
        if isinstance(one, PciGpu | VgpuDevice):
            machines.append(_chosen(result, VfioDeviceConfig, claim))
            access = passthrough_of(machines[-1].config, variables.get(result.request, ()))
            if isinstance(one, VgpuDevice):
                devices.append(replace(_device(result, vgpu_target(result, one, ref.uid)), passthrough=access))
                continue
            for pci in group(one):
                known, name = seen(pci), result.device if pci is one else vfio_name(pci)
                machine = vfio_target(result, pci, known, policy)
                devices.append(replace(_device(result, machine), name=name, passthrough=access))
                gpus += [known.gpu] if known.gpu is not None else []
                members.append((name, machine.gpu_uuid, known.module_id))
            continue
        gpu = one if isinstance(one, Gpu) else gpu_with(one.gpu_uuid)
        assert gpu is not None, "the device was found on this GPU"
        target, kind = _target(one)
        device = _device(result, target)
        gpus.append(gpu)
        if not result.admin_access:  # an administrator's devices are used unchanged
            by, limits = enforced(result, gpu, isinstance(target, MigSlot), policy)
            share = limits if by is Enforcement.MPS else None
            members += [(result.device, gpu.uuid, gpu.module_id)] if isinstance(target, WholeGpu) else []
            chosen = _chosen(result, kind, claim)
            configured.append(Configured(result.device, target, gpu, chosen, share))
            wanted = (*policy.for_gpu(gpu).additional_devices, *_additional(chosen.config))
            device = replace(device, additional_devices=tuple(dict.fromkeys(wanted)))
            if limits is not None and by is Enforcement.MEMORY_LIMITS:
                device = replace(device, memory_limit=limits.memory)
        devices.append(device)
    _require_one_backend(machines)
    switchable = {gpu.uuid for gpu in gpus if may_switch(gpu, policy)}
    splittable = {gpu.uuid for gpu in gpus if gpu.mig_mode is not None}
    steps = steps_for(tuple(devices), splittable, switchable, setting_steps(configured))
    steps = (*fabric_steps(members, switches), *steps, *mps_steps(configured, ref.uid, mps), *_machine_steps(devices))
    return Plan(ref, pool, tuple(devices), steps)


def allocated(ref: ClaimRef, claim: ResourceClaim, driver: str) -> list[AllocatedDevice]:
    """The devices of `driver` that are allocated to the claim which kubelet calls `ref`. Raises PrepareError."""
    if claim.metadata.uid != ref.uid:
        raise PrepareError(
            f"ResourceClaim {ref} has UID {claim.metadata.uid}, not {ref.uid}: it was deleted and created again"
        )
    if claim.allocation is None:
        raise PrepareError(f"ResourceClaim {ref} is not allocated")
    return [result for result in claim.allocation.results if result.driver == driver]


def may_switch(gpu: Gpu, policy: NodePolicy) -> bool:
    """Whether the MIG mode of a GPU can be switched for claims, and the policy wants that."""
    return gpu.mig_switchable and policy.for_gpu(gpu).mig is MigPolicy.DYNAMIC


def steps_for(
    devices: tuple[PlannedDevice, ...], splittable: set[str], switchable: set[str], settings: Iterable[Step] = ()
) -> tuple[Step, ...]:
    """The steps that make the devices ready, without duplicates: first a GPU's MIG mode, then the instances on it, then
    its `settings`.

    `splittable` are the UUIDs of GPUs with MIG, and `switchable` those whose mode may be switched.
    """
    steps: list[Step] = []
    for device in devices:
        target = device.target
        if isinstance(target, MigSlot):
            if device.admin:
                steps.append(LookStep(device.name, target))
            else:
                steps.append(MigModeStep(target.gpu_uuid, True, target.gpu_uuid in switchable))
                steps.append(InstanceStep(device.name, target))
        elif not device.admin and target.gpu_uuid in splittable:
            steps.append(MigModeStep(target.gpu_uuid, False, target.gpu_uuid in switchable))
    steps += settings
    return tuple(dict.fromkeys(sorted(steps, key=lambda step: _order(step, devices))))


def _machine_steps(devices: Iterable[PlannedDevice]) -> tuple[Step, ...]:
    """The steps that create vGPUs, and those that take GPUs from NVIDIA's driver. The latter come last, because NVML
    must be initialized anew after each of them.
    """
    devices = tuple(devices)
    vgpus = dict.fromkeys(VgpuStep(one.target) for one in devices if isinstance(one.target, Vgpu))
    return (*vgpus, *dict.fromkeys(vfio_step(one, devices) for one in devices if isinstance(one.target, VfioGpu)))


def vfio_step(device: PlannedDevice, devices: Iterable[PlannedDevice]) -> VfioStep:
    """The step for a GPU of a claim with these devices."""
    gpu, access = device.target, device.passthrough
    assert isinstance(gpu, VfioGpu)
    targets = dict.fromkeys(one.target for one in devices)
    others = (one for one in targets if isinstance(one, VfioGpu) and one.group == gpu.group and one != gpu)
    return VfioStep(gpu, tuple(others), VfioAccess(access.prefer_iommufd, access.api_device))


def _order(step: Step, devices: tuple[PlannedDevice, ...]) -> int:
    """A sort key: the steps of one GPU follow each other, and GPUs are in the order of the devices."""
    return next(index for index, one in enumerate(devices) if one.target.gpu_uuid == step.gpu_uuid)


def _found(result: AllocatedDevice, pool: str, find: Callable[[str], Found | None]) -> Found:
    if result.pool != pool:
        raise PrepareError(f"device {result.device} is in pool {result.pool}, which is not on this node ({pool})")
    found = find(result.device)
    if found is None:
        raise PrepareError(
            f"there is no device {result.device} on node {pool}: the GPU was removed or its MIG mode was changed"
            " after the claim was allocated; delete the pod to have it scheduled again"
        )
    return found


def _device(result: AllocatedDevice, target: Target) -> PlannedDevice:
    return PlannedDevice(result.device, result.base_request, target, result.admin_access, result.share_id)


def _chosen(result: AllocatedDevice, kind: type[DeviceConfig], claim: ResourceClaim) -> Chosen:
    try:
        return config_for(result, kind, claim)
    except ConfigError as error:
        raise PrepareError(str(error)) from None


def _additional(config: DeviceConfig) -> tuple[AdditionalDevice, ...]:
    return () if isinstance(config, VfioDeviceConfig) else config.additional_devices


def _require_one_backend(machines: Iterable[Chosen]) -> None:
    try:
        require_one_backend(machines)
    except ConfigError as error:
        raise PrepareError(str(error)) from None


def _target(found: Gpu | MigDevice) -> tuple[ContainerTarget, type[DeviceConfig]]:
    if isinstance(found, Gpu):
        return WholeGpu(found.uuid, found.minor, found.pci_address or ""), GpuConfig
    return MigSlot(
        found.gpu_uuid,
        found.minor,
        found.profile,
        found.profile_id,
        found.slices,
        found.placement,
        found.pci_address,
    ), MigDeviceConfig
