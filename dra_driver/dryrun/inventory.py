# SPDX-License-Identifier: Apache-2.0
"""The devices to allocate from: slices in files, a live cluster, or built-in example nodes."""

import functools
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from .. import DRIVER_NAME
from ..command import InputError
from ..computedomains import CHANNEL_TYPE, DAEMON_TYPE, DOMAIN_ATTRIBUTE
from ..computedomains import DRIVER as DOMAIN_DRIVER
from ..computedomains.devices import describe_channels
from ..computedomains.names import CHANNEL_CLASS, DAEMON_CLASS
from ..gpu.devices import describe
from ..gpu.fabric import Partition, SwitchFacts
from ..gpu.imex import fabric_of, read_channels
from ..gpu.inventory import read_inventory
from ..gpu.layout import node_slices
from ..gpu.policy import GpuRule, NodePolicy
from ..gpu.simulation import DescriptionError, SimulatedNode, load_description, shipped_nodes
from ..kubeapi import NODES, ApiClient, Kind, NotFoundError, Transport, newest_dialect
from ..resource import AttributeValue, DeviceClass, Node, ObjectMeta, ResourceSlice
from ..resource.codec import Decoded, DecodeError, decode
from ..resource.device import SliceFeatures
from ..scheduling import READ, Reader
from .documents import Document
from .workload import decode_document
from .world import Found, World, is_of_world, reduced, world_of, world_of_cluster

_CHANNEL: Final = f"device.attributes['{DOMAIN_DRIVER}']"
CLASSES = tuple(
    DeviceClass(ObjectMeta(name=name), (f"device.driver == '{driver}' && {selector}",))
    for name, driver, selector in (
        *(
            (name, DRIVER_NAME, f"device.attributes['{DRIVER_NAME}'].type == '{kind}'")
            for name, kind in (("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig"), ("vfio.gpu.nvidia.com", "vfio"))
        ),
        (DAEMON_CLASS, DOMAIN_DRIVER, f"{_CHANNEL}.type == '{DAEMON_TYPE}'"),
        (CHANNEL_CLASS, DOMAIN_DRIVER, f"{_CHANNEL}.type == '{CHANNEL_TYPE}' && {_CHANNEL}.id == 0"),
    )
)
"""The DeviceClasses that the driver's chart installs."""

PODS: Final = Kind("v1", "pods", namespaced=True)

_VGPU_HOST: Final = "l40sx4-vgpu"
_VGPU_TYPES: Final = ("4Q", "8Q", "12Q", "24Q")
_MEMORY: Final = "/dev/shm"  # noqa: S108 - what is made in it has a name of its own
_UUIDS: Final = {"uuid", "parentUUID"}
_PLURALS: Final = {
    "ResourceSlice": "resourceslices",
    "DeviceClass": "deviceclasses",
    "ResourceClaim": "resourceclaims",
}
_SLICES_WITH: Final = ("ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "Node")
"""Kinds that concern devices, which files for --slices may have."""


def from_documents(
    documents: Sequence[Document], where: str, around: Sequence[Document] = (), *, devices_only: bool = False
) -> Found:
    """ResourceSlices and what is with them, and the world unless `devices_only`, to which objects `around` belong, too.

    Raises InputError.
    """
    objects = [one for one in documents if not one.is_empty_list]
    for one in objects:
        if one.kind not in _SLICES_WITH and not is_of_world(one.value.get("apiVersion"), one.kind):
            known = ", ".join(dict.fromkeys([*_SLICES_WITH, *(kind for _, kind in READ)]))
            raise InputError(f"--slices: {one}: objects of this kind decide nothing: leave it out (known are {known})")
    decoded = tuple(decode_document(document) for document in objects if document.kind in _SLICES_WITH)
    world, notes = (None, ()) if devices_only else _world_of([*around, *documents], where)
    if world is None and not any(isinstance(one, ResourceSlice) for one in decoded):
        raise InputError(f"--slices {where}: there is no ResourceSlice in it")
    return Found(decoded, world, notes)


def _world_of(documents: Sequence[Document], where: str) -> tuple[World | None, tuple[str, ...]]:
    try:
        return world_of((document.value for document in documents if document.kind != "ResourceSlice"), where)
    except DecodeError as error:
        raise InputError(f"{where}: {error}") from None


def kinds(client: ApiClient) -> dict[str, Kind]:
    """What is read of a cluster, by the name of the kind. Raises ApiError."""
    version = newest_dialect(client).api_version
    return {**{name: Kind(version, plural) for name, plural in _PLURALS.items()}, "Node": NODES}


def get_object(client: ApiClient, kind: str, namespace: str, name: str) -> Decoded | None:
    """A ResourceClaim or template of a cluster; None where there is none. Raises ApiError and DecodeError."""
    where = Kind(newest_dialect(client).api_version, f"{kind.lower()}s", namespaced=True)
    try:
        return decode({"apiVersion": where.api_version, "kind": kind, **client.get(where, name, namespace)})
    except NotFoundError:
        return None


def from_cluster(connection: Transport, *, devices_only: bool, around: Sequence[Document] = ()) -> Found:
    """The slices, classes, claims and nodes of a live cluster, and the world around them unless `devices_only`.

    Only reads. Raises ApiError and DecodeError.
    """
    client = ApiClient(connection)
    reader = Reader()
    for document in around:
        reader.add(document.value)
    objects: list[Decoded] = []
    known = kinds(client)
    for name, kind in known.items():
        if name == "Node" and not devices_only:
            for node, placed_on in reduced(client, kind, name, lambda one: (decode(one), reader.decode(one))):
                objects.append(node)
                reader.keep(name, placed_on)
        else:
            objects += reduced(client, kind, name, decode)
    if devices_only:
        return Found(tuple(objects))
    templates = Kind(known["ResourceClaim"].api_version, "resourceclaimtemplates")
    world, notes = world_of_cluster(client, reader, templates, connection.server)
    return Found(tuple(objects), world, notes)


@functools.cache
def built_in_nodes(*, machines: bool = False) -> tuple[Decoded, ...]:
    """Every node that ships with the driver, once with MIG mode off and once with it on, and nothing in use. With
    `machines`, whole GPUs can also be given to virtual machines, and are in NVSwitch partitions, and there is a host of
    vGPUs.
    """
    policy = NodePolicy((GpuRule(passthrough=True),) if machines else ())
    nodes = [pair for name in shipped_nodes() for pair in ((name, policy), (f"{name}-mig", NodePolicy()))]
    nodes += [(_VGPU_HOST, NodePolicy((GpuRule(vgpu_types=_VGPU_TYPES),)))] if machines else []
    return tuple(one for node, its in nodes for one in _simulated(node, node, its, partitioned=machines))


def is_node_type(name: str) -> bool:
    """Whether `simulated_nodes` knows this kind: a built-in one, or a file."""
    return any(name == kind or name in (f"{kind}-mig", f"{kind}-mixed") for kind in shipped_nodes()) or (
        Path(name).is_file()
    )


def simulated_nodes(kind: str, count: int, policy: NodePolicy | None = None) -> list[Decoded]:
    """Idle nodes `new-<kind>-1`, ... with their slices; `kind` ships with the driver or is a description's file.

    One is simulated, the others are the same with names and UUIDs of their own. Raises InputError.
    """
    word = re.sub("[^a-z0-9]+", "-", Path(kind).stem.lower()).strip("-")
    names = [f"new-{word}-{number}" for number in range(1, count + 1)]
    try:
        slices = list(_simulated(kind, names[0], policy and policy.on_node(names[0])))
    except (DescriptionError, OSError) as error:
        raise InputError(f"node type {kind}: {error}") from None
    made: list[Decoded] = []
    for name in names:
        made += [_node(name), *(like(one, name) for one in slices)]
    return made


def with_defaults(objects: Iterable[Decoded]) -> list[Decoded]:
    """The objects, the driver's classes where there is no class of that name, and a Node for each node name."""
    given = list(objects)
    classes = {one.metadata.name for one in given if isinstance(one, DeviceClass)}
    return with_nodes_of_slices([*given, *(one for one in CLASSES if one.metadata.name not in classes)])


def with_nodes_of_slices(objects: Iterable[Decoded]) -> list[Decoded]:
    """The objects, and a Node for each node name of a slice."""
    given = list(objects)
    nodes = {one.name for one in given if isinstance(one, Node)}
    named = {one.node_name: None for one in given if isinstance(one, ResourceSlice) and one.node_name}
    return [
        *given,
        *(_node(name) for name in named if name and name not in nodes),
    ]


def _node(name: str) -> Node:
    return Node(ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))


