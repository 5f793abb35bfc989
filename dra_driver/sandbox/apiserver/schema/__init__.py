# SPDX-License-Identifier: Apache-2.0
"""The type of a JSON value in an API object.

One description serves decoding, strategic merge patch and server-side apply: what a value may
be, and how lists and maps merge (the `x-kubernetes-` extensions of the published schemas).
"""

import enum
from dataclasses import dataclass, field
from typing import Any


class Shape(enum.Enum):
    """What a value is on the wire, and what it means."""

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
    """How two versions of a list are merged by server-side apply."""

    ATOMIC = "atomic"
    SET = "set"
    MAP = "map"


@dataclass(slots=True, eq=False)
class Type:
    """A node of the type tree. Trees are shared and may be cyclic: never change one once built."""

    shape: Shape
    go_name: str = ""
    """How Go calls it in decoding errors: `v1.PodSpec`, `int64`, `[]v1.Container`."""
    definition: str = ""
    """Its OpenAPI name, `io.k8s.api.core.v1.PodSpec`."""
    fields: "dict[str, Type]" = field(default_factory=dict)
    required: tuple[str, ...] = ()
    element: "Type | None" = None
    """Of a list or map."""
    list_kind: ListKind = ListKind.ATOMIC
    list_keys: tuple[str, ...] = ()
    key_defaults: dict[str, Any] = field(default_factory=dict)
    """Values of list keys that an item may leave out (a container port's protocol)."""
    atomic: bool = False
    """A map or struct that server-side apply replaces as a whole."""
    merge_key: str = ""
    """Strategic merge: the field that identifies an item of the list."""
    strategies: frozenset[str] = frozenset()
    """Strategic merge: `merge`, `replace`, `retainKeys`."""
    bits: int = 64
    """Of an INTEGER."""
    open: bool = False
    """Whether fields that are not declared are kept as they are: those of a custom object."""

    def child(self, name: str) -> "Type":
        """The type of field or key `name`."""
        return self.fields.get(name) or self.element or DEDUCED

    @property
    def item(self) -> "Type":
        """The type of a list's items or a map's values."""
        return self.element or DEDUCED


DEDUCED = Type(Shape.ANY, go_name="interface {}", open=True)
"""A value that nothing is declared about, merged by what it turns out to be."""
