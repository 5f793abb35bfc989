# SPDX-License-Identifier: Apache-2.0
"""CEL's types, as the type checker and `type()` know them, and unification: whether a value of one type can go where
another is wanted, binding type parameters on the way.
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


Bindings = dict[str, Type]
"""The types that type parameters stand for, so far."""

_NULLABLE = frozenset((TypeKind.OPAQUE, TypeKind.STRUCT, TypeKind.ANY, TypeKind.DURATION, TypeKind.TIMESTAMP))
_SIMPLE = frozenset(
    (
        *(TypeKind.BOOL, TypeKind.BYTES, TypeKind.DOUBLE, TypeKind.INT, TypeKind.STRING, TypeKind.UINT),
        *(TypeKind.ANY, TypeKind.DURATION, TypeKind.TIMESTAMP, TypeKind.STRUCT),
    )
)


def assignable(bindings: Bindings, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> Bindings | None:
    """The bindings under which every given type fits the wanted one, None if there are none. Changes no input."""
    if len(given) != len(wanted):
        return None
    attempt = dict(bindings)
    return attempt if _all_assignable(attempt, given, wanted) else None


def _all_assignable(bindings: Bindings, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> bool:
    return all(_assignable(bindings, one, other) for one, other in zip(given, wanted, strict=True))


def _assignable(bindings: Bindings, given: Type, wanted: Type) -> bool:
    if wanted.kind is TypeKind.PARAMETER:
        valid, bound = _substitutes(bindings, given, wanted)
        if valid or bound:
            return valid
    if given.kind is TypeKind.PARAMETER:
        return _substitutes(bindings, wanted, given)[0]
    if given.is_dynamic or wanted.is_dynamic or TypeKind.ERROR in (given.kind, wanted.kind):
        return True
    if given.kind is TypeKind.NULL:
        return _takes_null(wanted)
    if wanted.kind is TypeKind.NULL:
        return _takes_null(given)
    if given.kind in _SIMPLE:
        return given == wanted
    if given.kind is TypeKind.TYPE:
        return wanted.kind is TypeKind.TYPE
    return (
        given.kind is wanted.kind
        and given.name == wanted.name
        and len(given.parameters) == len(wanted.parameters)
        and _all_assignable(bindings, given.parameters, wanted.parameters)
    )


def _takes_null(candidate: Type) -> bool:
    return candidate.kind in _NULLABLE or candidate.kind is TypeKind.NULL or candidate.nullable


def _substitutes(bindings: Bindings, given: Type, variable: Type) -> tuple[bool, bool]:
    """(whether `given` can stand for the type parameter, whether that was bound already)"""
    if given == variable:
        return True, True
    bound = bindings.get(variable.name)
    if bound is not None:
        if given == bound:
            return True, True
        if _assignable(bindings, given, bound):
            general = most_general(given, bound)
            if not _occurs(bindings, variable, general):
                bindings[variable.name] = general
            return True, True
        return False, True
    if _occurs(bindings, variable, given):
        return False, False
    bindings[variable.name] = given
    return True, False


def _occurs(bindings: Bindings, variable: Type, within: Type) -> bool:
    if variable == within:
        return True
    if within.kind is TypeKind.PARAMETER:
        bound = bindings.get(within.name)
        return bound is not None and _occurs(bindings, variable, bound)
    return any(_occurs(bindings, variable, inner) for inner in within.parameters)


def most_general(one: Type, other: Type) -> Type:
    """The more general of two types that fit together."""
    return one if _less_specific(one, other) else other


def _less_specific(one: Type, other: Type) -> bool:
    if one.is_dynamic or one.kind is TypeKind.PARAMETER:
        return True
    if other.is_dynamic or other.kind is TypeKind.PARAMETER or one.kind is not other.kind:
        return False
    if one.kind is TypeKind.TYPE:
        return True
    if one.kind in (TypeKind.OPAQUE, TypeKind.LIST, TypeKind.MAP):
        if one.name != other.name or len(one.parameters) != len(other.parameters):
            return False
        return all(_less_specific(mine, theirs) for mine, theirs in zip(one.parameters, other.parameters, strict=True))
    return one == other


def substitute(bindings: Bindings, within: Type, *, final: bool = False) -> Type:
    """The type with bound parameters replaced; with `final`, the others become dyn."""
    if within.kind is TypeKind.PARAMETER:
        bound = bindings.get(within.name)
        if bound is not None:
            return substitute(bindings, bound, final=final)
        return DYN if final else within
    if not within.parameters:
        return within
    inner = tuple([substitute(bindings, parameter, final=final) for parameter in within.parameters])
    if inner == within.parameters:
        return within
    match within.kind:
        case TypeKind.LIST:
            return list_of(inner[0])
        case TypeKind.MAP:
            return map_of(*inner)
    return Type(within.kind, within.name, inner)


def unwrap_optional(candidate: Type) -> tuple[Type, bool]:
    """(the type inside, True) of an optional type; (the type itself, False) of others."""
    return (candidate.parameters[0], True) if is_optional(candidate) else (candidate, False)
