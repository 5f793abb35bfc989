# SPDX-License-Identifier: Apache-2.0
"""From the name of a claim to its plan: the claim in the API server, the node's devices, and the other claims.

Two claims have a device at the same time only as shares of it (consumable capacity), or when one of them has
administrator access. The scheduler ensures that with counters, but an API server of an older release drops counters,
and anybody who may write a claim's status can bypass the scheduler. So overlapping devices are refused here: the same
device, a GPU and its MIG devices, MIG devices that share memory slices.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from dra_driver.gpu.devices import VgpuDevice
from dra_driver.gpu.fabric import NO_SWITCHES, SwitchFacts
from dra_driver.gpu.fabric_marks import FabricMarks
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.policy import NodePolicy
from dra_driver.kube.api import ApiClient, ApiError, Connection, Kind, NotFoundError, claims_of, newest_dialect
from dra_driver.kube.api.client import JSON
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import DecodeError, Dialect, decode_claim
from dra_driver.names import DRIVER_NAME

from ..errors import ClaimGoneError, PrepareError
from ..features.mps.services import knows_protocol_3
from ..kinds.targets import ClaimRef, Found, MigSlot, Target, Vgpu
from ..kinds.vfio.passthrough import SeenGpu
from ..node.gpus import Gpus
from ..steps import MpsStep, TimeSliceStep
from .plan import Plan, PlannedDevice, make_plan, may_switch
from .resources import ResourceOfClass, no_resource, resource_variables
from .sharing import MpsSupport

T = TypeVar("T")

FetchClaim = Callable[[ClaimRef], ResourceClaim]
"""Reads a claim from the API server. May raise ApiError, PrepareError, or ClaimGoneError if there is no such claim."""


class Planner:
    """Plans claims for the node's `pool`. `policy` returns the node's current policy. With `mps_shared_memory`, clients
    of MPS get the /dev/shm of their daemon. `taken` are the GPUs of virtual machines. `resource_of` reads the extended
    resources of classes, for claims of virtual machines. `switches` reads the NVSwitch partitions, of which `marked`
    belong to claims.
    """

    def __init__(
        self,
        pool: str,
        fetch: FetchClaim,
        policy: Callable[[], NodePolicy] = NodePolicy,
        mps_shared_memory: bool = True,
        *,
        taken: VfioMarks,
        marked: FabricMarks,
        switches: Callable[[], SwitchFacts],
        resource_of: ResourceOfClass = no_resource,
    ) -> None:
        self._taken = taken
        self._marked = marked
        self._switches = switches
        self._resource_of = resource_of
        self._pool = pool
        self._mps_shared_memory = mps_shared_memory
        self._fetch = fetch
        self._policy = policy

    def plan(self, ref: ClaimRef, gpus: Gpus) -> Plan:
        """The plan of the claim. Raises ApiError, PrepareError or NvmlError."""
        claim = self._fetch(ref)
        results = claim.allocation.results if claim.allocation is not None else ()
        names = [one.device for one in results if one.driver == DRIVER_NAME and one.pool == self._pool]
        policy = self._policy()
        if any(_usable(gpus, name, policy) is None for name in names):
            gpus.refresh()  # the hardware may have changed
            missing = [name for name in names if _usable(gpus, name, policy) is None]
            if missing and gpus.inventory.failures:
                reasons = "; ".join(f"GPU {one.index}: {one.reason}" for one in gpus.inventory.failures)
                raise PrepareError(
                    f"there is no device {missing[0]} on node {self._pool} at the moment; these GPUs cannot be read:"
                    f" {reasons}"
                )
            if missing and (taken := self._taken.all()):
                addresses = ", ".join(mark.address for mark in taken)
                raise PrepareError(
                    f"there is no device {missing[0]} on node {self._pool} at the moment; these GPUs are bound to a"
                    f" vfio driver for virtual machines: {addresses}; kubelet tries again"
                )
        found = [_usable(gpus, name, policy) for name in names]
        machines = any(isinstance(one, PciGpu | VgpuDevice) for one in found)
        whole = any(isinstance(one, PciGpu | Gpu) for one in found)
        variables = resource_variables(claim, self._resource_of) if machines else {}
        mps = MpsSupport(knows_protocol_3(gpus.inventory.driver_version), self._mps_shared_memory)
        return make_plan(
            ref,
            claim,
            self._pool,
            lambda name: _usable(gpus, name, policy),
            policy,
            mps,
            partial(self._seen, gpus),
            variables,
            self._switches() if whole else NO_SWITCHES,
            lambda pci: (pci, *(one for one in gpus.inventory.pci_gpus if one.address in pci.group_gpus)),
            gpus.inventory.gpu,
        )

    def is_gone(self, ref: ClaimRef) -> bool | None:
        """Whether the API server has no such claim. None if it does not answer."""
        return is_gone(self._fetch, ref)

    def _seen(self, gpus: Gpus, pci: PciGpu) -> SeenGpu:
        """What NVML reports about a GPU on the PCI bus, or reported before it was taken for a virtual machine."""
        gpu = next((one for one in gpus.inventory.gpus if one.pci_address == pci.address), None)
        if gpu is not None:
            return SeenGpu(gpu, gpu.uuid, gpu.module_id)
        mark = self._taken.get(pci.address)
        uuid = "" if mark is None else mark.gpu_uuid
        return SeenGpu(None, uuid, self._marked.module_of(uuid))


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


def is_gone(fetch: FetchClaim, ref: ClaimRef) -> bool | None:
    """Whether the API server has no such claim. None if it does not answer."""
    try:
        return fetch(ref).metadata.uid != ref.uid
    except ClaimGoneError:
        return True
    except ApiError:
        return None
    except PrepareError:  # the claim exists, but is invalid
        return False


class ClaimReader:
    """Reads claims in the newest API version of the server, which is found out once, and again if that version no
    longer exists after an upgrade of the cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._client = ApiClient(connection)
        self._dialect: Dialect | None = None

    def __call__(self, ref: ClaimRef) -> ResourceClaim:
        """The claim. Raises ApiError, ClaimGoneError if there is none, or PrepareError if it is invalid."""
        try:
            value = self.get(ref)
        except NotFoundError:
            text = f"there is no ResourceClaim {ref}: it was deleted after the pod was scheduled"
            raise ClaimGoneError(text) from None
        try:
            return decode_claim(value, self.dialect(), strict=False)
        except DecodeError as error:
            raise PrepareError(f"ResourceClaim {ref} cannot be read: {error}") from None

    def get(self, ref: ClaimRef) -> JSON:
        """The claim as JSON. Raises ApiError, for example NotFoundError."""
        return self.in_newest_version(lambda kind: self._client.get(kind, ref.name, ref.namespace))

    def in_newest_version(self, request: Callable[[Kind], T]) -> T:
        """The answer to a request for a claim. Raises ApiError."""
        dialect = self.dialect()
        try:
            return request(claims_of(dialect))
        except NotFoundError:
            self._dialect = newest_dialect(self._client)
            if self._dialect == dialect:
                raise
            return request(claims_of(self._dialect))

    def dialect(self) -> Dialect:
        """The API version. Raises ApiError."""
        dialect = self._dialect = self._dialect or newest_dialect(self._client)
        return dialect


