# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes: the built-in example nodes, and additional nodes of a type, with the DeviceClasses for them.

A type is the name of a built-in example node, such as `h100x8`, also with the suffix of a variant, such as `-mig`; or a
file that describes a node (`dra_driver.gpu.simulated.description`).
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from ..domains.devices import describe_channels
from ..domains.names import DOMAIN_ATTRIBUTE
from ..domains.names import DRIVER as DOMAIN_DRIVER
from ..gpu.devices import describe
from ..gpu.fabric import Partition, SwitchFacts
from ..gpu.facts import Inventory
from ..gpu.functions import GPU_CLASSES
from ..gpu.imex import fabric_of
from ..gpu.labels import MACHINE_LABEL, Machine, gpu_labels
from ..gpu.layout import node_slices
from ..gpu.policy import GpuRule, NodePolicy
from ..gpu.simulated import DescriptionError, load_description, shipped_nodes
from ..gpu.simulated.board import boards
from ..gpu.simulated.facts import inventory_of
from ..kube.resource import AttributeValue, DeviceClass, Node, ObjectMeta, ResourceSlice
from ..kube.resource.codec import Decoded
from ..kube.resource.device import SliceFeatures
from ..names import DRIVER_NAME
from ..process.command import InputError
from .extended import GPU_RESOURCE, MIG_RESOURCE_PREFIX
from .inventory import CLASSES, HOSTNAME

_FOR_MACHINES: Final = "h100x8"
_OTHER_TYPES: Final = ("l40sx4-vgpu", "l4x4-shares")
"""Variants that only one of the built-in nodes is."""
_GRACE: Final = re.compile(r"NVIDIA G[BH]\d")
"""Products whose CPU is an Arm one."""
_MACHINE: Final = Machine(None, frozenset({f"{GPU_CLASSES[-1] << 8:#08x}"}))
"""A machine without a name, with GPUs that have no display."""
_UUIDS: Final = {"uuid", "parentUUID"}


