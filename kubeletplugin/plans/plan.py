# SPDX-License-Identifier: Apache-2.0
"""The plan of a claim: from allocation and configuration to devices and the steps that make them ready. Pure.

A plan is recorded before any step is done. Everything that is done, answered or undone later follows from the plan
alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dra_driver import DRIVER_NAME
from dra_driver.config import (
    Chosen,
    ConfigError,
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
    config_for,
)
from dra_driver.gpu.devices import MigPlacement
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.resource import AllocatedDevice, ResourceClaim

from ..hardware.targets import ClaimRef, Found, MigSlot, PrepareError, Target, WholeGpu
from ..steps import InstanceStep, LookStep, MigModeStep, MpsStep, Step
from .sharing import NO_MPS_3, Configured, MpsSupport, mps_steps, setting_steps


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """An allocated device, once for each result of the allocation. Devices with `admin` access are injected
    unchanged.
    """

    name: str
    request: str
    target: Target
    admin: bool = False
    share_id: str | None = None


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

    def mps(self) -> tuple[MpsStep, ...]:
        """The steps for MPS."""
        return tuple(step for step in self.steps if isinstance(step, MpsStep))

    def slots(self) -> tuple[tuple[str, MigSlot], ...]:
        """The MIG devices to create, by device name, without duplicates."""
        slots = {one.name: one.target for one in self.devices if isinstance(one.target, MigSlot) and not one.admin}
        return tuple(slots.items())


def make_plan(
    ref: ClaimRef,
    claim: ResourceClaim,
    pool: str,
    find: Callable[[str], Found | None],
    may_switch: Callable[[Gpu], bool] = lambda _: False,
    mps: MpsSupport = NO_MPS_3,
) -> Plan:
    """The plan for the devices of `claim` that belong to this driver.

    `pool` is this node's pool. `find` returns the hardware of a device name in it. `may_switch` tells whether the MIG
    mode of a GPU may be switched for a claim. `mps` tells how MPS can be served. Raises PrepareError.
    """
    if claim.metadata.uid != ref.uid:
        raise PrepareError(
            f"ResourceClaim {ref} has UID {claim.metadata.uid}, not {ref.uid}: it was deleted and created again"
        )
    if claim.allocation is None:
        raise PrepareError(f"ResourceClaim {ref} is not allocated")
    ours = [result for result in claim.allocation.results if result.driver == DRIVER_NAME]
    found = [_found(result, pool, find) for result in ours]
    planned = [_planned(result, one, claim) for result, one in zip(ours, found, strict=True)]
    devices = tuple(device for device, _ in planned)
    switchable = {gpu.uuid for gpu in map(gpu_of, found) if may_switch(gpu)}
    splittable = {gpu.uuid for gpu in map(gpu_of, found) if gpu.mig_mode is not None}
    configured = [
        Configured(device.name, device.target, gpu_of(one), chosen)
        for (device, chosen), one in zip(planned, found, strict=True)
        if chosen is not None
    ]
    steps = steps_for(devices, splittable, switchable, setting_steps(configured))
    return Plan(ref, pool, devices, (*steps, *mps_steps(configured, ref.uid, mps)))


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
        elif not device.admin and target.uuid in splittable:
            steps.append(MigModeStep(target.uuid, False, target.uuid in switchable))
    steps += settings
    return tuple(dict.fromkeys(sorted(steps, key=lambda step: _order(step, devices))))


def _order(step: Step, devices: tuple[PlannedDevice, ...]) -> int:
    """A sort key: the steps of one GPU follow each other, and GPUs are in the order of the devices."""
    return next(index for index, one in enumerate(devices) if one.target.gpu_uuid == step.gpu_uuid)


def _found(result: AllocatedDevice, pool: str, find: Callable[[str], Found | None]) -> Gpu | MigPlacement:
    if result.pool != pool:
        raise PrepareError(f"device {result.device} is in pool {result.pool}, which is not on this node ({pool})")
    found = find(result.device)
    if isinstance(found, PciGpu):
        raise PrepareError(
            f"device {result.device} is a GPU for a virtual machine: this version of the driver cannot bind GPUs to"
            " vfio-pci; ask for a device of type gpu or mig"
        )
    if found is None:
        raise PrepareError(
            f"there is no device {result.device} on node {pool}: the GPU was removed or its MIG mode was changed"
            " after the claim was allocated; delete the pod to have it scheduled again"
        )
    return found


def gpu_of(found: Gpu | MigPlacement) -> Gpu:
    """The GPU of a whole GPU or MIG placement."""
    return found if isinstance(found, Gpu) else found.gpu


def _planned(
    result: AllocatedDevice, found: Gpu | MigPlacement, claim: ResourceClaim
) -> tuple[PlannedDevice, Chosen | None]:
    """The device and its configuration. Devices of administrators have none, because they are used unchanged."""
    target, kind = _target(found)
    device = PlannedDevice(result.device, result.base_request, target, result.admin_access, result.share_id)
    if result.admin_access:
        return device, None
    try:
        return device, config_for(result, kind, claim)
    except ConfigError as error:
        raise PrepareError(str(error)) from None


def _target(found: Gpu | MigPlacement) -> tuple[Target, type[DeviceConfig]]:
    if isinstance(found, Gpu):
        return WholeGpu(found.uuid, found.minor, found.pci_address or ""), GpuConfig
    gpu, info = found.gpu, found.profile.info
    name = found.profile.name
    pci_address = (gpu.pci_address or "") if "gfx" in name.partition("+")[2] else ""
    slot = MigSlot(gpu.uuid, gpu.minor, name, info.id, info.slice_count, found.placement, pci_address)
    return slot, MigDeviceConfig
