# SPDX-License-Identifier: Apache-2.0
"""CEL's types, as the type checker and `type()` know them.

Follows cel-go's `common/types`: two types are the same when kind, name and parameters are; `dyn`,
`any` and type parameters take every value. A type is also a value, compared by name.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
UINT_MAX: Final = (1 << 64) - 1


class Uint(int):
    """An unsigned 64-bit integer. Arithmetic on it gives plain ints: wrap what is to stay one."""

    __slots__ = ()


class TypeKind(enum.Enum):
    """The family a type belongs to."""

    DYN = "dyn"
    ANY = "any"
    BOOL = "bool"
    BYTES = "bytes"
    DOUBLE = "double"
    DURATION = "duration"
    ERROR = "error"
    INT = "int"
    LIST = "list"
    MAP = "map"
    NULL = "null"
    OPAQUE = "opaque"
    STRING = "string"
    STRUCT = "struct"
    TIMESTAMP = "timestamp"
    TYPE = "type"
    PARAMETER = "parameter"
    UINT = "uint"


_MAX_SIZE: Final = 1000
"""Naming a map and using the name twice in the next one doubles the type; Kubernetes would never finish."""


class TypeTooLargeError(Exception):
    """A type that consists of more than _MAX_SIZE types."""


@dataclass(frozen=True, slots=True)
class Type:
    """One type.

    `nullable` marks protobuf's wrapper types, which also take null and otherwise count as what they wrap.
    """

    kind: TypeKind
    name: str
    parameters: tuple["Type", ...] = ()
    nullable: bool = field(default=False, compare=False)
    size: int = field(init=False, compare=False)
    """The number of types in it, itself included."""

    def __post_init__(self) -> None:
        size = 1 + sum([parameter.size for parameter in self.parameters])
        if size > _MAX_SIZE:
            raise TypeTooLargeError
        object.__setattr__(self, "size", size)

    def __str__(self) -> str:
        """The type as messages of the type checker name it."""
        match self.kind:
            case TypeKind.ANY:
                return "any"
            case TypeKind.ERROR:
                return "!error!"
            case TypeKind.NULL | TypeKind.DURATION | TypeKind.TIMESTAMP:
                return str(self.kind.value)
        if self.nullable:
            return f"wrapper({self.name})"
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(map(str, self.parameters))})"

    @property
    def display(self) -> str:
        """The type as results name it: `google.protobuf.Any` for an attribute of unknown type."""
        if self.nullable:
            return f"wrapper({self.name})"
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(p.display for p in self.parameters)})"

    @property
    def is_dynamic(self) -> bool:
        """Whether every value has this type, as far as the type checker can tell."""
        return self.kind is TypeKind.DYN or self.kind is TypeKind.ANY

    @property
    def element(self) -> "Type":
        """A list's element type, or an optional's."""
        return self.parameters[0]


ANY = Type(TypeKind.ANY, "google.protobuf.Any")
BOOL = Type(TypeKind.BOOL, "bool")
BYTES = Type(TypeKind.BYTES, "bytes")
DOUBLE = Type(TypeKind.DOUBLE, "double")
DURATION = Type(TypeKind.DURATION, "google.protobuf.Duration")
DYN = Type(TypeKind.DYN, "dyn")
ERROR = Type(TypeKind.ERROR, "error")
INT = Type(TypeKind.INT, "int")
NULL = Type(TypeKind.NULL, "null_type")
STRING = Type(TypeKind.STRING, "string")
TIMESTAMP = Type(TypeKind.TIMESTAMP, "google.protobuf.Timestamp")
TYPE = Type(TypeKind.TYPE, "type")
UINT = Type(TypeKind.UINT, "uint")

QUANTITY = Type(TypeKind.STRUCT, "kubernetes.Quantity")
SEMVER = Type(TypeKind.STRUCT, "kubernetes.Semver")
URL = Type(TypeKind.STRUCT, "kubernetes.URL")
NAMED_FORMAT = Type(TypeKind.STRUCT, "kubernetes.NamedFormat")
IP = Type(TypeKind.OPAQUE, "net.IP")
CIDR = Type(TypeKind.OPAQUE, "net.CIDR")
EMPTY = Type(TypeKind.STRUCT, "google.protobuf.Empty")
DEVICE = Type(TypeKind.STRUCT, "kubernetes.DRADevice")

_OPTIONAL = "optional_type"


def list_of(element: Type) -> Type:
    """list(element)"""
    return Type(TypeKind.LIST, "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """map(key, value)"""
    return Type(TypeKind.MAP, "map", (key, value))


def optional_of(value: Type) -> Type:
    """optional_type(value)"""
    return Type(TypeKind.OPAQUE, _OPTIONAL, (value,))


def type_of(described: Type) -> Type:
    """The type of a type: type(described)"""
    return Type(TypeKind.TYPE, "type", (described,))


def parameter(name: str) -> Type:
    """A type parameter, bound anew by each call."""
    return Type(TypeKind.PARAMETER, name)


def wrapper(wrapped: Type) -> Type:
    """Protobuf's wrapper message of a primitive type."""
    return Type(wrapped.kind, wrapped.name, nullable=True)


LIST = list_of(DYN)
MAP = map_of(DYN, DYN)
OPTIONAL = Type(TypeKind.OPAQUE, _OPTIONAL)


def is_optional(candidate: Type) -> bool:
    """Whether it is optional_type(…)."""
    return candidate.kind is TypeKind.OPAQUE and candidate.name == _OPTIONAL


def parameters_of(candidate: Type) -> Iterator[str]:
    """The names of the type parameters inside a type."""
    if candidate.kind is TypeKind.PARAMETER:
        yield candidate.name
    for inner in candidate.parameters:
        yield from parameters_of(inner)