def like(one: ResourceSlice, name: str) -> ResourceSlice:
    """The slice as a new node `name` would have it, with healthy devices."""
    if one.node_name == name:
        return one
    slice_name = one.metadata.name.replace(one.pool.name, name)
    return replace(
        one,
        metadata=ObjectMeta(name=slice_name),
        pool=replace(one.pool, name=name),
        node_name=name,
        devices=tuple(
            replace(device, attributes=_renewed(device.attributes, name), taints=()) for device in one.devices
        ),
    )


def _renewed(attributes: Mapping[str, AttributeValue], name: str) -> dict[str, AttributeValue]:
    """The attributes with the UUIDs that the same GPUs would have in another node, which is in no ComputeDomain."""
    found = {key: f"GPU-{uuid5(NAMESPACE_DNS, f'{name}.{attributes[key]}')}" for key in _UUIDS & attributes.keys()}
    return {**{key: value for key, value in attributes.items() if key != DOMAIN_ATTRIBUTE}, **found}


def _simulated(
    kind: str, name: str, policy: NodePolicy | None = None, *, partitioned: bool = False
) -> Iterator[ResourceSlice]:
    # In memory, where there is a folder for that: on some disks the files of all built-in nodes take seconds.
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dra-dryrun-", dir=memory) as folder:
        node = SimulatedNode.create(Path(folder), load_description(kind), name)
        nvml = node.nvml()
        nvml.initialize()
        inventory = read_inventory(nvml, node.driver_root / "sys")
        switches = _partitions(len(inventory.gpus)) if partitioned else node.fabric.facts
        inventory = replace(inventory, switches=switches)
        made = list(node_slices(name, "", describe(inventory, policy or NodePolicy()).gpus))
        if read_channels(node.driver_root / "proc") is not None:
            found = describe_channels(fabric_of(inventory), len(inventory.gpus), "", SliceFeatures())
            made += node_slices(name, "", found.gpus, driver=DOMAIN_DRIVER)
    for one in made:
        yield replace(one, pool=replace(one.pool, generation=1))


def _partitions(gpus: int) -> SwitchFacts:
    """NVSwitch partitions of 1, 2, 4 ... neighbouring GPUs."""
    sizes = [1 << power for power in range(gpus.bit_length()) if gpus % (1 << power) == 0]
    groups = [range(first, first + size) for size in sizes for first in range(1, gpus + 1, size)]
    return SwitchFacts(tuple(Partition(number, tuple(group)) for number, group in enumerate(groups, start=1)), True)
