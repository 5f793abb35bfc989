# SPDX-License-Identifier: Apache-2.0
"""The facts of ComputeDomains and of the objects that belong to them, and all facts of one domain. Pure.

Each fact belongs to domains, which are named by their UIDs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.domains.objects import Clique, ComputeDomain, decode_clique, decode_domain
from dra_driver.kube.api.client import JSON
from dra_driver.kube.resource.codec import DecodeError
from dra_driver.kube.resource.meta import empty

from ..facts import ChannelFacts, ClaimFacts, NodeFacts
from .pods import PodFacts


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
class DomainState:
    """All facts of one domain. `nodes` has the existing ones of the nodes that anything names, and `fabric` what they
    publish. `rivals` are nodes whose label names another domain that has claims there. `sizes` are the numbers of
    nodes in a clique.
    """

    domain: ComputeDomain
    claims: tuple[ClaimFacts, ...] = ()
    nodes: Mapping[str, NodeFacts] = field(default_factory=empty)
    fabric: Mapping[str, ChannelFacts] = field(default_factory=empty)
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
        tuple(owner["uid"] for owner in owners),
        tuple(meta.get("finalizers") or ()),
        bool(meta.get("deletionTimestamp")),
        content if everything or domain or owners else {},
        meta.get("resourceVersion") or "",
    )


def clique_facts(value: JSON) -> CliqueFacts | None:
    """The facts of a ComputeDomainClique. Parts that cannot be decoded are ignored, and overwritten later."""
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
