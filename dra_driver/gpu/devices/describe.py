# SPDX-License-Identifier: Apache-2.0
"""From facts about GPUs to devices as DRA publishes them.

`forms` decides which devices a GPU has, `attributes` and `capacity` describe them, and `ordering` sorts MIG
placements. No function here reads hardware or the API server.

With binding conditions (KEP-5007), the scheduler waits after it allocated a device, before it binds the pod. The
kubelet plugin sets one of the two conditions in the status of the claim. For an API server that does not store taints,
devices with taints are withdrawn.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from ... import DRIVER_NAME
from ...containment import Count, contained
from ...resource import CounterConsumption, CounterSet, Device, TaintEffect
from ...resource.device import SliceFeatures
from ...resource.meta import empty
from ..inventory import Gpu, Inventory, PciGpu
from ..nvml import Placement
from ..ownership import MigPlace
from ..pci import NVIDIA_DRIVER
from ..policy import GpuPolicy, NodePolicy, Shares
from .attributes import (
    driver_attributes,
    gpu_attributes,
    mig_attributes,
    vfio_attributes,
    whole_attributes,
)
from .capacity import bytes_of, consumption, drawn, largest_capacity, profile_capacity, set_name, shared, slice_capacity
from .forms import Complaint, Forms, LeftOut, Reason, forms, passthrough_problem
from .names import MigPlacement, gpu_name, mig_name, vfio_name
from .ordering import by_preference

AVAILABLE: Final = f"{DRIVER_NAME}/Available"
"""True: the device is on the node and fit for use."""
UNAVAILABLE: Final = f"{DRIVER_NAME}/Unavailable"
"""True: it is not, and the scheduler should look for another one."""


def waiting_for_plugin(device: Device) -> Device:
    """The device with both conditions."""
    return replace(device, binding_conditions=(AVAILABLE,), binding_failure_conditions=(UNAVAILABLE,))


_NO_POLICY = NodePolicy()
_EVERY_FEATURE = SliceFeatures()
_UNWANTED: Complaint = (Reason.POLICY, "the GPU: the policy says publish: false")


@dataclass(frozen=True, slots=True)
class GpuDevices:
    """What one GPU contributes to its node's pool.

    `key` is its UUID, or its PCI address where NVML does not see it (then `gpu` is None). `devices` are in the order in
    which they are better taken. `counter_set` is None when none of them excludes another; `placements` tells where on
    the memory slices each MIG device is.
    """

    key: str
    gpu: Gpu | None
    devices: tuple[Device, ...]
    counter_set: CounterSet | None = None
    placements: Mapping[str, Placement] = field(default_factory=empty)


@dataclass(frozen=True, slots=True)
class Description:
    """The devices of a node, GPU by GPU: those that NVML sees in its order, then the others as they are on the bus."""

    gpus: tuple[GpuDevices, ...]
    left_out: tuple[LeftOut, ...] = ()


def describe(
    inventory: Inventory,
    policy: NodePolicy = _NO_POLICY,
    owned: Set[MigPlace] = frozenset(),
    features: SliceFeatures = _EVERY_FEATURE,
    unexpected: Count = lambda _work: None,
) -> Description:
    """What the node should publish, as the policy wants it and the API server can keep it.

    `owned` are the places of MIG instances that were made for claims; all others are an administrator's. A GPU whose
    description fails unexpectedly is left out, which `unexpected` counts.
    """
    node = _Node(inventory, policy, owned, features, unexpected)
    seen = tuple(node.contained(gpu.uuid, partial(node.gpu, gpu)) for gpu in inventory.gpus)
    others = (pci for pci in inventory.pci_gpus if not node.knows(pci))
    unseen = tuple(node.contained(pci.address, partial(node.unseen, pci)) for pci in others)
    node.left_out += [
        LeftOut(one.uuid or one.pci_address or f"GPU {one.index}", Reason.UNREADABLE, f"the GPU: {one.reason}")
        for one in inventory.failures
    ]
    return Description(tuple(one for one in (*seen, *unseen) if one is not None), tuple(node.left_out))


class _Node:
    """One node being described; collects what is left out on the way."""

    def __init__(
        self,
        inventory: Inventory,
        policy: NodePolicy,
        owned: Set[MigPlace],
        features: SliceFeatures,
        unexpected: Count,
    ) -> None:
        self.left_out: list[LeftOut] = []
        self._unexpected = unexpected
        self._addresses = {gpu.pci_address for gpu in inventory.gpus} | {one.pci_address for one in inventory.failures}
        self._policy = policy
        self._owned = owned
        self._features = features
        self._iommufd = inventory.iommufd
        self._on_bus = {pci.address: pci for pci in inventory.pci_gpus}
        self._common = driver_attributes(inventory)
        self._numa_lists = policy.list_type_attributes and features.list_attributes
        if policy.list_type_attributes and not features.list_attributes:
            text = "lists of NUMA nodes: the API server keeps no list attributes, the nearest node is published alone"
            self._leave_out("node", Reason.NO_LIST_ATTRIBUTES, text)

    def knows(self, pci: PciGpu) -> bool:
        """Whether NVML counts this GPU: one that the driver has may be the one whose address NVML does not tell."""
        return pci.address in self._addresses or (pci.driver == NVIDIA_DRIVER and None in self._addresses)

    def contained(self, subject: str, describe_one: Callable[[], GpuDevices | None]) -> GpuDevices | None:
        """One GPU, which is left out when describing it fails unexpectedly."""

        def leave_out(error: Exception) -> None:
            text = f"the GPU: describing it failed unexpectedly ({type(error).__name__}: {error}), see the log"
            self._leave_out(subject, Reason.UNREADABLE, text)

        with contained("describe GPU", subject, self._unexpected, leave_out, gpu=subject):
            return describe_one()
        return None

    def gpu(self, gpu: Gpu) -> GpuDevices | None:
        """What NVML sees, in the forms it can be had in; None when there is no such form."""
        pci = None if gpu.pci_address is None else self._on_bus.get(gpu.pci_address)
        wanted = self._policy.for_gpu(gpu, pci)
        if not wanted.publish:
            self._leave_out(gpu.uuid, *_UNWANTED)
            return None
        found = forms(gpu, pci, wanted, self._owned, self._features.partitionable_devices)
        for reason, text in found.complaints:
            self._leave_out(gpu.uuid, reason, text)
        counter_set = None if found.pot is None else CounterSet(set_name(gpu), found.pot)
        uuids = {one.mig.placement: one.uuid for one in found.static}
        static = by_preference([one.mig for one in found.static])
        placements = by_preference(found.placements)
        divisible = [
            *([self._whole(gpu, found, counter_set)] if found.whole else []),
            *(self._mig(mig, uuids[mig.placement], None) for mig in static),
            *(self._mig(mig, None, counter_set) for mig in placements),
        ]
        if divisible:
            shares = self._shares(gpu, wanted)
            divisible = [shared(device, shares) for device in divisible]
        exclusive = [self._vfio(pci, gpu, counter_set)] if found.vfio and pci is not None else []
        if not (divisible or exclusive):
            return None
        return GpuDevices(
            key=gpu.uuid,
            gpu=gpu,
            devices=self._bound(gpu.uuid, wanted, (*divisible, *exclusive)),
            counter_set=counter_set,
            placements={_name(mig): mig.placement for mig in (*static, *placements)},
        )

    def unseen(self, pci: PciGpu) -> GpuDevices | None:
        """What NVML does not see: at most a vfio device."""
        wanted = self._policy.for_gpu(None, pci)
        problem = _unseen_problem(pci, wanted)
        if problem is not None:
            self._leave_out(pci.address, *problem)
            return None
        return GpuDevices(pci.address, None, self._bound(pci.address, wanted, (self._vfio(pci, None, None),)))

    def _whole(self, gpu: Gpu, found: Forms, counter_set: CounterSet | None) -> Device:
        """Where it draws on counters of MIG devices, its capacities are the most that any of these has."""
        capacity = {} if gpu.memory is None else {"memory": bytes_of(gpu.memory)}
        return Device(
            gpu_name(gpu),
            attributes={**whole_attributes(gpu), **gpu_attributes(gpu, self._numa_lists), **self._common},
            capacity=largest_capacity(gpu.mig_profiles) if found.placements else capacity,
            consumes_counters=_all_of(counter_set),
        )

    def _vfio(self, pci: PciGpu, gpu: Gpu | None, counter_set: CounterSet | None) -> Device:
        return Device(
            vfio_name(pci),
            attributes=vfio_attributes(pci, gpu, self._iommufd, self._numa_lists),
            capacity={} if pci.addressable_memory is None else {"addressableMemory": bytes_of(pci.addressable_memory)},
            consumes_counters=_all_of(counter_set),
        )

    def _mig(self, mig: MigPlacement, uuid: str | None, counter_set: CounterSet | None) -> Device:
        """A MIG device that exists (`uuid`), or that can be made."""
        gpu, info = mig.gpu, mig.profile.info
        common = {**gpu_attributes(gpu, self._numa_lists), **self._common}
        return Device(
            _name(mig),
            attributes={**mig_attributes(gpu, mig.profile.name, uuid), **common},
            capacity=profile_capacity(info) if uuid is None else profile_capacity(info) | slice_capacity(mig.placement),
            consumes_counters=() if counter_set is None else consumption(counter_set, drawn(info, mig.placement)),
        )

    def _shares(self, gpu: Gpu, wanted: GpuPolicy) -> Shares | int:
        if wanted.shares is not Shares.DISABLED and not self._features.consumable_capacity:
            text = "shares: the API server keeps no request policies, every device is exclusive"
            self._leave_out(gpu.uuid, Reason.NO_CONSUMABLE_CAPACITY, text)
            return Shares.DISABLED
        return wanted.shares

    def _bound(self, key: str, wanted: GpuPolicy, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """The devices, with binding conditions if these are wanted and kept."""
        if wanted.binding_conditions and not self._features.binding_conditions:
            text = "binding conditions: the API server keeps none, pods are bound at once"
            self._leave_out(key, Reason.NO_BINDING_CONDITIONS, text)
        elif wanted.binding_conditions:
            return tuple(map(waiting_for_plugin, devices))
        return devices

    def _leave_out(self, subject: str, reason: Reason, text: str) -> None:
        self.left_out.append(LeftOut(subject, reason, text))


def _name(mig: MigPlacement) -> str:
    return mig_name(mig.gpu, mig.profile, mig.placement)


def _unseen_problem(pci: PciGpu, wanted: GpuPolicy) -> Complaint | None:
    """Why a GPU that NVML does not see cannot be given to virtual machines."""
    if not wanted.publish:
        return _UNWANTED
    if pci.driver == NVIDIA_DRIVER:
        return Reason.UNREADABLE, "the GPU: NVML does not see it"
    if pci.driver is not None and "vfio" not in pci.driver:
        return Reason.OTHER_DRIVER, f"the GPU: it is bound to the kernel driver {pci.driver}"
    if not wanted.passthrough:
        return Reason.POLICY, f"the GPU: it is bound to {pci.driver or 'no driver'}, and no passthrough is wanted"
    return passthrough_problem(pci)


def _all_of(counter_set: CounterSet | None) -> tuple[CounterConsumption, ...]:
    return () if counter_set is None else consumption(counter_set, counter_set.counters)


_FORBIDDING = (TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE)


def without_tainted(gpus: Iterable[GpuDevices]) -> Description:
    """The same without the devices that should not be allocated, and without taints.

    A device that is in use is withdrawn with the others, and the scheduler then no longer counts what it draws. So with
    a device that draws on counters go all that draw on the same.
    """
    kept: list[GpuDevices] = []
    left_out: list[LeftOut] = []
    for gpu in gpus:
        tainted = [device for device in gpu.devices if _is_forbidden(device)]
        counted = any(device.consumes_counters for device in tainted)
        devices = tuple(
            replace(device, taints=())
            for device in gpu.devices
            if not (_is_forbidden(device) or (counted and device.consumes_counters))
        )
        if tainted:
            keys = ", ".join(sorted({taint.key for device in tainted for taint in device.taints}))
            text = f"{len(gpu.devices) - len(devices)} devices: the API server keeps no taints, these have {keys}"
            left_out.append(LeftOut(gpu.key, Reason.TAINTED, text))
        if devices:
            names = {device.name for device in devices}
            placements = {name: placement for name, placement in gpu.placements.items() if name in names}
            counter_set = None if counted else gpu.counter_set
            kept.append(replace(gpu, devices=devices, counter_set=counter_set, placements=placements))
    return Description(tuple(kept), tuple(left_out))


def _is_forbidden(device: Device) -> bool:
    return any(taint.effect in _FORBIDDING for taint in device.taints)
