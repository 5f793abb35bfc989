# SPDX-License-Identifier: Apache-2.0
"""`migrate --verify`: the workloads, placed on the devices that the planned policy would publish.

The nodes are idle but for pods without GPUs. Their GPUs have the known properties: those of a product that the
simulation has, or the memory and compute capability of the labels. UUIDs and places are invented.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from ...gpu.devices import describe
from ...gpu.facts import Gpu, Inventory, MigProfile, PciGpu
from ...gpu.layout import node_slices
from ...gpu.mig import MigInstance
from ...gpu.nvml import GpuInstanceProfile, MigMode, Placement
from ...gpu.policy.parse import parse_policy
from ...kube.resource import ResourceSlice
from ...kube.resource.codec import Decoded, decode_node
from ...kube.resource.device import SliceFeatures
from ...names import DRIVER_NAME
from ...scheduler.allocator import Features
from ..answer import Answer, Question, answered
from ..daemons import spread_over_nodes
from ..documents import JSON, Document, within
from ..groups import ReferencedObjects
from ..report import to_json
from ..sources import Source
from ..status import NotesError
from ..workload import Lookup, decode_document, sort_documents
from ..world import is_of_world, world_of
from .configs import PREFIX
from .layout import size_of
from .nodes import GpuNode
from .plan import MigrationPlan
from .workloads import WorkloadFinding, uses_gpus

_DRIVER_VERSION: Final = "570.158.01"


@dataclass(frozen=True, slots=True)
class ClusterBefore:
    """The objects before the migration, from `where`. `lookup` finds other objects that workloads name."""

    documents: Sequence[Document]
    library: ReferencedObjects
    lookup: Lookup
    where: str


def verified(
    plan: MigrationPlan, found: Sequence[WorkloadFinding], before: ClusterBefore, features: Features
) -> Answer:
    """The devices that the workloads get after the migration. Raises InputError, DecodeError and the exceptions of
    `lookup`.
    """
    workloads: list[Document] = []
    for workload in found:
        workloads += [replace(document, value=value) for document, value in workload.planned()]
    placed = {id(document.value) for workload in found for document in workload.documents()}
    documents = before.documents
    workloads += [document for document in documents if id(document.value) in before.library.used - placed]
    given = sort_documents(workloads, before.lookup)
    if given.errors:
        raise NotesError(*given.errors)
    planned = {node.name for node in plan.nodes}
    around = [_after_change(document.value, planned) for document in documents if _is_around(document)]
    nodes = [decode_node(object_) for object_ in around if object_["kind"] == "Node"]
    objects = [*nodes, *planned_slices(plan, features), *plan.all_classes(), *_of_others(documents, plan)]
    world, notes = world_of(around, before.where)
    demands, errors = spread_over_nodes(given.demands, objects, world)
    left_out = tuple(f"{error.subject}: {error.text}" for error in errors)
    source = Source(objects, f"the planned slices of the nodes in {before.where}", (), world, notes, None, left_out)
    return answered(Question(demands, features, unknown=given.unknown), source)


def planned_slices(plan: MigrationPlan, features: Features) -> Iterator[ResourceSlice]:
    """The slices that the driver would publish with the chart's values."""
    policy = replace(parse_policy(to_json(plan.values.get("policy", {}))), mps="mps" in plan.values)
    stored = SliceFeatures(
        features.partitionable_devices,
        features.device_taints,
        features.consumable_capacity,
        counters_beside_devices=features.counters_beside_devices,
    )
    for node in plan.nodes:
        described = describe(inventory_of(node), policy.on_node(node.name), frozenset(), stored)
        for node_slice in node_slices(node.name, "", described.gpus, stored):
            yield replace(node_slice, pool=replace(node_slice.pool, generation=1))


def _is_around(document: Document) -> bool:
    """Whether the object decides where pods go, and is no pod with GPUs: these are placed."""
    if document.kind == "Pod" and uses_gpus(document.value):
        return False
    return document.is_empty_list or is_of_world(document.value.get("apiVersion"), document.kind)


