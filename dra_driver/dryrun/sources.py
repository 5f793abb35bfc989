# SPDX-License-Identifier: Apache-2.0
"""The source of the devices: the options that all subcommands share, and the place that they name."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ..gpu.policy import NodePolicy
from ..kube.api import (
    ApiClient,
    ApiError,
    ConnectionConfigError,
    NotFoundError,
    StatusError,
    newest_dialect,
    served_versions,
)
from ..kube.kinds import PODS, Kind, kind_named, templates_of
from ..kube.releases import has_rule
from ..kube.resource import DeviceClass, DeviceTaintRule, Node, ResourceSlice
from ..kube.resource.codec import Decoded, DecodeError
from ..kube.resource.meta import empty
from ..process.command import DurationParameter, InputError, flags
from ..scheduler.allocator import Features, with_taint_rules
from .completion import complete_values, contexts, namespaces
from .connection import ClusterChoice, ClusterConnection
from .documents import Document, Select, read_documents, within
from .domains import with_templates
from .emptiness import release_notes
from .groups import NOT_AMONG_FILES, Key, key_of
from .inventory import (
    from_cluster,
    from_documents,
    get_object,
    kinds,
    nodes_without_objects,
    template_kind,
    with_nodes_of_slices,
)
from .nodetypes import built_in_nodes, classes_with_resources
from .options import option
from .podgroups import KINDS as POD_GROUP_KINDS
from .podgroups import POD_GROUP, SavedPodGroups, served_kinds, workloads_of_cluster
from .references import POD, Reference
from .release import NAMES_NONE, Rules, ServerRelease, server_of
from .revisions import REVISIONS, Templates, none_known, template_of
from .rights import DEVICES, FORBIDDEN, Needs, advice, missing, rights
from .status import Note, NotesError
from .unread import DEVICE_SELECTOR, decode_kept
from .whatif import WhatIf, changed, new_nodes, with_labels
from .workload import Lookup
from .world import DEVICES_ONLY, KINDS, TEMPLATE, Found, World, is_of_world, read_around

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

JSON = dict[str, Any]

NO_NODE_LEFT = "no node is left: --drain names all of them"
_UNAUTHORIZED = 401
_NOT_IN_CLUSTER = "is not in the cluster"
_SERVED = (
    "the DeviceClasses are those of the driver's chart with deviceClasses.gpu.extendedResourceName=nvidia.com/gpu and"
    " all MIG profiles in deviceClasses.migProfiles"
)

_PLACES = {
    "slices": ("--slices", "files"),
    "kubeconfig": ("--kubeconfig", "cluster"),
    "context": ("--context", "cluster"),
    "in_cluster": ("--in-cluster", "cluster"),
    "impersonated": ("--as", "cluster"),
    "built_in": ("--built-in", "built-in nodes"),
}
"""The flags that name a place by their parameters, and the place that each names."""

_NAMESPACE = option(
    "-n",
    "--namespace",
    metavar="NAME",
    default="",
    shell_complete=complete_values(namespaces),
    help="The namespace of objects that name none; the default is that of the context.",
)
_OPTIONS = (
    option(
        "--slices",
        multiple=True,
        metavar="FILE",
        help="Take the devices from the ResourceSlices in this file or folder, such as one that `snapshot` wrote;"
        " DeviceClasses, Nodes and ResourceClaims there count too. May be repeated.",
    ),
    option(
        "--kubeconfig",
        metavar="FILE",
        default="",
        help="Take the devices from the cluster of this file (read only). The default is, as for kubectl, $KUBECONFIG"
        " and then ~/.kube/config.",
    ),
    option(
        "--context",
        metavar="NAME",
        default="",
        shell_complete=complete_values(contexts),
        help="The context of the kubeconfig to use.",
    ),
    option(
        "--in-cluster",
        is_flag=True,
        help="Take the devices from the cluster that this runs in, with the pod's service account.",
    ),
    option("--as", "impersonated", metavar="USER", default="", help="Act as this user."),
    _NAMESPACE,
    option(
        "--request-timeout",
        "seconds",
        type=DurationParameter("10s or 2m", plain_numbers=True),
        default="10s",
        show_default=True,
        metavar="DURATION",
        help="How long the API server may take for one answer. 0 is no limit.",
    ),
    option(
        "--built-in",
        is_flag=True,
        help="Take the devices from the built-in example nodes, all idle. The default where no cluster is configured.",
    ),
)


@dataclass(frozen=True, slots=True)
class Source:
    """Slices, classes, nodes and claims, and in words where they are from and what was changed.

    `world` is None where only devices are considered; `notes` say why, or what else of pods is not considered.
    `warnings` are about the devices. `server` is set where a cluster was asked. `unknown` are notes about unknown facts
    that may change verdicts (`status`). `unknown_of_pods` are such notes that concern only whole pods. `gates` are the
    feature gates that the user or the cluster names. `open_nodes` are nodes of which some labels are not known
    (`selection`). `served` says which extended resources DeviceClasses serve that no cluster and no file has. `errors`
    are about demands that cannot be placed there, and about pods of the place that cannot be read. `templates` are the
    templates that pods of the place were made from.
    """

    objects: Sequence[Decoded]
    where: str
    assumptions: tuple[str, ...] = ()
    world: World | None = None
    notes: tuple[str, ...] = ()
    server: ServerRelease | None = None
    warnings: tuple[str, ...] = ()
    unknown: tuple[Note, ...] = ()
    unknown_of_pods: tuple[Note, ...] = ()
    gates: Mapping[str, bool] = field(default_factory=empty)
    open_nodes: frozenset[str] = frozenset()
    served: str = ""
    errors: tuple[Note, ...] = ()
    templates: Templates = none_known


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of the objects: files, a cluster, or the built-in example nodes.

    `asked` says whether the built-in nodes were asked for; if not, no cluster is configured. `namespace` is -n.
    """

    slices: tuple[str, ...] = ()
    cluster: ClusterChoice | None = None
    asked: bool = False
    namespace: str = ""

    @property
    def is_built_in(self) -> bool:
        """Whether the devices are those of the built-in example nodes."""
        return not self.slices and self.cluster is None