@functools.cache
def classes_with_resources() -> tuple[DeviceClass, ...]:
    """The DeviceClasses of the chart with deviceClasses.gpu.extendedResourceName=nvidia.com/gpu, and with every MIG
    profile of simulated GPUs in deviceClasses.migProfiles.
    """
    by_name = {class_.metadata.name: class_ for class_ in CLASSES}
    gpu, mig = by_name.pop("gpu.nvidia.com"), by_name["mig.nvidia.com"]
    profiles = dict.fromkeys(profile.info.name for board in boards().values() for profile in board.profiles)
    found = [replace(gpu, extended_resource_name=GPU_RESOURCE), *by_name.values()]
    for profile in profiles:
        word = profile.replace("+", ".")
        selectors = (*mig.selectors, f"device.attributes['{DRIVER_NAME}'].profile == '{profile}'")
        name = ObjectMeta(name=f"mig-{word}.nvidia.com")
        found.append(DeviceClass(name, selectors, extended_resource_name=f"{MIG_RESOURCE_PREFIX}{word}"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Variant:
    """A variant of a node type: its suffix, that of the hardware's description, and the driver's policy on the node.

    A `partitioned` node has NVSwitch partitions of 1, 2, 4 ... neighbouring GPUs.
    """

    suffix: str
    description: str
    policy: NodePolicy = field(default_factory=NodePolicy)
    partitioned: bool = False


_PLAIN: Final = _Variant("", "")
_VARIANTS: Final = (
    _PLAIN,
    *(_Variant(mode, mode) for mode in ("-mig", "-mixed")),
    _Variant("-vfio", "", NodePolicy((GpuRule(passthrough=True),)), partitioned=True),
    _Variant("-vgpu", "-vgpu", NodePolicy((GpuRule(vgpu_types=("4Q", "8Q", "12Q", "24Q")),))),
    _Variant("-shares", "", NodePolicy((GpuRule(shares=4),))),
)
"""The variants that exist of every node type."""


def node_types() -> tuple[str, ...]:
    """The suffixes of node types, such as `-mig`; the first is empty."""
    return tuple(variant.suffix for variant in _VARIANTS)


@functools.cache
def built_in_nodes(policy: NodePolicy | None = None, *, machines: bool = False) -> tuple[Decoded, ...]:
    """The built-in example nodes with their slices, idle: every node type plain and with MIG mode on, and one node each
    with GPUs for virtual machines, with vGPUs, and with shares; with `machines`, GPUs of every type for virtual
    machines. `policy` comes after that of each type.
    """
    types = sorted(name + suffix for suffix in ("", "-mig") for name in shipped_nodes() if _has(name, suffix))
    types += [f"{name}-vfio" for name in shipped_nodes() if machines or name == _FOR_MACHINES]
    made: list[Decoded] = []
    for name in (*types, *_OTHER_TYPES):
        node, slices = _simulated(name, name, policy)
        made += [node, *slices]
    return tuple(made)


def _has(name: str, suffix: str) -> bool:
    """Whether a variant of a node type differs from the plain one."""
    return suffix != "-mig" or any(gpu.mig for gpu in load_description(f"{name}-mig").gpus)


def is_node_type(name: str) -> bool:
    """Whether `simulated_nodes` knows this type: a built-in one, or a file."""
    return any(name == base + suffix for base in shipped_nodes() for suffix in node_types()) or Path(name).is_file()


def simulated_nodes(kind: str, count: int, policy: NodePolicy | None = None) -> list[Decoded]:
    """Idle nodes `new-<kind>-1`, ... with their slices; `kind` ships with the driver or is a description's file.

    Nodes to which the same rules of `policy` apply are simulated once, and get names and UUIDs of their own. Raises
    InputError.
    """
    if not is_node_type(kind):
        *suffixes, last = node_types()[1:]
        raise InputError(
            f"node type {kind}: there is no such file, and the built-in types are {', '.join(shipped_nodes())}, each"
            f" also with {', '.join(suffixes)} or {last} at its end"
        )
    word = re.sub("[^a-z0-9]+", "-", Path(kind).stem.lower()).strip("-")
    made: list[Decoded] = []
    alike: dict[NodePolicy | None, tuple[Node, list[ResourceSlice]]] = {}
    for number in range(1, count + 1):
        name = f"new-{word}-{number}"
        rules = policy and policy.on_node(name)
        try:
            node, slices = alike.setdefault(rules, alike.get(rules) or _simulated(kind, name, rules))
        except DescriptionError as error:
            raise InputError(f"node type {kind}: {error}") from None
        made += [_renamed(node, name), *(like(slice_, name) for slice_ in slices)]
    return made


def _renamed(node: Node, name: str) -> Node:
    """The same node under another name."""
    return replace(node, metadata=ObjectMeta(name=name, labels={**node.metadata.labels, HOSTNAME: name}))


def like(slice_: ResourceSlice, name: str) -> ResourceSlice:
    """The slice as a new node `name` would have it, with healthy devices."""
    if slice_.node_name == name:
        return slice_
    slice_name = slice_.metadata.name.replace(slice_.pool.name, name)
    return replace(
        slice_,
        metadata=ObjectMeta(name=slice_name),
        pool=replace(slice_.pool, name=name),
        node_name=name,
        devices=tuple(
            replace(device, attributes=_renewed(device.attributes, name), taints=()) for device in slice_.devices
        ),
    )


def _renewed(attributes: Mapping[str, AttributeValue], name: str) -> dict[str, AttributeValue]:
    """The attributes with the UUIDs that the same GPUs would have in another node, which is in no ComputeDomain."""
    found = {key: f"GPU-{uuid5(NAMESPACE_DNS, f'{name}.{attributes[key]}')}" for key in _UUIDS & attributes.keys()}
    return {**{key: value for key, value in attributes.items() if key != DOMAIN_ATTRIBUTE}, **found}


def _simulated(kind: str, name: str, policy: NodePolicy | None = None) -> tuple[Node, list[ResourceSlice]]:
    """A node of this type, and its slices. Raises DescriptionError."""
    variant = _variant(kind)
    description = kind.removesuffix(variant.suffix) + variant.description
    identity = description if name == kind else name
    rules = NodePolicy() if policy is None else policy.on_node(name)
    # The policy's way to enforce shares is assumed to work on a simulated node.
    rules = replace(rules, rules=(*variant.policy.rules, *rules.rules), mps=True, memory_limits=True)
    hardware = load_description(description)
    inventory = _inventory(hardware, identity)
    if variant.partitioned:
        inventory = replace(inventory, switches=_partitions(len(inventory.gpus)))
    node = Node(ObjectMeta(name=name, labels={**_labels(inventory, rules), HOSTNAME: name}))
    made = list(node_slices(identity, "", describe(inventory, rules).gpus))
    if hardware.imex_channels:
        found = describe_channels(fabric_of(inventory), len(inventory.gpus), "", SliceFeatures())
        made += node_slices(identity, "", found.gpus, driver=DOMAIN_DRIVER)
    return node, [like(replace(slice_, pool=replace(slice_.pool, generation=1)), name) for slice_ in made]


def _variant(kind: str) -> _Variant:
    """The variant that a node type names. A file is a plain one."""
    shipped = shipped_nodes()
    return next(
        (variant for variant in _VARIANTS[1:] if kind in [f"{name}{variant.suffix}" for name in shipped]), _PLAIN
    )


_inventory = functools.lru_cache(maxsize=64)(inventory_of)


def _labels(inventory: Inventory, policy: NodePolicy) -> dict[str, str]:
    """The labels of a simulated node: those of kubelet, and those of this driver. A simulation has no machine."""
    arm = any(_GRACE.match(gpu.product_name or "") for gpu in inventory.gpus)
    found = {} if not inventory.gpus else dict(gpu_labels(inventory, frozenset(), policy, _MACHINE))
    found.pop(MACHINE_LABEL, None)
    return {"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64" if arm else "amd64", **found}


def _partitions(gpus: int) -> SwitchFacts:
    """NVSwitch partitions of 1, 2, 4 ... neighbouring GPUs."""
    sizes = [1 << power for power in range(gpus.bit_length()) if gpus % (1 << power) == 0]
    groups = [range(first, first + size) for size in sizes for first in range(1, gpus + 1, size)]
    return SwitchFacts(tuple(Partition(number, tuple(group)) for number, group in enumerate(groups, start=1)), True)