def _of_others(documents: Iterable[Document], plan: MigrationPlan) -> Iterator[Decoded]:
    """The slices and DeviceClasses of other drivers."""
    own = {class_.metadata.name for class_ in plan.all_classes()}
    for document in documents:
        is_slice = document.kind == "ResourceSlice" and within(document.value, "spec").get("driver") != DRIVER_NAME
        if is_slice or (document.kind == "DeviceClass" and document.name not in own):
            yield decode_document(document)


def _after_change(value: JSON, planned: Container[str]) -> JSON:
    """A planned node without the resources that the device plugins have there, and a quota without the amount in use,
    which is computed again. Other objects as they are.
    """
    if value["kind"] == "ResourceQuota":
        return {name: field for name, field in value.items() if name != "status"}
    if value["kind"] != "Node" or value["metadata"]["name"] not in planned:
        return value
    status = within(value, "status")
    kept = {name: amount for name, amount in within(status, "allocatable").items() if not name.startswith(PREFIX)}
    return {**value, "status": {**status, "allocatable": kept}}


def inventory_of(node: GpuNode) -> Inventory:
    """The GPUs of a node as the driver would read them: those for containers, and those for virtual machines."""
    gpus = tuple(_gpu(node, index, profiles) for index, profiles in enumerate(node.gpus))
    ids = [device_id for count, device_id in node.machines.values() for _ in range(count)]
    machines = (
        PciGpu(position, _address(position), int(device_id, 16), None, "vfio-pci", position, None, None, None)
        for position, device_id in enumerate(ids, start=len(gpus))
    )
    return Inventory(_DRIVER_VERSION, None, gpus, pci_gpus=tuple(machines))


def _gpu(node: GpuNode, index: int, profiles: tuple[str, ...] | None) -> Gpu:
    board, uuid = node.board, f"GPU-{uuid5(NAMESPACE_DNS, f'{node.name}.{index}')}"
    known = {name: _profile(node, name, 1000 + number) for number, name in enumerate(dict.fromkeys(profiles or ()))}
    gpu = Gpu(
        index=index,
        minor=index,
        uuid=uuid,
        product_name=board.product_name if board is not None else node.product.replace("-", " ") or None,
        brand=None,
        architecture=None,
        compute_capability=node.facts.compute_capability,
        memory=node.facts.memory_mib << 20 or None,
        pci_address=_address(index),
        pcie_root=None,
        numa_node=None,
        addressing_mode=None,
        mig_mode=None if profiles is None else MigMode(current=True, pending=True),
        mig_profiles=tuple(known.values()),
    )
    return replace(gpu, mig_instances=tuple(_instances(gpu, [known[name] for name in profiles or ()])))


def _profile(node: GpuNode, name: str, number: int) -> MigProfile:
    """The profile as the board has it. Of a board that the simulation lacks, only what the name tells is known."""
    model = node.board.profile_by_name(name) if node.board is not None else None
    if model is not None:
        return MigProfile(name, model.info, model.placements)
    size = size_of(name, None, node.facts.memory_mib)
    info = GpuInstanceProfile(0, number, name, size.slices, size.most, size.memory_mib, *[0] * 6)
    return MigProfile(name, info, (Placement(0, size.memory_slices),))


def _instances(gpu: Gpu, profiles: Iterable[MigProfile]) -> Iterator[MigInstance]:
    """An instance of each profile, one after the other."""
    start = 0
    for number, profile in enumerate(profiles, start=1):
        placement = Placement(start, profile.placements[0].size)
        start += placement.size
        uuid = f"MIG-{uuid5(NAMESPACE_DNS, f'{gpu.uuid}.{number}')}"
        yield MigInstance(gpu.mig_device(profile.info.id, placement), number, 0, uuid)


def _address(position: int) -> str:
    return f"0000:{position + 16:02x}:00.0"
