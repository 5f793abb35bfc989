# SPDX-License-Identifier: Apache-2.0
"""Everything except devices that affects scheduling: nodes and their pods, volumes, and the policies for new objects.

Files have all objects of their cluster. Of a live cluster, kinds that may not be listed are ignored and named.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from ..kube.api import ApiClient, Kind, NotFoundError, StatusError
from ..kube.kinds import kind_named
from ..kube.resource import Node, ResourceClaimTemplate
from ..kube.resource.codec import Decoded, DecodeError
from ..scheduler.allocator import Cluster, Features
from ..scheduler.pods import READ, ClusterNode, Policies, Reader, Snapshot
from .rights import FORBIDDEN
from .status import Note

T = TypeVar("T")

_KEPT: Final = "kept"
ROOM: Final = 1 << 50
"""Of each resource on a node that is made up: more than any pod asks for."""
KINDS: Final = {kind: kind_named(version, kind) for version, kind in READ}
"""Where the objects of a world are, by their kind."""
TEMPLATE: Final = "ResourceClaimTemplate"

DEVICES_ONLY: Final = "only devices are evaluated"


@dataclass(frozen=True, eq=False)
class World:
    """The objects that were read. `unknown` are kinds that were not read. References of pods to them are ignored."""

    around: Snapshot
    policies: Policies
    templates: tuple[ResourceClaimTemplate, ...] = ()
    unknown: frozenset[str] = frozenset()

    def at(self, cluster: Cluster, features: Features) -> Snapshot:
        """All of it, with the devices of `cluster` and those of its nodes that there are."""
        known = {node.name: node for node in self.around.nodes}
        nodes = tuple(known[node.name] for node in cluster.nodes if node.name in known)
        there = replace(cluster, nodes=tuple(node.node for node in nodes))
        return replace(self.around, cluster=there, nodes=nodes, extended_resources=features.extended_resources)

    def with_nodes(self, nodes: Iterable[Node]) -> "World":
        """The world with these nodes besides, which have room for every pod."""
        room = dict.fromkeys(("cpu", "memory", "ephemeral-storage", "pods"), ROOM)
        more = tuple(ClusterNode(node, room) for node in nodes)
        return replace(self, around=replace(self.around, nodes=(*self.around.nodes, *more)))

    def idle(self) -> "World":
        """The world without pods, and quotas of which nothing is used."""
        quotas = tuple(replace(quota, used=None) for quota in self.policies.quotas)
        policies = replace(self.policies, quotas=quotas)
        return replace(self, around=replace(self.around, pods=()), policies=policies, templates=())


@dataclass(frozen=True, slots=True)
class Found:
    """Objects that concern devices, the world around them, and what has to be said about how it was read.

    `warnings` are about the devices. `unknown` are notes about unread facts that may change verdicts (`status`).
    `unknown_of_pods` are such notes that concern only whole pods. `errors` are about pods that cannot be read.
    `open_nodes` are nodes of which only the names are known (`selection`).
    """

    objects: tuple[Decoded, ...]
    world: World | None = None
    notes: tuple[str, ...] = ()
    unknown: tuple[Note, ...] = ()
    unknown_of_pods: tuple[Note, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[Note, ...] = ()
    open_nodes: frozenset[str] = frozenset()


def raise_error(_: Mapping[str, Any], error: DecodeError) -> None:
    """Leaves out nothing."""
    raise error


def is_of_world(version: object, kind: object) -> bool:
    """Whether objects of the kind decide something besides devices."""
    return (version, kind) in READ


def world_of(
    values: Iterable[Mapping[str, Any]],
    where: str,
    leave_out: Callable[[Mapping[str, Any], DecodeError], None] = raise_error,
) -> tuple[World | None, tuple[str, ...]]:
    """The world that objects (JSON) make up, and what to say about it. Raises DecodeError.

    None when no node says what it can allocate: no pod would fit on it. `leave_out` is called for a pod that cannot be
    read.
    """
    reader = Reader()
    kinds: set[str] = set()
    for value in values:
        kind = value["kind"]
        if value.get("items") == []:  # a list that says that there are none
            kinds.add(kind.removesuffix("List"))
        elif is_of_world(value.get("apiVersion"), kind) or kind == TEMPLATE:
            try:
                read = reader.add(value)
            except DecodeError as error:
                if kind != "Pod":
                    raise
                leave_out(value, error)
                read = True
            kinds.update([kind] if read else ())
    unknown = frozenset(kind for _, kind in READ if kind not in kinds)
    notes = (f"no pods are in {where}: its nodes are taken to be idle",) if "Pod" in unknown else ()
    return _world(reader, unknown, notes, where)


def with_world_of_cluster(found: Found, client: ApiClient, reader: Reader, templates: Kind, where: str) -> Found:
    """The found objects, with the world of a cluster, of which `reader` has the nodes. Raises ApiError."""
    left_out = UnreadableObjects()
    wanted = {name: kind for name, kind in {**KINDS, TEMPLATE: templates}.items() if name != "Node"}
    around, forbidden = read_around(client, wanted, reader.decode, left_out)
    for name, kept in around:
        reader.keep(name, kept)
    found = replace(found, unknown=(*found.unknown, *left_out.notes))
    return with_known_world(found, reader, forbidden, where)


class UnreadableObjects:
    """Notes about stored objects that cannot be read. Such an object is left out, and hides no other."""

    def __init__(self) -> None:
        self._notes: dict[Note, None] = {}

    def add(self, error: DecodeError) -> None:
        """Leaves out the object of which the error tells the name (`named_error`)."""
        self._notes[Note("", f"{error}: the object cannot be read, and is left out")] = None

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes, each once: a list that expires is read again."""
        return tuple(self._notes)


