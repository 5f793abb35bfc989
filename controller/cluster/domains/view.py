# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains and the objects that belong to them, with one watch for each kind.

The view tells which domains a change concerns, also a change of the cluster's nodes, claims and channels, and has the
facts of one domain (`DomainState`).
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS, ComputeDomain
from dra_driver.kube.api import ApiClient, Kind, Selection
from dra_driver.kube.kinds import CERTIFICATES, DAEMON_SETS, NETWORK_POLICIES, PODS, templates_of

from ..collection import Collection, Key
from ..facts import ClaimFacts, NodeFacts, SliceFacts
from ..view import ClusterView
from .facts import CliqueFacts, DomainFacts, DomainState, StoredFacts, clique_facts, domain_facts, stored_facts
from .pods import PodFacts, pod_facts
from .settings import DomainSettings


def _domain_keys(facts: DomainFacts) -> Iterable[Key]:
    if facts.domain is not None:
        yield "template", f"{facts.domain.namespace}/{facts.domain.template}"


def _stored_keys(facts: StoredFacts) -> Iterable[Key]:
    yield "name", f"{facts.namespace}/{facts.name}"
    if facts.domain:
        yield "domain", facts.domain


def _pod_keys(facts: PodFacts) -> Iterable[Key]:
    return (("domain", facts.domain), ("node", facts.node))