def require_no_overlap(plan: Plan) -> None:
    """Raises PrepareError if two devices of one claim exclude each other."""
    for first, second in itertools.combinations(plan.devices, 2):
        if first.name != second.name and exclusive(first, second):
            raise PrepareError(
                f"devices {first.name} and {second.name} of one claim are the same part of GPU"
                f" {first.target.gpu_uuid}: only one of them can be allocated"
            )


def conflicts(plan: Plan, others: Iterable[Plan]) -> Iterable[tuple[str, str, Plan]]:
    """(Device, the other plan's device, the other plan) of every pair that excludes each other."""
    for other in others:
        for mine, theirs in itertools.product(plan.devices, other.devices):
            if exclusive(mine, theirs):
                yield mine.name, theirs.name, other


def require_same_interval(plan: Plan, others: Iterable[Plan]) -> None:
    """Raises PrepareError if other requests of the claim, or other claims, need another time-slice interval
    of a GPU.
    """
    mine = {step.gpu_uuid: step for step in _intervals(plan)}
    for own in _intervals(plan):
        if own != mine[own.gpu_uuid]:
            raise PrepareError(
                f"the claim asks for two time-slice intervals of GPU {own.gpu_uuid}, {own.interval} and"
                f" {mine[own.gpu_uuid].interval}: a GPU has one"
            )
    for other in others:
        for step in _intervals(other):
            own = mine.get(step.gpu_uuid, step)
            if own != step:
                raise PrepareError(
                    f"claim {plan.claim} asks for time-slice interval {own.interval} of GPU {step.gpu_uuid}, and claim"
                    f" {other.claim}, which has a share of it, for {step.interval}: a GPU has one interval, so use the"
                    " same, or leave sharing out of one of them"
                )


def require_same_mps(plan: Plan, others: Iterable[Plan]) -> None:
    """Raises PrepareError if MPS serves other requests of the claim, or another claim with a share of one of its
    devices, in another way or not at all. A device has one daemon, and a whole GPU with MPS admits no other processes.
    """
    for step in plan.mps():
        for one in plan.devices:
            _require_served(step, plan, plan, one)
    for other in others:
        for step in plan.mps():
            for one in other.devices:
                _require_served(step, plan, other, one)
        for step in other.mps():
            for one in plan.devices:
                _require_served(step, other, plan, one)


def _require_served(step: MpsStep, owner: Plan, plan: Plan, device: PlannedDevice) -> None:
    """Raises PrepareError if the device of `plan` is affected by the step of `owner` and cannot be served together with
    it.
    """
    if device.admin or device.target not in step.targets:
        return
    mine = [one for one in plan.mps() if device.target in one.targets]
    if mine and all(one.is_served_with(step) for one in mine):
        return
    raise PrepareError(
        f"claim {plan.claim} uses device {device.name} {'with other MPS limits or devices' if mine else 'without MPS'},"
        f" and claim {owner.claim} shares it through MPS: a device has one MPS daemon, so use the same sharing"
        " configuration in both"
    )


def _intervals(plan: Plan) -> list[TimeSliceStep]:
    return [step for step in plan.steps if isinstance(step, TimeSliceStep)]


def exclusive(first: PlannedDevice, second: PlannedDevice) -> bool:
    """Whether only one of the two devices can be used at a time."""
    if first.admin or second.admin or not _overlap(first.target, second.target):
        return False
    shares = first.share_id is not None and second.share_id is not None
    return not (shares and first.target == second.target)


def _overlap(first: Target, second: Target) -> bool:
    if first.gpu_uuid != second.gpu_uuid:
        return False
    if isinstance(first, Vgpu) and isinstance(second, Vgpu):
        return _vgpus_overlap(first, second)
    if not (isinstance(first, MigSlot) and isinstance(second, MigSlot)):
        return True  # one of them is the whole GPU, for containers or a virtual machine
    one, other = first.placement, second.placement
    return one.start < other.start + other.size and other.start < one.start + one.size


def _vgpus_overlap(first: Vgpu, second: Vgpu) -> bool:
    if first.start is None or second.start is None:  # one of them is an administrator's
        return first.identifier == second.identifier
    if first.place.type_id != second.place.type_id and not first.mixed:
        return True
    return first.start < second.start + second.size and second.start < first.start + first.size