def read_around(
    client: ApiClient,
    kinds: Mapping[str, Kind],
    reduce: Callable[[Mapping[str, Any]], T],
    left_out: UnreadableObjects | None = None,
) -> tuple[list[tuple[str, T]], list[str]]:
    """Each object of some kinds, reduced by `reduce`, with the name of its kind, and the kinds that may not be listed.

    Kinds that the server does not know are passed over. Raises ApiError and what `reduce` raises (see `reduced`).
    """
    found: list[tuple[str, T]] = []
    forbidden = []
    for name, kind in kinds.items():
        try:
            found += ((name, kept) for kept in reduced(client, kind, name, reduce, left_out))
        except NotFoundError:
            continue
        except StatusError as error:
            if error.status != FORBIDDEN:
                raise
            forbidden.append(name)
    return found, forbidden


def reduced(
    client: ApiClient,
    kind: Kind,
    name: str,
    reduce: Callable[[Mapping[str, Any]], T],
    left_out: UnreadableObjects | None = None,
) -> Iterator[T]:
    """Each object of a collection, reduced by `reduce`. At most one page of whole objects is in memory.

    Objects in lists lack their version and kind, which `reduce` is given. A list that expires starts again, so callers
    must not use an object before all objects are read. Raises ApiError and what `reduce` raises: a DecodeError names
    the object. With `left_out`, an object with such an error is left out.
    """

    def kept(value: dict[str, Any]) -> dict[str, Any]:
        try:
            return {_KEPT: reduce({"apiVersion": kind.api_version, "kind": name, **value})}
        except DecodeError as error:
            named = named_error(error, name, value)
            if left_out is None:
                raise named from None
            left_out.add(named)
            return {}

    return (item[_KEPT] for item in client.list(kind, keep=kept).items if _KEPT in item)


def named_error(error: DecodeError, kind: str, value: Mapping[str, Any]) -> DecodeError:
    """The error with the kind, the namespace and the name of the object that a server has stored."""
    metadata = value.get("metadata") or {}
    name = "/".join(filter(None, (metadata.get("namespace"), metadata.get("name"))))
    return DecodeError(f"{kind} {name}: {error.path}" if error.path else f"{kind} {name}", error.problem)


def may_list(client: ApiClient, kind: Kind) -> bool | None:
    """Whether objects of a kind may be listed; None when the server does not know the kind. Raises ApiError."""
    try:
        client.list(kind, keep=lambda _: {})
    except NotFoundError:
        return None
    except StatusError as error:
        if error.status != FORBIDDEN:
            raise
        return False
    return True


def with_known_world(found: Found, reader: Reader, forbidden: Sequence[str], where: str) -> Found:
    """The found objects, with the world of a cluster, except kinds that may not be listed."""
    if "Pod" in forbidden:
        return replace(found, unknown_of_pods=(Note("", f"{DEVICES_ONLY}: listing pods is not allowed"),))
    names = ", ".join(KINDS[name].plural if name in KINDS else "resourceclaimtemplates" for name in forbidden)
    unknown = (Note("", f"not considered, as listing them is not allowed: {names}"),) if names else ()
    world, notes = _world(reader, forbidden, (), where)
    return replace(found, world=world, notes=notes, unknown_of_pods=unknown)


def _world(
    reader: Reader, unknown: Collection[str], notes: tuple[str, ...], where: str
) -> tuple[World | None, tuple[str, ...]]:
    around = reader.snapshot()
    if not any(node.allocatable.get("cpu") or node.allocatable.get("pods") for node in around.nodes):
        return None, (f"{DEVICES_ONLY}: no node of {where} says what it can allocate",)
    return World(around, reader.policies(), tuple(reader.templates), frozenset(unknown)), notes