def _origin(  # noqa: PLR0913, PLR0917  # one for each flag
    slices: tuple[str, ...],
    kubeconfig: str,
    context: str,
    in_cluster: bool,
    impersonated: str,
    namespace: str,
    seconds: float,
    built_in: bool,
) -> Origin:
    places = _named_places()
    if "slices" in places:
        return Origin(slices, namespace=namespace)
    if "built_in" in places:
        return Origin(asked=True, namespace=namespace)
    choice = ClusterChoice(kubeconfig, context, in_cluster, namespace, impersonated, seconds)
    try:
        if places or choice.is_configured:
            return Origin(cluster=choice, namespace=namespace)
    except ConnectionConfigError as error:
        raise InputError(str(error)) from None
    return Origin(namespace=namespace)


def _origin_of_cluster(
    kubeconfig: str, context: str, in_cluster: bool, impersonated: str, namespace: str, seconds: float
) -> Origin:
    return _origin((), kubeconfig, context, in_cluster, impersonated, namespace, seconds, built_in=False)


def _named_places() -> list[str]:
    """The parameters that name the place; what is on the command line counts more than the environment.

    Raises InputError where they exclude each other.
    """
    context = click.get_current_context()
    named = [name for name in _PLACES if context.params.get(name)]
    typed = [name for name in named if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    places = {_PLACES[name][1] for name in typed or named}
    named = [name for name in named if _PLACES[name][1] in places]
    clash = named if len(places) > 1 else []
    if not clash and "in_cluster" in named:
        clash = [name for name in named if name != "impersonated"]
    if len(clash) > 1:
        flags_of = " and ".join(_PLACES[name][0] for name in clash)
        raise InputError(f"{flags_of} exclude each other: give the one that the devices come from")
    return named


origin_options = flags("origin", _origin, *_OPTIONS)
"""Adds the options that say where the devices come from, given to the command as `origin`."""


def origin_options_with(namespace: Callable[[Any], Any]) -> Callable[[F], F]:
    """The `origin_options` with another option -n, for a command to which it has another meaning."""
    return flags("origin", _origin, *(namespace if given is _NAMESPACE else given for given in _OPTIONS))


cluster_options = flags("origin", _origin_of_cluster, *_OPTIONS[1:-1])
"""Adds those of the options that name a cluster, given to the command as `origin`."""


class Place:
    """A cluster with a connection to it, files, or the built-in example nodes.

    `namespace` is that of objects that name none. `rules` are the release and the feature gates that the user names.
    `select` chooses the objects of snapshots that are read.
    """

    def __init__(
        self, origin: Origin, connection: ClusterConnection | None, rules: Rules, select: Select | None = None
    ) -> None:
        self._origin = origin
        self.connection = connection
        self.rules = rules
        self.namespace = connection.namespace if connection is not None else origin.namespace or "default"
        self._documents: list[Document] = []
        self._templates: dict[tuple[str, str, str], Mapping[str, Any] | None] = {}
        if origin.slices:
            self._documents, errors = with_templates(read_documents(origin.slices, empty_lists=True, select=select))
            if errors:
                raise NotesError(*errors)

    @property
    def documents(self) -> Sequence[Document]:
        """The objects of files. None of a cluster."""
        return self._documents

    @property
    def where(self) -> str:
        """The place in words."""
        if self.connection is not None:
            return self.connection.where
        if self._origin.slices:
            return ", ".join(self._origin.slices)
        return f"built-in example nodes (no cluster {'was asked' if self._origin.asked else 'is configured'})"

    @cached_property
    def server(self) -> ServerRelease | None:
        """The release and feature gates that the API server of the cluster reports. None without a cluster."""
        if self.connection is None:
            return None
        return server_of(ApiClient(self.connection), self.connection.seconds)

    @cached_property
    def features(self) -> Features:
        """The release and the feature gates that decide. Raises InputError."""
        return self.rules.features(self.server or ServerRelease())

    def release_among(self, known: Sequence[str]) -> str:
        """The one of the known releases that decides."""
        return self.rules.release_among(known, self.server or ServerRelease())

    def lookup(self, kind: str, namespace: str, name: str) -> Decoded | None:
        """A ResourceClaim or ResourceClaimTemplate that is there. Raises ApiError and DecodeError."""
        if self.connection is not None:
            return get_object(ApiClient(self.connection), kind, namespace, name)
        return lookup_among(self._documents)(kind, namespace, name)

    def referred(self, key: Key, namespace: str, name: str) -> dict[str, Any] | str:
        """An object to which a workload refers, such as a TrainingRuntime, in the first version that has it, beginning
        with the version that the server prefers.

        A text if the cluster has none, or if it may not be read. Raises ApiError.
        """
        if self.connection is None:
            saved = key == POD_GROUP and self._origin.slices
            return self._pod_groups.find(namespace, name) if saved else NOT_AMONG_FILES
        found = self._in_cluster(key, namespace, name)
        if found == _NOT_IN_CLUSTER:
            return "is neither among the files nor in the cluster"
        return f"{NOT_AMONG_FILES}, and {found}" if isinstance(found, str) else found

    @cached_property
    def _pod_groups(self) -> SavedPodGroups:
        return SavedPodGroups(self._documents, self.where)

    def workloads(self, namespaces: Collection[str]) -> tuple[list[Document], tuple[Note, ...]]:
        """The Workloads of these namespaces, and a note if they are not known. Raises ApiError."""
        if self.connection is None:
            values, unknown = self._pod_groups.workloads(namespaces)
        else:
            values, unknown = workloads_of_cluster(ApiClient(self.connection), namespaces)
        return [Document(value, self.where, stored=True) for value in values], (Note("", unknown),) if unknown else ()

    def _in_cluster(self, key: Key, namespace: str, name: str) -> dict[str, Any] | str:
        """An object of the cluster, or a text why it is not known. Raises ApiError."""
        assert self.connection is not None
        group, kind = key
        client = ApiClient(self.connection)
        try:
            for version in served_versions(client, group):
                where = kind_named(version, kind, namespaced=bool(namespace))
                with suppress(NotFoundError):
                    return {"apiVersion": version, "kind": kind, **client.get(where, name, namespace)}
        except NotFoundError:
            pass
        except StatusError as error:
            if error.status != FORBIDDEN:
                raise
            return f"to {error.action} in the cluster is not allowed"
        return _NOT_IN_CLUSTER

    def named(self, reference: Reference) -> Document:
        """The object that the user names. Raises InputError and ApiError."""
        kind = reference.key[1]
        if reference.key == POD:
            return self.pods(reference.name, namespace=self.namespace)[0]
        namespace = "" if kind.startswith("Cluster") else self.namespace
        shown = f"{namespace}/{reference.name}" if namespace else reference.name
        if self.connection is None:
            for document in self._documents:
                if key_of(document.value) == reference.key and _identity(document)[1:] == (
                    self.namespace,
                    reference.name,
                ):
                    return Document(document.value, self.where, stored=True)
            raise InputError(f"there is no {kind} {shown} in {self.where}")
        found = self._in_cluster(reference.key, namespace, reference.name)
        if found == _NOT_IN_CLUSTER:
            raise InputError(f"there is no {kind} {shown} in {self.where}")
        if isinstance(found, str):
            raise InputError(f"{reference.text}: {found}")
        return Document(found, self.where, stored=True)

    def template(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The pod template (JSON) of a ReplicaSet or ControllerRevision, which never changes. None if there is none, or
        if it may not be read. Raises ApiError.
        """
        key = (kind, namespace, name)
        if key not in self._templates:
            self._templates[key] = template_of(self._revision(*key))
        return self._templates[key]

    def _revision(self, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
        if self.connection is None:
            return next(
                (document.value for document in self._documents if _identity(document) == (kind, namespace, name)), {}
            )
        try:
            value = ApiClient(self.connection).get(REVISIONS[kind], name, namespace)
        except NotFoundError:
            return {}
        except StatusError as error:
            if error.status != FORBIDDEN:
                raise
            return {}
        return {**value, "kind": kind}

    def names(self, kind: str) -> list[str]:
        """NAMESPACE/NAME of the ResourceClaims or ResourceClaimTemplates that are there, as far as they may be listed.

        They are only suggestions.
        """
        if self.connection is None:
            found = (document for document in self._documents if document.kind == kind)
            return [f"{document.namespace}/{document.value['metadata'].get('name')}" for document in found]
        client = ApiClient(self.connection)
        try:
            where = kind_named(newest_dialect(client).api_version, kind)
            items = client.list(where, keep=lambda item: {"metadata": item["metadata"]}).items
        except ApiError:
            return []
        return [f"{item['metadata'].get('namespace', 'default')}/{item['metadata']['name']}" for item in items]

    def all_pods(self, reduce: Callable[[Mapping[str, Any]], T]) -> list[T] | None:
        """What `reduce` makes of each pod (JSON). None if listing pods is not allowed. Raises ApiError."""
        if self.connection is None:
            return [reduce(document.value) for document in self._documents if document.kind == "Pod"]
        found, forbidden = read_around(ApiClient(self.connection), {"Pod": PODS}, reduce)
        return None if forbidden else [kept for _, kept in found]

    def pods(self, name: str = "", *, namespace: str | None) -> list[Document]:
        """The pod of a name, or the pending pods, of a namespace (None: of all). Raises InputError and ApiError."""
        if self.connection is not None:
            client = ApiClient(self.connection)
            found: list[dict[str, Any]] = []
            if not name:
                found = client.list(PODS, namespace=namespace or "", field_selector="spec.nodeName=").items
            else:
                with suppress(NotFoundError):
                    found = [client.get(PODS, name, namespace or "")]
            values = [{"apiVersion": "v1", "kind": "Pod", **document} for document in found]
        else:
            values = [
                document.value
                for document in self._documents
                if document.kind == "Pod"
                and namespace in (None, document.namespace)
                and name in ("", document.value["metadata"].get("name"))
            ]
        if name and not values:
            raise InputError(f"there is no pod {namespace}/{name} in {self.where}")
        ended = ("Succeeded", "Failed")
        pending = [
            value
            for value in values
            if name or not ((value["spec"] or {}).get("nodeName") or (value.get("status") or {}).get("phase") in ended)
        ]
        return [Document(pod, self.where, stored=True) for pod in sorted(pending, key=_queue_order)]

    def read(
        self,
        around: Sequence[Document] = (),
        *,
        devices_only: bool = False,
        exactly: bool = False,
        policy: NodePolicy | None = None,
        machines: bool = False,
    ) -> Source:
        """The objects there, and unless `devices_only` the world, to which those `around` are added.

        Files without a DeviceClass get the classes of the driver's chart, and the nodes that slices name, unless
        `exactly` is set. `policy` is the driver's on built-in nodes. With `machines`, more of them have devices for
        virtual machines.

        Raises InputError, ApiError and DecodeError.
        """
        served = ""
        if self.connection is not None:
            found = from_cluster(self.connection, devices_only=devices_only, around=around)
        elif self._origin.slices:
            found = from_documents(self._documents, self.where, around, devices_only=devices_only)
            if not exactly:
                assumed = (
                    ()
                    if any(isinstance(object_, DeviceClass) for object_ in found.objects)
                    else classes_with_resources()
                )
                if assumed:
                    said = f"no DeviceClass is in {self.where}: those of the driver's chart are assumed"
                    found = replace(found, warnings=(*found.warnings, said))
                    served = _SERVED
                open_nodes = frozenset(nodes_without_objects(found.objects))
                objects = tuple(with_nodes_of_slices([*found.objects, *assumed]))
                found = replace(found, objects=objects, open_nodes=open_nodes)
        else:
            served = _SERVED
            objects = (*built_in_nodes(policy, machines=machines), *classes_with_resources())
            notes = (f"{DEVICES_ONLY}: built-in nodes have no pods, cpu or memory",)
            found = Found(objects, notes=notes, open_nodes=_names(objects))
        if devices_only:
            found = replace(found, world=None, notes=(f"{DEVICES_ONLY}, as asked",))
        return replace(self.source_of(found), served=served)

    def source_of(self, found: Found) -> Source:
        """The found objects, with the known facts about the place."""
        server = self.server
        return Source(
            found.objects,
            self.where,
            world=found.world,
            notes=found.notes,
            server=server,
            warnings=(*found.warnings, *(self.rules.notes(server) if server is not None else ())),
            unknown=found.unknown,
            unknown_of_pods=found.unknown_of_pods,
            errors=found.errors,
            gates=self.rules.all_gates(server or ServerRelease()),
            open_nodes=found.open_nodes,
            templates=self.template,
        )

    def around(self, reduce: Callable[[Mapping[str, Any]], JSON]) -> tuple[list[JSON], list[str]]:
        """The objects besides devices that affect decisions, each reduced by `reduce`, and the plurals that may not be
        listed.

        Of a kind without objects there is an empty list. Raises ApiError.
        """
        if self.connection is None:
            kept = [
                document.value if document.is_empty_list else reduce(document.value)
                for document in self._documents
                if _is_around(document)
            ]
            return kept, []
        client = ApiClient(self.connection)
        kinds = {**KINDS, TEMPLATE: templates_of(newest_dialect(client))}
        return _with_empty_lists(kinds, *read_around(client, kinds, reduce))

    def pod_groups(self, reduce: Callable[[Mapping[str, Any]], JSON]) -> tuple[list[JSON], list[str]]:
        """The Workloads and PodGroups, each reduced by `reduce`, and the plurals that may not be listed.

        Of a kind without objects, or that the cluster does not serve, there is an empty list. Raises ApiError.
        """
        if self.connection is None:
            documents = self._pod_groups.documents
            return [document.value if document.is_empty_list else reduce(document.value) for document in documents], []
        client = ApiClient(self.connection)
        served = served_kinds(client)
        return _with_empty_lists({**POD_GROUP_KINDS, **served}, *read_around(client, served, reduce))

    def gather(
        self,
        what_if: WhatIf,
        given: Sequence[Decoded] = (),
        around: Sequence[Document] = (),
        *,
        devices_only: bool = True,
    ) -> Source:
        """The objects to evaluate: those of the place, the additional objects `given`, and the changes to all of them.
        Raises InputError.
        """
        added = new_nodes(what_if)
        if what_if.policy is not None and not added and not self._origin.is_built_in:
            raise InputError("--policy is for built-in nodes and for those of --with-node, and there are none")
        if added and self._origin.is_built_in and not self._origin.asked:
            source = Source(
                classes_with_resources(),
                "built-in node types (no cluster was used)",
                notes=(f"{DEVICES_ONLY}: simulated nodes have no pods, cpu or memory",),
                served=_SERVED,
            )
        else:
            source = self.read(around, devices_only=devices_only, policy=what_if.policy)
        return completed(source, what_if, self.features, added, given)


def _with_empty_lists(
    kinds: Mapping[str, Kind], found: Iterable[tuple[str, JSON]], forbidden: Collection[str]
) -> tuple[list[JSON], list[str]]:
    """The found objects, with an empty list of each of the `kinds` of which there is none, and the plurals of the kinds
    that may not be listed.
    """
    objects = list(found)
    missing = kinds.keys() - {name for name, _ in objects} - set(forbidden)
    empty = [{"apiVersion": kinds[name].api_version, "kind": f"{name}List", "items": []} for name in sorted(missing)]
    return [*(object_ for _, object_ in objects), *empty], [kinds[name].plural for name in forbidden]


def lookup_among(documents: Sequence[Document]) -> Lookup:
    """The Lookup for claims and templates among documents."""

    def lookup(kind: str, namespace: str, name: str) -> Decoded | None:
        for document in documents:
            if _identity(document) == (kind, namespace, name):
                return decode_kept(document)
        return None

    return lookup


def _identity(document: Document) -> tuple[str, str, object]:
    return document.kind, document.namespace, within(document.value, "metadata").get("name")


def _is_around(document: Document) -> bool:
    """Whether the document decides something besides devices, or says that there is nothing of that kind."""
    kind = document.kind.removesuffix("List") if document.is_empty_list else document.kind
    return kind == TEMPLATE or is_of_world(document.value.get("apiVersion"), kind)


def _queue_order(pod: dict[str, Any]) -> tuple[int, str]:
    """The order in which the scheduler takes pending pods: by priority, then by age."""
    return -int(pod["spec"].get("priority") or 0), str(pod["metadata"].get("creationTimestamp") or "")


@contextmanager
def opened(
    origin: Origin, rules: Rules = NAMES_NONE, needs: Needs = DEVICES, select: Select | None = None
) -> Iterator[Place]:
    """The place that the options name. In it, what an API server refuses becomes an InputError of one line.

    `needs` tells which rights are named if one is missing. `select` chooses the objects of snapshots that are read.
    """
    try:
        if origin.cluster is None:
            yield Place(origin, None, rules, select)
            return
        with closing(ClusterConnection(origin.cluster)) as connection:
            try:
                yield Place(origin, connection, rules)
            except StatusError as error:
                raise InputError(_refused(error, connection, needs)) from None
    except (ApiError, ConnectionConfigError, DecodeError) as error:
        raise InputError(str(error)) from None


def _names(objects: Iterable[Decoded]) -> frozenset[str]:
    """The names of the nodes."""
    return frozenset(object_.name for object_ in objects if isinstance(object_, Node))


def _refused(error: StatusError, connection: ClusterConnection, needs: Needs) -> str:
    """Why the server refused a request; if a right is missing, all that are missing."""
    if error.status == _UNAUTHORIZED:
        return f"You must be logged in to the server (Unauthorized): {error.message}"
    if error.status != FORBIDDEN:
        return str(error)
    client = ApiClient(connection)
    actions = [error.action]
    with suppress(ApiError):
        known = kinds(client)
        devices = [kind for name, kind in known.items() if needs.whole_pods or name != "Node"]
        others = [kind for name, kind in KINDS.items() if name != "Node"] if needs.whole_pods else []
        templates = template_kind(known)
        claims = replace(known["ResourceClaim"], namespaced=True)
        actions += missing(client, rights([*devices, *others], (claims, templates), needs))
        listed = [*((templates,) if needs.whole_pods else ()), *(served_kinds(client).values() if needs.groups else ())]
        actions += missing(client, rights(listed, (), DEVICES))  # they are never watched
    actions = list(dict.fromkeys(actions))
    return f"not allowed to {', '.join(actions)} ({connection.identity}): {error.message}; {advice(actions, needs)}"


def completed(
    source: Source, what_if: WhatIf, features: Features, added: Sequence[Decoded], given: Sequence[Decoded] = ()
) -> Source:
    """The same, of a source that was read before; `added` are the nodes to add. Raises InputError."""
    open_nodes = (source.open_nodes | _names(added)) - _names(given)
    if what_if.labels and not open_nodes:
        raise InputError("--node-labels is for built-in nodes and for those of --with-node, and there are none")
    added = with_labels(added, open_nodes, what_if.labels)
    own = {(type(object_), object_.metadata.namespace, object_.metadata.name) for object_ in given}
    there = [
        object_
        for object_ in source.objects
        if (type(object_), object_.metadata.namespace, object_.metadata.name) not in own
    ]
    there = with_labels(there, open_nodes, what_if.labels)
    objects = tainted(changed([*given, *there], what_if, added), features, source.server)
    world, assumptions = source.world, what_if.assumptions
    is_empty = bool(what_if.drained) and not any(isinstance(object_, Node) for object_ in objects)
    warnings = (*source.warnings, *((NO_NODE_LEFT,) if is_empty else ()), *release_notes(objects, source.server))
    if world is not None:
        nodes = [object_ for object_ in added if isinstance(object_, Node)]
        world = world.with_nodes(nodes)
        assumptions += ("additional nodes with enough cpu, memory and other resources for every pod",) if nodes else ()
        world = world.idle() if what_if.without_claims else world
    return replace(
        source,
        objects=objects,
        assumptions=assumptions,
        world=world,
        warnings=warnings,
        open_nodes=frozenset() if what_if.strict_labels else open_nodes,
    )


def tainted(objects: Sequence[Decoded], features: Features, server: ServerRelease | None) -> Sequence[Decoded]:
    """The objects, with the taints of the DeviceTaintRules among them on the devices that these select."""
    rules = [object_ for object_ in objects if isinstance(object_, DeviceTaintRule) and not _selects_otherwise(object_)]
    if not rules or not features.device_taint_rules:
        return objects
    release = server.release if server is not None and server.release else features.release
    slices = [object_ for object_ in objects if isinstance(object_, ResourceSlice)]
    others = [object_ for object_ in objects if not isinstance(object_, ResourceSlice)]
    every = has_rule(release, "rule_without_selector_taints_all")
    return [*with_taint_rules(slices, rules, without_selector=every), *others]


def _selects_otherwise(rule: DeviceTaintRule) -> bool:
    """Whether the rule selects devices by fields that are not evaluated, as up to Kubernetes 1.34 by their class."""
    return any(path.startswith(DEVICE_SELECTOR) for path in rule.unread)
