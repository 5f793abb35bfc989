# SPDX-License-Identifier: Apache-2.0
"""The types of JSON values in API objects.

Decoding, strategic merge patch, server-side apply and OpenAPI use the same types. A type describes the possible values,
and how lists and maps merge (the `x-kubernetes-` extensions of the published schemas).
"""

import enum
from dataclasses import dataclass, field
from typing import Any


class Shape(enum.StrEnum):
    """The JSON type of a value, and its meaning."""

    STRUCT = "object"
    MAP = "map"
    LIST = "list"
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    QUANTITY = "quantity"
    INT_OR_STRING = "int-or-string"
    TIME = "time"
    MICRO_TIME = "micro-time"
    BYTES = "bytes"
    ANY = "any"


class ListKind(enum.Enum):
    """How server-side apply merges two versions of a list."""

    ATOMIC = "atomic"
    SET = "set"
    MAP = "map"


@dataclass(slots=True, eq=False)
class SchemaType:
    """A node of a type tree. Trees are shared and may be cyclic, so a finished tree must not be changed."""

    shape: Shape
    definition: str = ""
    """The OpenAPI name: `io.k8s.api.core.v1.PodSpec`."""
    fields: "dict[str, SchemaType]" = field(default_factory=dict)
    required: tuple[str, ...] = ()
    element: "SchemaType | None" = None
    """The type of the items of a list or of the values of a map."""
    list_kind: ListKind = ListKind.ATOMIC
    list_keys: tuple[str, ...] = ()
    key_defaults: dict[str, Any] = field(default_factory=dict)
    """Default values of list keys (such as a container port's protocol)."""
    atomic: bool = False
    """Whether server-side apply replaces this map or struct as a whole."""
    merge_key: str = ""
    """The field that identifies an item of the list in a strategic merge patch."""
    strategies: frozenset[str] = frozenset()
    """The strategies of strategic merge patch: `merge`, `replace`, `retainKeys`."""
    open: bool = False
    """Whether undeclared fields are kept, as in custom objects."""

    def child(self, name: str) -> "SchemaType":
        """Return the type of field or key `name`."""
        return self.fields.get(name) or self.element or DEDUCED

    @property
    def item(self) -> "SchemaType":
        """The type of a list's items or a map's values."""
        return self.element or DEDUCED


DEDUCED = SchemaType(Shape.ANY, open=True)
"""The type of a value without a declaration. It merges by its JSON type."""
