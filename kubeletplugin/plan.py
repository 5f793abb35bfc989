# SPDX-License-Identifier: Apache-2.0
"""What has to be done on the node for a claim: allocation and configuration -> devices to make ready.

Pure, and all that the rest needs to know of a claim: a plan is recorded before anything is done, and whatever is
done, answered or undone later follows from it alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dra_driver import DRIVER_NAME
from dra_driver.config import ConfigError, DeviceConfig, GpuConfig, MigDeviceConfig, config_for
from dra_driver.gpu.devices import MigPlacement
from dra_driver.gpu.inventory import Gpu
from dra_driver.gpu.nvml import Placement
from dra_driver.resource import AllocatedConfiguration, AllocatedDevice, ResourceClaim


class PrepareError(Exception):
    """A claim cannot be prepared. The text reaches the pod's events: it says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """How kubelet names a claim."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class WholeGpu:
    """A whole GPU."""

    uuid: str
    minor: int
    pci_address: str


@dataclass(frozen=True, slots=True)
class MigSlot:
    """A MIG device: where on which GPU its GPU instance is to be. One compute instance of `slices` fills it."""

    gpu_uuid: str
    minor: int
    profile: str
    profile_id: int
    slices: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class MigInstanceIds:
    """The instances behind a MIG device once they exist. `made` is false for ones that were there before."""

    gpu_instance: int
    compute_instance: int
    uuid: str
    made: bool = True


Target = WholeGpu | MigSlot
"""What an allocated device is on the hardware."""


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """An allocated device, once for each result of the allocation. `admin` ones are injected as they are."""

    name: str
    request: str
    target: Target
    admin: bool = False
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a claim needs on this node; `pool` is the pool of all its devices."""

    claim: ClaimRef
    pool: str
    devices: tuple[PlannedDevice, ...]

    def slots(self) -> tuple[tuple[str, MigSlot], ...]:
        """The MIG devices to make, by device name, each once."""
        slots = {one.name: one.target for one in self.devices if isinstance(one.target, MigSlot) and not one.admin}
        return tuple(slots.items())

    def exclusive(self) -> frozenset[str]:
        """The names of the devices that no other claim may use meanwhile."""
        return frozenset(one.name for one in self.devices if not one.admin and one.share_id is None)


def make_plan(ref: ClaimRef, claim: ResourceClaim, pool: str, find: Callable[[str], Gpu | MigPlacement | None]) -> Plan:
    """The plan for the devices of `claim` that are this driver's.

    `pool` is this node's, `find` tells what a device name of it stands for. Raises PrepareError.
    """
    if claim.metadata.uid != ref.uid:
        raise PrepareError(
            f"ResourceClaim {ref} has UID {claim.metadata.uid}, not {ref.uid}: it was deleted and made anew meanwhile"
        )
    if claim.allocation is None:
        raise PrepareError(f"ResourceClaim {ref} is not allocated")
    ours = [result for result in claim.allocation.results if result.driver == DRIVER_NAME]
    devices = tuple(_planned(result, pool, find, claim.allocation.config) for result in ours)
    return Plan(ref, pool, devices)


def _planned(
    result: AllocatedDevice,
    pool: str,
    find: Callable[[str], Gpu | MigPlacement | None],
    configs: tuple[AllocatedConfiguration, ...],
) -> PlannedDevice:
    if result.pool != pool:
        raise PrepareError(f"device {result.device} is in pool {result.pool}, which is not on this node ({pool})")
    found = find(result.device)
    if found is None:
        raise PrepareError(
            f"there is no device {result.device} on node {pool}: the GPU went away or its MIG mode was changed"
            " after the claim was allocated; delete the pod to have it scheduled anew"
        )
    target, kind = _target(found)
    if not result.admin_access:  # administrators look at a device as it is, they never configure it
        try:
            _require_supported(result, config_for(result, kind, configs))
        except ConfigError as error:
            raise PrepareError(str(error)) from None
    return PlannedDevice(result.device, result.base_request, target, result.admin_access, result.share_id)


def _target(found: Gpu | MigPlacement) -> tuple[Target, type[DeviceConfig]]:
    if isinstance(found, Gpu):
        return WholeGpu(found.uuid, found.minor, found.pci_address or ""), GpuConfig
    gpu, info = found.gpu, found.profile.info
    slot = MigSlot(gpu.uuid, gpu.minor, found.profile.name, info.id, info.slice_count, found.placement)
    return slot, MigDeviceConfig


def _require_supported(result: AllocatedDevice, config: DeviceConfig) -> None:
    if config.sharing is not None:
        raise PrepareError(
            f"request {result.request} asks for sharing strategy {config.sharing.strategy}, which this version of the"
            " driver cannot apply; containers of one pod, or pods with one claim, share a device without it"
        )
