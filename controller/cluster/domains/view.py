# SPDX-License-Identifier: Apache-2.0
"""What the API server has of ComputeDomains, reduced to facts, with one watch for each kind.

Each fact belongs to domains, which are named by their UIDs. The view tells which domains a change concerns, and has
the facts of one domain (`DomainState`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dra_driver.config import ConfigError, decode_domain_config
from dra_driver.domains.names import CHANNEL_DEVICE, CLIQUE_ATTRIBUTE, DOMAIN_LABEL, DRIVER, FABRIC_TAINT
from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS, Clique, ComputeDomain, decode_clique, decode_domain
from dra_driver.kube.api import ApiClient, Kind
from dra_driver.kube.api.client import JSON
from dra_driver.kube.kinds import (
    CERTIFICATES,
    DAEMON_SETS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    claims_of,
    slices_of,
    templates_of,
)
from dra_driver.kube.resource.codec import DecodeError, Dialect
from dra_driver.kube.resource.meta import empty
from dra_driver.kube.resource.names import is_label_value, is_subdomain

from ..collection import Collection, Key
from ..view import only_metadata
from .pods import PodFacts, pod_facts


@dataclass(frozen=True, slots=True)
class DomainFacts:
    """A ComputeDomain. `domain` is None if it cannot be read, for the reason `problem`."""

    uid: str
    domain: ComputeDomain | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """An object that may belong to a domain. `content` has labels, annotations, owners and spec of such an object."""

    uid: str
    namespace: str
    name: str
    domain: str
    owners: tuple[str, ...] = ()
    finalizers: tuple[str, ...] = ()
    is_deleted: bool = False
    content: Mapping[str, Any] = field(default_factory=empty)
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class CliqueFacts:
    """A ComputeDomainClique. `broken` if a part of it cannot be read, and is therefore not in `clique`."""

    stored: StoredFacts
    clique: Clique
    broken: bool = False

    @property
    def uid(self) -> str:
        """The UID of the object."""
        return self.stored.uid


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A claim with allocated channels, as (node, UID of the domain)."""

    namespace: str
    name: str
    uid: str
    channels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node, and the UID of the domain in its label."""

    name: str
    uid: str
    label: str
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """The channel that a node publishes, and its clique. `settled` is false while its NVLink fabric is not ready, and
    if the clique is not a valid name.
    """

    uid: str
    node: str
    clique: str
    settled: bool


@dataclass(frozen=True, slots=True)
class DomainState:
    """All facts of one domain. `nodes` has the existing ones of the nodes that anything names, and `fabric` what they
    publish. `rivals` are nodes whose label names another domain that has claims there. `sizes` are the numbers of
    nodes in a clique.
    """

    domain: ComputeDomain
    claims: tuple[ClaimFacts, ...] = ()
    nodes: Mapping[str, NodeFacts] = field(default_factory=empty)
    fabric: Mapping[str, SliceFacts] = field(default_factory=empty)
    pods: tuple[PodFacts, ...] = ()
    cliques: tuple[CliqueFacts, ...] = ()
    rivals: Mapping[str, str] = field(default_factory=empty)
    sizes: Mapping[str, int] = field(default_factory=empty)

    @property
    def claimed(self) -> set[str]:
        """The existing nodes on which a channel is allocated to a claim of this domain."""
        found = {node for claim in self.claims for node, domain in claim.channels if domain == self.domain.uid}
        return found & self.nodes.keys()


def domain_facts(value: JSON) -> DomainFacts:
    """The facts of a ComputeDomain."""
    uid = value["metadata"]["uid"]
    try:
        return DomainFacts(uid, decode_domain(value))
    except DecodeError as error:
        return DomainFacts(uid, None, str(error))


def stored_facts(value: JSON, *, everything: bool = True) -> StoredFacts:
    """The facts of an object. Without `everything`, the content of objects without a domain is left out."""
    meta = value["metadata"]
    labels = meta.get("labels") or {}
    domain = labels.get(DOMAIN_LABEL) or ""
    owners = meta.get("ownerReferences") or []
    content = {
        "metadata": {"labels": labels, "annotations": meta.get("annotations") or {}, "ownerReferences": owners},
        "spec": value.get("spec") or {},
    }
    return StoredFacts(
        meta["uid"],
        meta.get("namespace") or "",
        meta["name"],
        domain,
        tuple(one["uid"] for one in owners),
        tuple(meta.get("finalizers") or ()),
        bool(meta.get("deletionTimestamp")),
        content if everything or domain or owners else {},
        meta.get("resourceVersion") or "",
    )


def clique_facts(value: JSON) -> CliqueFacts | None:
    """The facts of a ComputeDomainClique. What somebody made unreadable is left out, and written anew."""
    stored = stored_facts(value)
    bare = {**value["metadata"], "annotations": {}}
    for readable in (value, {**value, "metadata": bare}, {"metadata": bare}):
        try:
            found = decode_clique(readable)
        except DecodeError:
            continue
        uid, _, name = stored.name.partition(".")  # labels can be edited
        clique = replace(found, domain_uid=uid, clique=name, resource_version="")
        return CliqueFacts(replace(stored, domain=uid), clique, broken=readable is not value)
    return None


def claim_facts(value: JSON) -> ClaimFacts | None:
    """The facts of a claim in any version of the API. None without channels."""
    meta = value["metadata"]
    devices = ((value.get("status") or {}).get("allocation") or {}).get("devices") or {}
    channels = [
        (one["pool"], _domain_of(one["request"], devices.get("config") or []))
        for one in devices.get("results") or []
        if one["driver"] == DRIVER and _is_channel(one["device"])
    ]
    return ClaimFacts(meta["namespace"], meta["name"], meta["uid"], tuple(channels)) if channels else None


def _is_channel(device: str) -> bool:
    return device == CHANNEL_DEVICE or device.startswith(f"{CHANNEL_DEVICE}-")


def _domain_of(request: str, configs: Iterable[JSON]) -> str:
    """The UID in the last configuration of a request, or nothing."""
    found = ""
    for one in configs:
        opaque, requests = one.get("opaque") or {}, one.get("requests") or []
        if opaque.get("driver") == DRIVER and (not requests or {request, request.partition("/")[0]} & set(requests)):
            try:
                found = decode_domain_config(opaque.get("parameters")).domain
            except ConfigError:
                continue  # the plugin tells that
    return found


def only_channels(value: JSON) -> JSON:
    """The needed fields of a claim."""
    meta, status = value["metadata"], value.get("status") or {}
    return {
        "metadata": {key: meta[key] for key in ("namespace", "name", "uid", "resourceVersion")},
        "status": {"allocation": status.get("allocation")},
    }


def node_facts(value: JSON) -> NodeFacts:
    """The facts of a Node or its PartialObjectMetadata."""
    meta = value["metadata"]
    label = (meta.get("labels") or {}).get(DOMAIN_LABEL) or ""
    return NodeFacts(meta["name"], meta["uid"], label, meta["resourceVersion"])


def only_label(value: JSON) -> JSON:
    """The needed fields of a node."""
    reduced = only_metadata(value)
    reduced["metadata"]["name"] = value["metadata"]["name"]
    reduced["metadata"]["labels"] = value["metadata"].get("labels")
    return reduced


def slice_facts(value: JSON) -> SliceFacts | None:
    """The facts of a slice of the driver, in any version of the API. None without a node or a channel."""
    spec = value["spec"]
    channel = next((one for one in spec.get("devices") or [] if _is_channel(one["name"])), None)
    if channel is None or not spec.get("nodeName"):
        return None
    device = channel.get("basic") or channel  # v1beta1
    clique = ((device.get("attributes") or {}).get(CLIQUE_ATTRIBUTE) or {}).get("string") or ""
    valid = not clique or (is_subdomain(clique) and is_label_value(clique))  # it is part of an object's name
    settled = valid and not any(one["key"] == FABRIC_TAINT for one in device.get("taints") or [])
    return SliceFacts(value["metadata"]["uid"], spec["nodeName"], clique, settled)


def _domain_keys(one: DomainFacts) -> Iterable[Key]:
    if one.domain is not None:
        yield "template", f"{one.domain.namespace}/{one.domain.template}"


def _stored_keys(one: StoredFacts) -> Iterable[Key]:
    yield "name", f"{one.namespace}/{one.name}"
    if one.domain:
        yield "domain", one.domain


def _pod_keys(one: PodFacts) -> Iterable[Key]:
    return (("domain", one.domain), ("node", one.node))


def _claim_keys(one: ClaimFacts) -> Iterable[Key]:
    for node, domain in one.channels:
        yield from (("node", node), ("domain", domain))


def _node_keys(one: NodeFacts) -> Iterable[Key]:
    yield "name", one.name
    if one.label:
        yield "domain", one.label


class View:
    """All collections, watched from `start` to `stop`. `changed` gets the UIDs of the domains that a change concerns.

    Without `daemons`, only ComputeDomains and templates are watched. Policies and cert-manager's certificates are only
    watched where they are used, because this process has no other rights.
    """

    def __init__(
        self,
        client: ApiClient,
        dialect: Dialect,
        namespace: str,
        changed: Callable[[set[str]], None],
        *,
        daemons: bool,
        policies: bool,
        certificates: bool,
    ) -> None:
        self._changed = changed

        def ours(kind: Kind) -> Collection[StoredFacts]:
            return Collection(
                client,
                kind,
                stored_facts,
                self._tell,
                keys=_stored_keys,
                namespace=namespace,
                label_selector=DOMAIN_LABEL,
            )

        self.domains = Collection(client, COMPUTE_DOMAINS, domain_facts, self._tell, keys=_domain_keys)
        self.cliques = Collection(
            client,
            CLIQUES,
            clique_facts,
            self._tell,
            keys=lambda one: _stored_keys(one.stored),
            namespace=namespace,
        )
        # All templates, because one that is not ours may have the name of a domain's template.
        self.templates = Collection(
            client,
            templates_of(dialect),
            lambda value: stored_facts(value, everything=False),
            self._tell,
            keys=_stored_keys,
        )
        self.daemon_sets = ours(DAEMON_SETS)
        self.policies = ours(NETWORK_POLICIES)
        self.certificates = ours(CERTIFICATES)
        self.pods = Collection(
            client, PODS, pod_facts, self._tell, keys=_pod_keys, namespace=namespace, label_selector=DOMAIN_LABEL
        )
        self.claims = Collection(
            client, claims_of(dialect), claim_facts, self._tell, keep=only_channels, keys=_claim_keys
        )
        self.nodes = Collection(
            client, NODES, node_facts, self._tell, keep=only_label, keys=_node_keys, metadata_only=True
        )
        self.slices = Collection(
            client,
            slices_of(dialect),
            slice_facts,
            self._tell,
            keys=lambda one: (("node", one.node), ("clique", one.clique)),
            field_selector=f"spec.driver={DRIVER}",
        )
        self._watched: list[Collection[Any]] = [self.domains, self.templates]
        if daemons:
            self._watched += [self.cliques, self.daemon_sets, self.pods, self.claims, self.nodes, self.slices]
            self._watched += [self.policies] if policies else []
            self._watched += [self.certificates] if certificates else []

    @property
    def complete(self) -> bool:
        """Whether each collection was listed. Before that, an unknown object may exist. Policies and certificates need
        not be served.
        """
        optional = (self.policies, self.certificates)
        return all(one.listed or (one in optional and one.watcher.missing.is_set()) for one in self._watched)

    @property
    def is_defined(self) -> bool:
        """False if the server does not have the definitions of ComputeDomains."""
        return not any(one.watcher.missing.is_set() and not one.listed for one in (self.domains, self.cliques))

    @property
    def problem(self) -> str | None:
        """Why a collection is unknown at the moment, or None. Without the definitions, there is nothing to know."""
        if not self.is_defined:
            return None
        watchers = [one.watcher for one in self._watched if one.listed or not one.watcher.missing.is_set()]
        return next((one.problem for one in watchers if one.problem), None)

    def start(self) -> None:
        """Start the watches."""
        for one in self._watched:
            one.watcher.start()

    def stop(self) -> None:
        """Stop the watches."""
        for one in self._watched:
            one.watcher.stop()

    def known(self) -> set[str]:
        """The UIDs of all domains, also of those that exist no more and left something behind."""
        labelled: list[Collection[Any]] = [self.cliques, self.templates, self.daemon_sets, self.policies, self.nodes]
        found = {one.uid for one in self.domains.all()}
        return found.union(*(one.values("domain") for one in [*labelled, self.certificates]))

    def state(self, domain: ComputeDomain) -> DomainState:
        """The facts of a domain. Claims in other namespaces are left out: the plugin refuses them."""
        uid = domain.uid
        claims = tuple(one for one in self.claims.by("domain", uid) if one.namespace == domain.namespace)
        pods, cliques = tuple(self.pods.by("domain", uid)), tuple(self.cliques.by("domain", uid))
        names = {node for one in claims for node, _ in one.channels} | {one.node for one in pods}
        names |= {one.name for one in self.nodes.by("domain", uid)}
        names |= {member.node for one in cliques for member in one.clique.members}
        nodes = {one.name: one for name in names for one in self.nodes.by("name", name)}
        fabric = {one.node: one for name in nodes for one in self.slices.by("node", name)}
        labels = {one.label for one in nodes.values() if one.label != uid}
        others = {label: self._name_of(label) for label in labels if label}
        rivals = {
            name: others[node.label]
            for name, node in nodes.items()
            if node.label in others and self._is_used(name, node.label)
        }
        sizes = {one.clique: len(self.slices.by("clique", one.clique)) for one in fabric.values()}
        return DomainState(domain, claims, nodes, fabric, pods, cliques, rivals, sizes)

    def _name_of(self, uid: str) -> str:
        """The namespace and name of a domain, or nothing if it does not exist."""
        found = self.domains.get(uid)
        return "" if found is None else str(found.domain or uid)

    def _is_used(self, node: str, uid: str) -> bool:
        """Whether an existing domain has claims on a node."""
        found = self.domains.get(uid)
        if found is None:
            return False
        namespace = found.domain.namespace if found.domain is not None else None
        claims = (one for one in self.claims.by("node", node) if namespace in (None, one.namespace))
        return any((node, uid) in one.channels for one in claims)

    def _tell(self, concerned: Iterable[object]) -> None:
        self._changed({uid for one in concerned for uid in self._domains_of(one) if uid})

    def _domains_of(self, one: object) -> Iterable[str]:
        match one:
            case DomainFacts():
                yield one.uid
                for labelled in self.nodes.by("domain", one.uid):
                    yield from self._on_node(labelled.name)
                if one.domain is not None:
                    yield from self._wanting(one.domain.namespace, one.domain.template)
            case StoredFacts():
                yield from (one.domain, *one.owners, *self._wanting(one.namespace, one.name))
            case CliqueFacts():
                yield one.stored.domain
            case PodFacts():
                yield one.domain
            case ClaimFacts():
                for node, domain in one.channels:
                    yield from (domain, *self._on_node(node))
            case NodeFacts():
                yield from (one.label, *self._on_node(one.name))
            case SliceFacts():
                yield from self._on_node(one.node)

    def _wanting(self, namespace: str, template: str) -> list[str]:
        """The domains whose template has this name."""
        return [one.uid for one in self.domains.by("template", f"{namespace}/{template}")]

    def _on_node(self, node: str) -> set[str]:
        """The domains that have something on a node."""
        found = {domain for one in self.claims.by("node", node) for name, domain in one.channels if name == node}
        found |= {one.domain for one in self.pods.by("node", node)}
        return found | {one.label for one in self.nodes.by("name", node)}
