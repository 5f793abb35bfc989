# SPDX-License-Identifier: Apache-2.0
"""Metadata of objects, and the types of core/v1 that resource.k8s.io uses: nodes and node selectors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

EMPTY: Mapping[str, Any] = MappingProxyType({})
"""The value of a map that is absent."""


def empty() -> Mapping[str, Any]:
    """EMPTY, as a default of dataclass fields."""
    return EMPTY


@dataclass(frozen=True, slots=True)
class OwnerReference:
    """The owner of an object. The object is deleted with its owner."""

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
    finalizers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class NodeSelectorRequirement:
    """`key operator values`, for a label of the node or for the field metadata.name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Matches if all requirements match. A term without requirements matches nothing."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Matches if any of the terms matches."""

    terms: tuple[NodeSelectorTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a core/v1 Node that allocation uses. `plugin_resources` are the resources of its device plugins."""

    metadata: ObjectMeta
    plugin_resources: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.metadata.name