class DomainView:
    """All collections, watched from `start` to `stop`, and those of `cluster`. `changed` gets the UIDs of the domains
    that a change concerns.

    If an administrator runs nvidia-imex, there are no daemons: only ComputeDomains and templates are watched, and the
    nodes of domains do not matter. Policies and cert-manager's certificates are only watched where they are used,
    because this process has no other rights.
    """

    def __init__(
        self, client: ApiClient, cluster: ClusterView, settings: DomainSettings, changed: Callable[[set[str]], None]
    ) -> None:
        self.cluster = cluster
        self._changed = changed
        self._has_daemons = not settings.daemons.host_managed
        labelled: Selection = {"namespace": settings.namespace, "label_selector": DOMAIN_LABEL}

        def stored(kind: Kind) -> Collection[StoredFacts]:
            return Collection(client, kind, stored_facts, self._tell, keys=_stored_keys, **labelled)

        self.domains = Collection(client, COMPUTE_DOMAINS, domain_facts, self._tell, keys=_domain_keys)
        self.cliques = Collection(
            client,
            CLIQUES,
            clique_facts,
            self._tell,
            keys=lambda clique: _stored_keys(clique.stored),
            namespace=settings.namespace,
        )
        # All templates, because one that is not ours may have the name of a domain's template.
        self.templates = Collection(
            client,
            templates_of(cluster.dialect),
            partial(stored_facts, everything=False),
            self._tell,
            keys=_stored_keys,
        )
        self.daemon_sets = stored(DAEMON_SETS)
        self.policies = stored(NETWORK_POLICIES)
        self.certificates = stored(CERTIFICATES)
        self.pods = Collection(client, PODS, pod_facts, self._tell, keys=_pod_keys, **labelled)
        self._watched: list[Collection[Any]] = [self.domains, self.templates]
        if self._has_daemons:
            cluster.subscribe(self._tell)
            self._watched += [self.cliques, self.daemon_sets, self.pods]
            self._watched += [self.policies] if settings.daemons.network_policy else []
            self._watched += [self.certificates] if settings.daemons.issuer is not None else []

    @property
    def complete(self) -> bool:
        """Whether each collection was listed. Before that, an unknown object may exist. Policies and certificates need
        not be served.
        """
        if self._has_daemons and not self.cluster.complete:
            return False
        optional = (self.policies, self.certificates)
        return all(
            collection.listed or (collection in optional and collection.watcher.missing.is_set())
            for collection in self._watched
        )

    @property
    def is_defined(self) -> bool:
        """False if the server does not have the definitions of ComputeDomains."""
        return not any(
            collection.watcher.missing.is_set() and not collection.listed for collection in (self.domains, self.cliques)
        )

    @property
    def problem(self) -> str | None:
        """Why ComputeDomains are unknown at the moment, or None. Without the definitions, there is nothing to know."""
        if not self.is_defined:
            return None
        watchers = [
            collection.watcher
            for collection in self._watched
            if collection.listed or not collection.watcher.missing.is_set()
        ]
        return next((watcher.problem for watcher in watchers if watcher.problem), None)

    def start(self) -> None:
        """Start the watches."""
        for collection in self._watched:
            collection.watcher.start()

    def stop(self) -> None:
        """Stop the watches."""
        for collection in self._watched:
            collection.watcher.stop()

    def known(self) -> set[str]:
        """The UIDs of all domains, including deleted domains with remaining objects."""
        found = {domain.uid for domain in self.domains.all()}
        labelled: list[Collection[Any]] = [self.cliques, self.templates, self.daemon_sets, self.policies]
        labelled += [self.certificates, *([self.cluster.nodes] if self._has_daemons else [])]
        return found.union(*(collection.values("domain") for collection in labelled))

    def labelled(self, uid: str) -> list[NodeFacts]:
        """The nodes with the label of a domain. Without daemons, the process sets no label and has no right to."""
        return self.cluster.nodes.by("domain", uid) if self._has_daemons else []

    def state(self, domain: ComputeDomain) -> DomainState:
        """The facts of a domain. Claims in other namespaces are left out: the plugin refuses them."""
        uid, cluster = domain.uid, self.cluster
        claims = tuple(claim for claim in cluster.claims.by("domain", uid) if claim.namespace == domain.namespace)
        pods, cliques = tuple(self.pods.by("domain", uid)), tuple(self.cliques.by("domain", uid))
        names = {node for claim in claims for node, _ in claim.channels} | {pod.node for pod in pods}
        names |= {node.name for node in self.labelled(uid)}
        names |= {member.node for facts in cliques for member in facts.clique.members}
        nodes = {node.name: node for name in names for node in cluster.nodes.by("name", name)}
        channels = (found.channel for name in nodes for found in cluster.channels.by("node", name))
        fabric = {channel.node: channel for channel in channels if channel is not None}
        labels = {node.label for node in nodes.values() if node.label != uid}
        others = {label: self._name_of(label) for label in labels if label}
        rivals = {
            name: others[node.label]
            for name, node in nodes.items()
            if node.label in others and self._is_used(name, node.label)
        }
        sizes = {channel.clique: len(cluster.channels.by("clique", channel.clique)) for channel in fabric.values()}
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
        claims = (claim for claim in self.cluster.claims.by("node", node) if namespace in (None, claim.namespace))
        return any((node, uid) in claim.channels for claim in claims)

    def _tell(self, concerned: Iterable[object]) -> None:
        self._changed({uid for facts in concerned for uid in self._domains_of(facts) if uid})

    def _domains_of(self, facts: object) -> Iterable[str]:  # noqa: C901  # a match over kinds of objects
        match facts:
            case DomainFacts():
                yield facts.uid
                for labelled in self.labelled(facts.uid):
                    yield from self._on_node(labelled.name)
                if facts.domain is not None:
                    yield from self._wanting(facts.domain.namespace, facts.domain.template)
            case StoredFacts():
                yield from (facts.domain, *facts.owners, *self._wanting(facts.namespace, facts.name))
            case CliqueFacts():
                yield facts.stored.domain
            case PodFacts():
                yield facts.domain
            case ClaimFacts():
                for node, domain in facts.channels:
                    yield from (domain, *self._on_node(node))
            case NodeFacts():
                yield from (facts.label, *self._on_node(facts.name))
            case SliceFacts() if facts.channel is not None:
                yield from self._on_node(facts.channel.node)

    def _wanting(self, namespace: str, template: str) -> list[str]:
        """The domains whose template has this name."""
        return [facts.uid for facts in self.domains.by("template", f"{namespace}/{template}")]

    def _on_node(self, node: str) -> set[str]:
        """The domains that have something on a node."""
        found = {
            domain for claim in self.cluster.claims.by("node", node) for name, domain in claim.channels if name == node
        }
        found |= {pod.domain for pod in self.pods.by("node", node)}
        return found | {facts.label for facts in self.cluster.nodes.by("name", node)}
