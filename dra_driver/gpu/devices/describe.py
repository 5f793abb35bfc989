# SPDX-License-Identifier: Apache-2.0
"""The description of GPUs as DRA devices.

`forms` decides which devices a GPU has and in which order, `attributes` and `capacity` describe them. No function here
reads hardware or the API server.

With binding conditions (KEP-5007), the scheduler waits between the allocation of a device and the binding of the pod,
until the kubelet plugin sets one of the two conditions in the status of the claim. If the API server does not store
taints, devices with taints are withdrawn.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from ...errors import UnenforceableError
from ...kube.resource import CounterSet, Device, TaintEffect
from ...kube.resource.device import SliceFeatures
from ...kube.resource.meta import empty
from ...names import DRIVER_NAME
from ...process.containment import Count, contained
from ..inventory import Gpu, Inventory, PciGpu
from ..mig import MigDevice
from ..nvml import Placement
from ..ownership import Owned
from ..pci import NVIDIA_DRIVER
from ..policy import Enforcement, GpuPolicy, NodePolicy, PassthroughMode, ShareMode
from .attributes import (
    Attributes,
    driver_attributes,
    enforced_by,
    gpu_attributes,
    group_attributes,
    mig_attributes,
    partition_attributes,
    vfio_attributes,
    vgpu_attributes,
    whole_attributes,
)
from .capacity import (
    ONE_GPU,
    Counters,
    bytes_of,
    consumption,
    drawn,
    largest_capacity,
    profile_capacity,
    set_name,
    shared,
    slice_capacity,
    whole_counters,
)
from .enforcement import enforcement
from .forms import Complaint, Forms, LeftOut, Reason, among_peers, by_preference, forms, passthrough_problem
from .names import VgpuDevice, gpu_name, mig_name, vfio_name
from .vgpus import vgpu_forms

AVAILABLE: Final = f"{DRIVER_NAME}/Available"
"""If true, the device is on the node and can be used."""
UNAVAILABLE: Final = f"{DRIVER_NAME}/Unavailable"
"""If true, the device cannot be used, and the scheduler should choose another one."""

_NO_POLICY = NodePolicy()
_EVERY_FEATURE = SliceFeatures()
_UNWANTED: Complaint = (Reason.POLICY, "the GPU: the policy says publish: false")

_FORBIDDING = (TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE)


def waiting_for_plugin(device: Device) -> Device:
    """The device with both binding conditions."""
    return replace(device, binding_conditions=(AVAILABLE,), binding_failure_conditions=(UNAVAILABLE,))


@dataclass(frozen=True, slots=True)
class GpuDevices:
    """The devices of one GPU.

    `key` is the GPU's UUID, or its PCI address if NVML does not see the GPU. `devices` are in the order in which they
    should be allocated. `counter_set` is None if none of them consumes counters. `overlapping` tells whether some of
    them exclude each other, so that the scheduler needs the counters. `placements` has the memory slices of each MIG
    device, by device name. `others` has the keys of the other GPUs of its IOMMU group if the only device is the vfio
    device of them all.
    """

    key: str
    devices: tuple[Device, ...]
    counter_set: CounterSet | None = None
    overlapping: bool = False
    placements: Mapping[str, Placement] = field(default_factory=empty)
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Description:
    """The devices of a node by GPU: those of NVML in its order, then the others in their order on the PCI bus."""

    gpus: tuple[GpuDevices, ...]
    left_out: tuple[LeftOut, ...] = ()


def describe(
    inventory: Inventory,
    policy: NodePolicy = _NO_POLICY,
    owned: Set[Owned] = frozenset(),
    features: SliceFeatures = _EVERY_FEATURE,
    unexpected: Count = lambda _work: None,
) -> Description:
    """The devices that the node should publish under this policy, with the features that the API server stores.

    `owned` are the places of MIG instances and vGPUs that were created for claims. All others belong to an
    administrator. A GPU whose description fails unexpectedly is left out and counted with `unexpected`.
    """
    node = _Node(inventory, policy, owned, features, unexpected)
    seen = tuple(node.contained(gpu.uuid, partial(node.gpu, gpu)) for gpu in inventory.gpus)
    others = (pci for pci in inventory.pci_gpus if not node.knows(pci))
    unseen = tuple(node.contained(pci.address, partial(node.unseen, pci)) for pci in others)
    node.left_out += [
        LeftOut(
            failure.uuid or failure.pci_address or f"GPU {failure.index}",
            Reason.UNREADABLE,
            f"the GPU: {failure.reason}",
        )
        for failure in inventory.failures
    ]
    return Description(tuple(gpu for gpu in (*seen, *unseen) if gpu is not None), tuple(node.left_out))


class _Node:
    """One node during its description. Collects what is left out, and why."""

    def __init__(
        self,
        inventory: Inventory,
        policy: NodePolicy,
        owned: Set[Owned],
        features: SliceFeatures,
        unexpected: Count,
    ) -> None:
        self.left_out: list[LeftOut] = []
        self._unexpected = unexpected
        self._addresses = {gpu.pci_address for gpu in inventory.gpus} | {
            failure.pci_address for failure in inventory.failures
        }
        self._policy = policy
        self._owned = owned
        self._features = features
        self._iommufd = inventory.iommufd
        self._on_bus = {pci.address: pci for pci in inventory.pci_gpus}
        self._seen = {gpu.pci_address: gpu for gpu in inventory.gpus}
        self._common = driver_attributes(inventory)
        self._switches = inventory.switches
        self._profiles = {gpu.product_name: gpu.mig_profiles for gpu in inventory.gpus if gpu.mig_profiles}
        self._numa_lists = policy.list_type_attributes and features.list_attributes
        if policy.list_type_attributes and not features.list_attributes:
            text = "lists of NUMA nodes: the API server stores no list attributes; only the nearest node is published"
            self._leave_out("node", Reason.NO_LIST_ATTRIBUTES, text)

    def knows(self, pci: PciGpu) -> bool:
        """Whether NVML counts this GPU. A GPU bound to the NVIDIA driver may be the one whose address NVML does not
        report.
        """
        return pci.address in self._addresses or (pci.driver == NVIDIA_DRIVER and None in self._addresses)

    def contained(self, subject: str, describe_one: Callable[[], GpuDevices | None]) -> GpuDevices | None:
        """Describe one GPU. If that fails unexpectedly, the GPU is left out."""

        def leave_out(error: Exception) -> None:
            text = f"the GPU: its description failed unexpectedly ({type(error).__name__}: {error}); see the log"
            self._leave_out(subject, Reason.UNREADABLE, text)

        with contained("describe GPU", subject, self._unexpected, leave_out, gpu=subject):
            return describe_one()
        return None

    def gpu(self, gpu: Gpu) -> GpuDevices | None:
        """The devices of a GPU that NVML sees. None if there are none."""
        pci = None if gpu.pci_address is None else self._on_bus.get(gpu.pci_address)
        pci = None if pci is None else among_peers(pci, self._goes)
        wanted = self._policy.for_gpu(gpu, pci)
        if not wanted.publish:
            self._leave_out(gpu.uuid, *_UNWANTED)
            return None
        found = self._forms(gpu, pci, wanted)
        for reason, text in found.complaints:
            self._leave_out(gpu.uuid, reason, text)
        counter_set = CounterSet(set_name(gpu_name(gpu)), self._counters(gpu) if found.pot is None else found.pot)
        uuids = {instance.device: instance.uuid for instance in found.static}
        static = by_preference(gpu.mig_profiles, uuids)
        placements = by_preference(gpu.mig_profiles, found.placements)
        partitions = self._partitions(gpu)
        whole = [self._whole(gpu, found, counter_set, partitions)] if found.whole else []
        instances = [
            *(self._mig(gpu, device, None if placements else counter_set, uuids[device]) for device in static),
            *(self._mig(gpu, device, counter_set) for device in placements),
        ]
        divisible = self._shared(gpu, wanted, whole, instances)
        exclusive = [self._vgpu(vgpu, counters, counter_set) for vgpu, counters in found.vgpus]
        machine = pci is not None and found.vfio and self._leads(pci)
        exclusive += [self._vfio(pci, gpu, counter_set, partitions)] if machine and pci is not None else []
        if not (divisible or exclusive):
            return None
        return GpuDevices(
            key=gpu.uuid,
            devices=self._bound(gpu.uuid, wanted, (*divisible, *exclusive)),
            counter_set=counter_set,
            overlapping=found.overlapping,
            placements={mig_name(device): device.placement for device in (*static, *placements)},
            others=self._others(pci) if machine and pci is not None else (),
        )

    def unseen(self, pci: PciGpu) -> GpuDevices | None:
        """The devices of a GPU that NVML does not see: at most a vfio device."""
        pci = among_peers(pci, self._goes)
        wanted = self._policy.for_gpu(None, pci)
        problem = _unseen_problem(pci, wanted)
        if problem is not None:
            self._leave_out(pci.address, *problem)
            return None
        if not self._leads(pci):
            return None
        counter_set = CounterSet(set_name(vfio_name(pci)), ONE_GPU)
        devices = self._bound(pci.address, wanted, (self._vfio(pci, None, counter_set, {}),))
        return GpuDevices(pci.address, devices, counter_set, others=self._others(pci))

    def _counters(self, gpu: Gpu) -> Counters:
        """The counters of the whole GPU, which are equal for GPUs of one model."""
        return whole_counters(gpu, gpu.mig_profiles or self._profiles.get(gpu.product_name, ()))

    def _forms(self, gpu: Gpu, pci: PciGpu | None, wanted: GpuPolicy) -> Forms:
        host, partitionable = gpu.vgpu_host, self._features.partitionable_devices
        if host is None:
            return forms(gpu, pci, wanted, self._owned, partitionable)
        if wanted.passthrough is PassthroughMode.ONLY:
            wanted = replace(wanted, vgpu_types=())
        return vgpu_forms(gpu, host, pci, wanted, self._owned, partitionable)

    # GPUs of one IOMMU group are one vfio device, with the name of the first. They are published as nothing else. So
    # no counters are necessary, of which a device may consume two sets only.

    def _goes(self, address: str) -> bool:
        """Whether a GPU may be given to a virtual machine together with the others of its IOMMU group."""
        pci, gpu = self._on_bus.get(address), self._seen.get(address)
        if pci is None:
            return False
        wanted = self._policy.for_gpu(gpu, pci)
        if gpu is None:
            return _unseen_problem(pci, wanted) is None
        return wanted.publish and wanted.passthrough is PassthroughMode.ONLY and self._forms(gpu, pci, wanted).vfio

    def _leads(self, pci: PciGpu) -> bool:
        """Whether a GPU is the first of its IOMMU group, all of which can be given to a virtual machine."""
        return all(pci.position < self._on_bus[group_gpu].position for group_gpu in pci.group_gpus)

    def _others(self, pci: PciGpu) -> tuple[str, ...]:
        """The keys of the other GPUs of the IOMMU group."""
        return tuple(
            self._seen[group_gpu].uuid if group_gpu in self._seen else group_gpu for group_gpu in pci.group_gpus
        )

    def _partitions(self, gpu: Gpu) -> Attributes:
        """The NVSwitch partitions of a GPU as attributes."""
        attributes, several = partition_attributes(self._switches.of_module(gpu.module_id))
        for size, ids in several.items():
            text = f"its attribute partition{size}: it is in the partitions {', '.join(map(str, ids))} of {size} GPUs"
            self._leave_out(gpu.uuid, Reason.AMBIGUOUS_PARTITION, text)
        return attributes

    def _whole(self, gpu: Gpu, found: Forms, counter_set: CounterSet, partitions: Attributes) -> Device:
        """The whole GPU. If it is also published as MIG placements, its capacities are the maximum of theirs."""
        capacity = {} if gpu.memory is None else {"memory": bytes_of(gpu.memory)}
        return Device(
            gpu_name(gpu),
            attributes={
                **whole_attributes(gpu),
                **partitions,
                **gpu_attributes(gpu, self._numa_lists),
                **self._common,
            },
            capacity=largest_capacity(gpu.mig_profiles) if found.placements else capacity,
            consumes_counters=consumption(counter_set),
        )

    def _vfio(self, pci: PciGpu, gpu: Gpu | None, counter_set: CounterSet, partitions: Attributes) -> Device:
        members = [pci, *(self._on_bus[group_gpu] for group_gpu in pci.group_gpus)]
        memory = [member.addressable_memory for member in members if member.addressable_memory is not None]
        return Device(
            vfio_name(pci),
            attributes={
                **vfio_attributes(pci, gpu, self._iommufd, self._numa_lists),
                **partitions,
                **group_attributes([member.address for member in members], self._numa_lists),
            },
            capacity={"addressableMemory": bytes_of(sum(memory))} if len(memory) == len(members) else {},
            consumes_counters=consumption(counter_set),
        )

    def _vgpu(self, vgpu: VgpuDevice, counters: Counters, counter_set: CounterSet) -> Device:
        place = vgpu.place
        gpu = replace(vgpu.gpu, pci_address=place.address)  # the vGPU is at this function, and otherwise like its GPU
        common = {**gpu_attributes(gpu, self._numa_lists), **self._common}
        return Device(
            vgpu.name,
            attributes={**vgpu_attributes(gpu, vgpu.type, place.mdev), **common},
            capacity={"memory": bytes_of(vgpu.type.memory)},
            consumes_counters=consumption(counter_set, counters),
        )

    def _mig(self, gpu: Gpu, device: MigDevice, counter_set: CounterSet | None, uuid: str | None = None) -> Device:
        """A MIG device, which an administrator created if it has a UUID, and which can be created otherwise. It
        consumes no counters if `counter_set` is None.
        """
        info = next(profile.info for profile in gpu.mig_profiles if profile.info.id == device.profile_id)
        capacity = profile_capacity(info)
        common = {**gpu_attributes(gpu, self._numa_lists), **self._common}
        return Device(
            mig_name(device),
            attributes={**mig_attributes(device, uuid), **common},
            capacity=capacity if uuid is None else capacity | slice_capacity(device.placement),
            consumes_counters=() if counter_set is None else consumption(counter_set, drawn(info, device.placement)),
        )

    def _shared(self, gpu: Gpu, wanted: GpuPolicy, whole: list[Device], instances: list[Device]) -> list[Device]:
        """The devices as claims may share them."""
        if wanted.shares is ShareMode.DISABLED or not (whole or instances):
            return whole + instances
        if not self._features.consumable_capacity:
            text = "shares: the API server stores no request policies, so every device is exclusive"
            self._leave_out(gpu.uuid, Reason.NO_CONSUMABLE_CAPACITY, text)
            return whole + instances
        found: list[Device] = []
        for is_mig, devices in ((False, whole), (True, instances)):
            try:
                by = enforcement(gpu, is_mig, self._policy)
            except UnenforceableError as error:
                if devices:
                    text = f"shares of {'its MIG devices' if is_mig else 'the GPU'} cannot be enforced: {error}"
                    self._leave_out(gpu.uuid, Reason.NOT_ENFORCEABLE, text)
                found += devices
                continue
            described = (replace(device, attributes={**device.attributes, **enforced_by(by)}) for device in devices)
            found += [shared(device, wanted.shares, by is not Enforcement.NONE) for device in described]
        return found

    def _bound(self, key: str, wanted: GpuPolicy, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """The devices, with binding conditions if the policy wants them and the API server stores them."""
        if wanted.binding_conditions and not self._features.binding_conditions:
            text = "binding conditions: the API server does not store them, so pods are bound at once"
            self._leave_out(key, Reason.NO_BINDING_CONDITIONS, text)
        elif wanted.binding_conditions:
            return tuple(map(waiting_for_plugin, devices))
        return devices

    def _leave_out(self, subject: str, reason: Reason, text: str) -> None:
        self.left_out.append(LeftOut(subject, reason, text))


def _unseen_problem(pci: PciGpu, wanted: GpuPolicy) -> Complaint | None:
    """Why a GPU that NVML does not see cannot be given to virtual machines, or None."""
    if not wanted.publish:
        return _UNWANTED
    if pci.driver == NVIDIA_DRIVER:
        return Reason.UNREADABLE, "the GPU: NVML does not see it"
    if pci.driver is not None and "vfio" not in pci.driver:
        return Reason.OTHER_DRIVER, f"the GPU: it is bound to the kernel driver {pci.driver}"
    if not wanted.passthrough:
        return Reason.POLICY, f"the GPU: it is bound to {pci.driver or 'no driver'}, and the policy has no passthrough"
    return passthrough_problem(pci)


def without_tainted(gpus: Iterable[GpuDevices]) -> Description:
    """The same GPUs without taints, and without the devices whose taints forbid scheduling.

    The scheduler no longer counts the counters of a device that is withdrawn while it is in use. So a tainted device
    that consumes counters is withdrawn together with all devices that consume the same counters, if some of these
    exclude each other.
    """
    kept: list[GpuDevices] = []
    left_out: list[LeftOut] = []
    for gpu in gpus:
        tainted = [device for device in gpu.devices if _is_forbidden(device)]
        counted = gpu.overlapping and any(device.consumes_counters for device in tainted)
        devices = tuple(
            replace(device, taints=())
            for device in gpu.devices
            if not (_is_forbidden(device) or (counted and device.consumes_counters))
        )
        if tainted:
            keys = ", ".join(sorted({taint.key for device in tainted for taint in device.taints}))
            text = f"{len(gpu.devices) - len(devices)} devices: the API server stores no taints, and they have {keys}"
            left_out.append(LeftOut(gpu.key, Reason.TAINTED, text))
        if devices:
            names = {device.name for device in devices}
            placements = {name: placement for name, placement in gpu.placements.items() if name in names}
            if counted:
                gpu = replace(gpu, counter_set=None, overlapping=False)
            kept.append(replace(gpu, devices=devices, placements=placements))
    return Description(tuple(kept), tuple(left_out))


def _is_forbidden(device: Device) -> bool:
    return any(taint.effect in _FORBIDDING for taint in device.taints)
