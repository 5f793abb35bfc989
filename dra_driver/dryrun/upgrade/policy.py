# SPDX-License-Identifier: Apache-2.0
"""The slices that nodes would publish under another policy of the driver.

The driver's own functions make them (`gpu.devices.describe`, `gpu.layout`), from the facts that the published slices
tell: the model, address and UUID of each GPU, its MIG mode, and existing MIG devices. What a model can do besides is
known from the boards of simulated nodes. Attributes and taints that do not depend on the policy stay as published.

Some facts are in no slice, and are assumed: each GPU is alone in an IOMMU group, shares can be enforced as the policy
says, and a GPU that is published as a whole and as MIG devices is in MIG mode if a claim has a MIG device of it. A node
with other devices, such as vGPUs or GPUs of an unknown model, keeps its slices, and a note says so. GPUs that are not
published now are not seen.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...gpu.devices import ENFORCED_BY, GPU_TYPE, MIG_TYPE, PCI_BUS_ID, VFIO_TYPE, describe
from ...gpu.facts import Gpu, Inventory, MigProfile, PciGpu
from ...gpu.layout import node_slices
from ...gpu.mig import MigInstance
from ...gpu.nvml import Architecture, MigMode
from ...gpu.pci import NVIDIA_DRIVER
from ...gpu.policy import NodePolicy
from ...gpu.simulated.board import BoardModel, boards
from ...kube.releases import minor_of
from ...kube.resource import AttributeValue, Device, DeviceTaint, ResourceClaim, ResourceSlice
from ...kube.resource.codec import Decoded
from ...kube.resource.device import COUNTERS_APART_SINCE, AttributeList, SliceFeatures
from ...names import DRIVER_NAME
from ..report import listed
from ..status import Note
from .sides import Side

_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
_OF_POLICY: Final = frozenset(
    {"type", "uuid", "parentUUID", "profile", ENFORCED_BY, PCI_BUS_ID, _PCIE_ROOT, _NUMA_NODE}
)
"""Attributes that follow from the policy and the facts. The others are as published."""
_COMMON: Final = frozenset({"brand", "addressingMode", "driverVersion", "cudaDriverVersion", "architecture"})
"""Attributes that whole GPUs and MIG devices have in common, and that no board tells."""
_MINOR: Final = re.compile(r"gpu-(\d+)(?:-mig-.+-(\d+)-(\d+))?")
"""The minor number of a GPU, and the profile and the first memory slice of a MIG device."""
_POSITION: Final = re.compile(r"gpu-vfio-(\d+)")
_OTHER_MIB: Final = 32
"""The size of the other 64-bit window of a GPU, which counts as addressable memory, in MiB."""
_NOT_KNOWN: Final = "what they publish under the policy is not known"
_ASSUMED: Final = (
    "of each GPU that the driver publishes, it is assumed that it is alone in an IOMMU group, and that the node can"
    " enforce shares as the policy says"
)


@dataclass(frozen=True, slots=True)
class ObjectsUnderPolicy:
    """The objects of the cluster with the slices under the policy. `notes` tell the assumptions and the devices
    that the driver leaves out, and `unknown` which slices are not known.
    """

    objects: tuple[Decoded, ...]
    notes: tuple[str, ...]
    unknown: tuple[Note, ...]


class _UnknownDevicesError(Exception):
    """What a node would publish is not known."""


def under_policy(objects: Sequence[Decoded], policy: NodePolicy, side: Side) -> ObjectsUnderPolicy:
    """The objects with the slices that the nodes publish under a policy, for the API server of a side."""
    by_node: dict[str, list[ResourceSlice]] = defaultdict(list)
    for object_ in objects:
        if isinstance(object_, ResourceSlice) and object_.driver == DRIVER_NAME and object_.node_name:
            by_node[object_.node_name].append(object_)
    held = {
        (result.pool, result.device)
        for object_ in objects
        if isinstance(object_, ResourceClaim) and object_.allocation is not None
        for result in object_.allocation.results
        if result.driver == DRIVER_NAME
    }
    features = _features(side)
    made: list[ResourceSlice] = []
    left_out: dict[str, None] = {}
    unknown: dict[str, list[str]] = defaultdict(list)
    for name, slices in by_node.items():
        try:
            found, texts = _of_node(name, slices, policy, features, held)
        except _UnknownDevicesError as error:
            unknown[str(error)].append(name)
            found, texts = slices, []
        made += found
        left_out.update(dict.fromkeys(texts))
    replaced = {id(slice_) for slices in by_node.values() for slice_ in slices}
    kept = [object_ for object_ in objects if id(object_) not in replaced]
    notes = (_ASSUMED, *(f"under the policy, not published: {text}" for text in left_out)) if by_node else ()
    not_known = (Note(f"nodes {listed(names)}", f"{_NOT_KNOWN}: {text}") for text, names in unknown.items())
    return ObjectsUnderPolicy((*made, *kept), notes, tuple(not_known))


def _features(side: Side) -> SliceFeatures:
    """What the API server of a side stores of slices."""
    return SliceFeatures(
        partitionable_devices=side.features.partitionable_devices,
        device_taints=side.features.device_taints,
        consumable_capacity=side.features.consumable_capacity,
        list_attributes=side.features.list_attributes,
        binding_conditions=side.features.binding,
        counters_beside_devices=minor_of(side.release) < COUNTERS_APART_SINCE,
    )


def _of_node(
    name: str,
    slices: Sequence[ResourceSlice],
    policy: NodePolicy,
    features: SliceFeatures,
    held: Collection[tuple[str, str]],
) -> tuple[list[ResourceSlice], list[str]]:
    """The slices of a node, and texts about what the driver leaves out. Raises _UnknownDevicesError."""
    pool = slices[0].pool
    by_gpu: dict[str, list[Device]] = defaultdict(list)
    for slice_ in slices:
        for device in slice_.devices:
            by_gpu[_gpu_key(device)].append(device)
    in_use = {device for place, device in held if place == pool.name}
    ordered = sorted(by_gpu.values(), key=lambda devices: (_text(devices, PCI_BUS_ID) or "", _minor(devices, 0)))
    facts = [_GpuFacts.of(index, devices, in_use) for index, devices in enumerate(ordered)]
    iommufd = any(device.attributes.get("iommuFDEnabled") is True for devices in ordered for device in devices)
    inventory = Inventory(
        "",
        None,
        tuple(each.gpu for each in facts),
        pci_gpus=tuple(each.pci for each in facts if each.pci is not None),
        iommufd=iommufd,
    )
    rules = replace(policy.on_node(name), mps=True, memory_limits=True)
    found = describe(inventory, rules, features=features)
    donors = {each.gpu.uuid: each.devices for each in facts}
    gpus = [
        replace(gpu, devices=tuple(_as_published(device, donors[gpu.key]) for device in gpu.devices))
        for gpu in found.gpus
    ]
    made = [
        replace(slice_, pool=replace(slice_.pool, name=pool.name, generation=pool.generation + 1))
        for slice_ in node_slices(name, "", gpus, features)
    ]
    models = {each.gpu.uuid: f"{each.gpu.product_name}: " for each in facts}
    return made, [f"{models.get(entry.subject, '')}{entry.text}" for entry in found.left_out]


def _gpu_key(device: Device) -> str:
    """The PCI address of the GPU of a device, or its UUID if there is no address. Raises _UnknownDevicesError."""
    attributes = device.attributes
    kind = attributes.get("type")
    if kind not in (GPU_TYPE, MIG_TYPE, VFIO_TYPE):
        raise _UnknownDevicesError(f"it publishes devices of type {kind}")
    if "gpus" in attributes:
        raise _UnknownDevicesError(f"device {device.name} has several GPUs")
    key = attributes.get(PCI_BUS_ID) or attributes.get("uuid" if kind == GPU_TYPE else "parentUUID")
    if not isinstance(key, str):
        raise _UnknownDevicesError(f"device {device.name} has no attribute {PCI_BUS_ID}")
    return key


@dataclass(frozen=True, slots=True)
class _GpuFacts:
    """A GPU as the driver sees it, and its published devices."""

    gpu: Gpu
    pci: PciGpu | None
    devices: tuple[Device, ...]

    @staticmethod
    def of(index: int, devices: Sequence[Device], in_use: Collection[str]) -> "_GpuFacts":
        """The facts of a GPU with these devices. `in_use` are the devices of the node that claims have. Raises
        _UnknownDevicesError.
        """
        whole = next((device for device in devices if device.attributes["type"] == GPU_TYPE), None)
        instances = [device for device in devices if device.attributes["type"] == MIG_TYPE]
        vfio = next((device for device in devices if device.attributes["type"] == VFIO_TYPE), None)
        board = _board(devices[0])
        address = _text(devices, PCI_BUS_ID)
        mode = bool(instances) and (whole is None or any(device.name in in_use for device in instances))
        switchable = bool(board.profiles) and board.architecture >= Architecture.HOPPER
        uuid = whole.attributes.get("uuid") if whole is not None else _text(instances, "parentUUID")
        module = whole.attributes.get("gpuModuleID") if whole is not None else None
        gpu = Gpu(
            index=index,
            minor=_minor(devices, index),
            uuid=uuid if isinstance(uuid, str) else f"unknown-{address}",
            product_name=board.product_name,
            brand=None,
            architecture=board.architecture.name.capitalize(),
            compute_capability=board.compute_capability,
            memory=_memory(whole, instances, board),
            pci_address=address,
            pcie_root=_text(devices, _PCIE_ROOT),
            numa_node=_numa(devices),
            addressing_mode=None,
            module_id=module if isinstance(module, int) else None,
            mig_mode=MigMode(mode, mode) if board.profiles else None,
            mig_switchable=switchable,
            mig_profiles=tuple(
                MigProfile(profile.info.name, profile.info, profile.placements) for profile in board.profiles
            )
            if mode or switchable
            else (),
            memory_limits=True,
        )
        existing = [device for device in instances if "uuid" in device.attributes]
        gpu = replace(gpu, mig_instances=tuple(_instances(gpu, existing)))
        return _GpuFacts(gpu, _pci_gpu(gpu, board, vfio), tuple(devices))


def _pci_gpu(gpu: Gpu, board: BoardModel, vfio: Device | None) -> PciGpu | None:
    """The PCI function of a GPU, which may be published as `vfio`. None if its address is not known."""
    if gpu.pci_address is None:
        return None
    position = _POSITION.fullmatch(vfio.name) if vfio is not None else None
    return PciGpu(
        position=int(position[1]) if position is not None else gpu.index,
        address=gpu.pci_address,
        device_id=board.pci_device_id >> 16,
        product_name=board.pci_name,
        driver=NVIDIA_DRIVER,
        iommu_group=gpu.index,
        addressable_memory=1 << (board.bar1_mib + _OTHER_MIB - 1 << 20).bit_length(),
        pcie_root=gpu.pcie_root,
        numa_node=gpu.numa_node,
    )


def _board(device: Device) -> BoardModel:
    name = device.attributes.get("productName")
    for board in boards().values():
        if name in (board.product_name, board.pci_name):
            return board
    raise _UnknownDevicesError(f"the model {name} is not among the known ones")


def _text(devices: Iterable[Device], attribute: str) -> str | None:
    values = (device.attributes.get(attribute) for device in devices)
    return next((value for value in values if isinstance(value, str)), None)


def _numa(devices: Iterable[Device]) -> int | None:
    for device in devices:
        value = device.attributes.get(_NUMA_NODE)
        if isinstance(value, AttributeList):
            value = next(iter(value.items), None)
        if isinstance(value, int):
            return value
    return None


def _minor(devices: Iterable[Device], index: int) -> int:
    """The minor number in the names of the devices. A GPU for virtual machines alone is taken to have its index."""
    found = next((match for device in devices if (match := _MINOR.fullmatch(device.name))), None)
    return int(found[1]) if found is not None else index


def _memory(whole: Device | None, instances: Sequence[Device], board: BoardModel) -> int:
    """The memory of the whole GPU. Beside MIG placements, the published one is that of the largest of these."""
    published = whole.capacity.get("memory") if whole is not None and not instances else None
    return int(published.value.value) if published is not None else board.memory_mib << 20


def _instances(gpu: Gpu, devices: Iterable[Device]) -> Iterator[MigInstance]:
    """The MIG devices of an administrator."""
    for number, device in enumerate(devices):
        match = _MINOR.fullmatch(device.name)
        for profile in gpu.mig_profiles if match is not None and match[2] is not None else ():
            for placement in profile.placements:
                if match is not None and (profile.info.id, placement.start) == (int(match[2]), int(match[3])):
                    place = gpu.mig_device(profile.info.id, placement)
                    yield MigInstance(place, number, 0, str(device.attributes["uuid"]))


def _as_published(device: Device, donors: Sequence[Device]) -> Device:
    """The device with the attributes, amounts and taints of the GPU's published devices that do not depend on the
    policy.
    """
    kind = device.attributes["type"]
    same = next((donor for donor in donors if donor.name == device.name), None)
    alike = [donor for donor in donors if donor.attributes["type"] == kind]
    related = [donor for donor in donors if (donor.attributes["type"] == VFIO_TYPE) == (kind == VFIO_TYPE)]
    attributes: dict[str, AttributeValue] = dict(device.attributes)
    attributes |= {
        name: value
        for source, only in ((related[:1], device.attributes.keys() | _COMMON), (alike[:1], None))
        for donor in source
        for name, value in donor.attributes.items()
        if name not in _OF_POLICY and (only is None or name in only)
    }
    capacity = dict(device.capacity)
    for name, amount in same.capacity.items() if same is not None else ():
        if name in capacity and kind != GPU_TYPE:  # that of a whole GPU differs beside MIG placements
            capacity[name] = replace(capacity[name], value=amount.value)
    taints = same.taints if same is not None else _common_taints(donors)
    return replace(device, attributes=attributes, capacity=capacity, taints=taints)


def _common_taints(devices: Sequence[Device]) -> tuple[DeviceTaint, ...]:
    """The taints that all published devices of a GPU have: they tell of the GPU."""
    first, *others = (device.taints for device in devices)
    return tuple(taint for taint in first if all(taint in taints for taints in others))
