# SPDX-License-Identifier: Apache-2.0
"""Object metadata and the node-selector vocabulary that resource.k8s.io borrows from core/v1."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

EMPTY: Mapping[str, Any] = MappingProxyType({})
"""The map of a field that is absent."""


def empty() -> Mapping[str, Any]:
    """EMPTY, for dataclass fields."""
    return EMPTY


@dataclass(frozen=True, slots=True)
class OwnerReference:
    """Who owns the object: it is garbage collected with its owner."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """The metadata that this project reads. `namespace` is empty for cluster-scoped objects."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generate_name: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: Mapping[str, str] = field(default_factory=empty)
    annotations: Mapping[str, str] = field(default_factory=empty)
    owner_references: tuple[OwnerReference, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class NodeSelectorRequirement:
    """`key operator values`, over labels or over the field metadata.name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """All requirements must hold; a term with none matches nothing."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Any of the terms must match."""

    terms: tuple[NodeSelectorTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """What allocation needs to know of a core/v1 Node. `plugin_resources` are those that device plugins offer there."""

    metadata: ObjectMeta
    plugin_resources: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.metadata.name
