# SPDX-License-Identifier: Apache-2.0
"""The devices to allocate from: slices in files, a live cluster, or built-in example nodes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ..domains.names import CHANNEL_CLASS, CHANNEL_TYPE, DAEMON_CLASS, DAEMON_TYPE
from ..domains.names import DRIVER as DOMAIN_DRIVER
from ..kube.api import ApiClient, NotFoundError, Transport, newest_dialect, newest_taint_rules
from ..kube.kinds import NODES, Kind, claims_of, classes_of, kind_named, slices_of
from ..kube.resource import DeviceClass, Node, ObjectMeta, ResourceSlice
from ..kube.resource.codec import Decoded, DecodeError, decode
from ..names import DRIVER_NAME
from ..process.collection import collection_paused
from ..process.command import InputError
from ..scheduler.pods import READ, Reader
from .documents import Document
from .podgroups import KINDS as POD_GROUP_KINDS
from .podgroups import concerns_groups
from .revisions import REVISIONS
from .status import Note
from .unread import decode_kept
from .world import (
    Found,
    UnreadableObjects,
    World,
    is_of_world,
    named_error,
    read_around,
    reduced,
    with_world_of_cluster,
    world_of,
)

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


HOSTNAME: Final = "kubernetes.io/hostname"
_TAINT_RULE: Final = "DeviceTaintRule"
_KUEUE: Final = "kueue.x-k8s.io/"
"""In the versions of Kueue's objects, which decide about queues."""
_SLICES_WITH: Final = ("ResourceSlice", _TAINT_RULE, "DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "Node")
"""Kinds that concern devices, which files for --slices may have."""


def from_documents(
    documents: Sequence[Document], where: str, around: Sequence[Document] = (), *, devices_only: bool = False
) -> Found:
    """ResourceSlices and what is with them, and the world unless `devices_only`, to which objects `around` belong, too.

    Raises InputError.
    """
    objects = [document for document in documents if not document.is_empty_list]
    for object_ in objects:
        version = object_.value.get("apiVersion")
        is_known = object_.kind in (*_SLICES_WITH, *REVISIONS) or is_of_world(version, object_.kind)
        if not is_known and not concerns_groups(object_) and not _is_of_kueue(version, object_.kind):
            known = ", ".join(dict.fromkeys([*_SLICES_WITH, *(kind for _, kind in READ), *POD_GROUP_KINDS, *REVISIONS]))
            raise InputError(
                f"--slices: {object_}: objects of this kind decide nothing: leave it out (known are {known})"
            )
    with collection_paused():
        decoded = tuple(decode_kept(document) for document in objects if document.kind in _SLICES_WITH)
    world, notes, errors = (None, (), ()) if devices_only else _world_of([*around, *documents], where)
    if world is None and not any(isinstance(object_, ResourceSlice) for object_ in decoded):
        raise InputError(f"--slices {where}: there is no ResourceSlice in it")
    return Found(decoded, world, notes, errors=errors)


def _is_of_kueue(version: object, kind: str) -> bool:
    """Whether an object belongs to Kueue, or may have its configuration."""
    return (version, kind) == ("v1", "ConfigMap") or _KUEUE in str(version)


def _world_of(documents: Sequence[Document], where: str) -> tuple[World | None, tuple[str, ...], tuple[Note, ...]]:
    """The world, what to say about it, and errors about pods that cannot be read. Raises InputError."""
    read = {id(document.value): document for document in documents if document.kind != "ResourceSlice"}
    errors: list[Note] = []

    def leave_out(value: Mapping[str, Any], error: DecodeError) -> None:
        errors.append(read[id(value)].note(str(error), error.path))

    try:
        world, notes = world_of((document.value for document in read.values()), where, leave_out)
    except DecodeError as error:
        raise InputError(f"{where}: {error}") from None
    return world, notes, tuple(errors)


def kinds(client: ApiClient) -> dict[str, Kind]:
    """The objects about devices that are read from a cluster, by the name of the kind. Raises ApiError."""
    dialect = newest_dialect(client)
    found = {
        "ResourceSlice": slices_of(dialect),
        "DeviceClass": classes_of(dialect),
        "ResourceClaim": claims_of(dialect),
        "Node": NODES,
    }
    rules = newest_taint_rules(client)
    return found if rules is None else {**found, _TAINT_RULE: rules}


def template_kind(known: Mapping[str, Kind]) -> Kind:
    """The kind of ResourceClaimTemplates, in the version of the other `kinds`."""
    return kind_named(known["ResourceClaim"].api_version, "ResourceClaimTemplate", namespaced=True)


def get_object(client: ApiClient, kind: str, namespace: str, name: str) -> Decoded | None:
    """A ResourceClaim or template of a cluster; None where there is none. Raises ApiError and DecodeError."""
    where = kind_named(newest_dialect(client).api_version, kind, namespaced=True)
    try:
        value = {"apiVersion": where.api_version, "kind": kind, **client.get(where, name, namespace)}
        return stored(value)
    except NotFoundError:
        return None
    except DecodeError as error:
        raise named_error(error, kind, value) from None


def stored(value: Mapping[str, Any]) -> Decoded:
    """The object that a server has stored: it may be of a newer Kubernetes, with fields that are unknown here. Raises
    DecodeError.
    """
    return decode(value, strict=False)


def from_cluster(connection: Transport, *, devices_only: bool, around: Sequence[Document] = ()) -> Found:
    """The slices, classes, claims, taint rules and nodes of a live cluster, and the world around them unless
    `devices_only`.

    Only reads. An object that cannot be read is left out, and a note says so. Raises ApiError, and DecodeError for
    objects `around`.
    """
    left_out = UnreadableObjects()
    client = ApiClient(connection)
    reader = Reader()
    for document in around:
        reader.add(document.value)
    objects: list[Decoded] = []
    known = kinds(client)
    forbidden: list[str] = []
    for name, kind in known.items():
        if name == "Node" and not devices_only:
            for node, placed_on in reduced(client, kind, name, lambda pod: (stored(pod), reader.decode(pod)), left_out):
                objects.append(node)
                reader.keep(name, placed_on)
        elif name in may_lack(devices_only=devices_only):
            read, refused = read_around(client, {name: kind}, stored, left_out)
            objects += (decoded for _, decoded in read)
            forbidden += refused
        else:
            objects += reduced(client, kind, name, stored, left_out)
    found = found_without(forbidden, objects)
    found = replace(found, unknown=(*found.unknown, *left_out.notes))
    return (
        found if devices_only else with_world_of_cluster(found, client, reader, template_kind(known), connection.server)
    )


def may_lack(*, devices_only: bool) -> Collection[str]:
    """The `kinds` without which there are answers, too."""
    return (_TAINT_RULE, "Node") if devices_only else (_TAINT_RULE,)


def found_without(forbidden: Collection[str], objects: Iterable[Decoded]) -> Found:
    """The known devices if objects of the kinds `forbidden` may not be listed."""
    given = list(objects)
    unknown, warnings, open_nodes = [], [], frozenset[str]()
    if _TAINT_RULE in forbidden:
        unknown.append(
            Note("", f"not considered, as listing them is not allowed: {kind_named('', _TAINT_RULE).plural}")
        )
    if "Node" in forbidden:
        open_nodes = frozenset(nodes_without_objects(given))
        given = with_nodes_of_slices(given)
        warnings.append(
            "listing nodes is not allowed: nodes that slices name are assumed, and their labels are not known"
        )
    return Found(tuple(given), unknown=tuple(unknown), warnings=tuple(warnings), open_nodes=open_nodes)


def with_nodes_of_slices(objects: Iterable[Decoded]) -> list[Decoded]:
    """The objects, and a Node for each node name of a slice."""
    given = list(objects)
    return [*given, *map(_node, nodes_without_objects(given))]


def nodes_without_objects(objects: Sequence[Decoded]) -> Collection[str]:
    """The nodes that slices name and of which there is no Node object, in the order of the slices."""
    nodes = {object_.name for object_ in objects if isinstance(object_, Node)}
    named = (object_.node_name for object_ in objects if isinstance(object_, ResourceSlice) and object_.node_name)
    return dict.fromkeys(name for name in named if name not in nodes)


def _node(name: str) -> Node:
    """A node of which only the name is known."""
    return Node(ObjectMeta(name=name, labels={HOSTNAME: name}))
