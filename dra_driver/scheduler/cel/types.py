# SPDX-License-Identifier: Apache-2.0
"""CEL's types, their names in expressions, and unification.

The type checker and `type()` use these types. Unification decides whether a value of one type is allowed where another
type is expected, and finds the types of type parameters on the way.
"""

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
UINT_MAX: Final = (1 << 64) - 1

_MAX_SIZE: Final = 1000
"""A limit of this project. A few nested maps can double the size of the type again and again, and the type checker of
Kubernetes would not end."""

_OPTIONAL = "optional_type"

CONSTANTS: Final[Mapping[str, int]] = {"google.protobuf.NullValue.NULL_VALUE": 0}
"""Values of protobuf enumerations."""


class Uint(int):
    """An unsigned 64-bit integer. Arithmetic gives plain ints, so each result has to be converted to Uint again."""

    __slots__ = ()


class TypeKind(enum.Enum):
    """The family of a type. For example, all lists have the kind LIST."""

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


class TypeTooLargeError(Exception):
    """A type consists of more than _MAX_SIZE types."""


@dataclass(frozen=True, slots=True)
class Type:
    """One type.

    `nullable` marks protobuf's wrapper types. They accept null, and otherwise behave like the type that they wrap.
    """

    kind: TypeKind
    name: str
    parameters: tuple["Type", ...] = ()
    nullable: bool = field(default=False, compare=False)
    size: int = field(init=False, compare=False)
    """The number of types that it consists of, including itself."""

    def __post_init__(self) -> None:
        size = 1 + sum([parameter.size for parameter in self.parameters])  # noqa: C419  # a list is faster
        if size > _MAX_SIZE:
            raise TypeTooLargeError
        object.__setattr__(self, "size", size)

    def __str__(self) -> str:
        """The name of the type in messages of the type checker."""
        match self.kind:
            case TypeKind.ANY:
                return "any"
            case TypeKind.ERROR:
                return "!error!"
            case TypeKind.NULL | TypeKind.DURATION | TypeKind.TIMESTAMP:
                return str(self.kind.value)
        return self._written(str)

    @property
    def display(self) -> str:
        """The name of the type in results, such as `google.protobuf.Any` for an attribute of unknown type."""
        return self._written(lambda parameter: parameter.display)

    def _written(self, write: Callable[["Type"], str]) -> str:
        if self.nullable:
            return f"wrapper({self.name})"
        return f"{self.name}({', '.join(map(write, self.parameters))})" if self.parameters else self.name

    @property
    def is_dynamic(self) -> bool:
        """Whether the type checker accepts every value for this type."""
        return self.kind is TypeKind.DYN or self.kind is TypeKind.ANY

    @property
    def element(self) -> "Type":
        """The type of the elements of a list, or of the value of an optional."""
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
    """A type parameter. Each call of a function has its own type for it."""
    return Type(TypeKind.PARAMETER, name)


LIST = list_of(DYN)
MAP = map_of(DYN, DYN)
OPTIONAL = Type(TypeKind.OPAQUE, _OPTIONAL)


@dataclass(frozen=True, slots=True)
class Message:
    """A protobuf message that expressions can write, such as `google.protobuf.BoolValue{value: true}`.

    `type` is its type for the type checker.
    """

    type: Type
    fields: Mapping[str, Type]


def _wrapper(wrapped: Type) -> Message:
    return Message(Type(wrapped.kind, wrapped.name, nullable=True), {"value": wrapped})


LITERAL_TYPES: Final[Mapping[type, Type]] = {
    bool: BOOL,
    int: INT,
    Uint: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    type(None): NULL,
}
"""The types of literals, by the Python class of their values."""

MESSAGES: Final[Mapping[str, Message]] = {
    "google.protobuf.BoolValue": _wrapper(BOOL),
    "google.protobuf.BytesValue": _wrapper(BYTES),
    "google.protobuf.DoubleValue": _wrapper(DOUBLE),
    "google.protobuf.FloatValue": _wrapper(DOUBLE),
    "google.protobuf.Int32Value": _wrapper(INT),
    "google.protobuf.Int64Value": _wrapper(INT),
    "google.protobuf.UInt32Value": _wrapper(UINT),
    "google.protobuf.UInt64Value": _wrapper(UINT),
    "google.protobuf.StringValue": _wrapper(STRING),
    "google.protobuf.Duration": Message(DURATION, {"seconds": INT, "nanos": INT}),
    "google.protobuf.Timestamp": Message(TIMESTAMP, {"seconds": INT, "nanos": INT}),
    "google.protobuf.Any": Message(ANY, {"type_url": STRING, "value": BYTES}),
    "google.protobuf.Value": Message(
        DYN,
        {
            "null_value": INT,
            "number_value": DOUBLE,
            "string_value": STRING,
            "bool_value": BOOL,
            "struct_value": map_of(STRING, DYN),
            "list_value": list_of(DYN),
        },
    ),
    "google.protobuf.Struct": Message(map_of(STRING, DYN), {"fields": map_of(STRING, DYN)}),
    "google.protobuf.ListValue": Message(list_of(DYN), {"values": list_of(DYN)}),
    "google.protobuf.Empty": Message(EMPTY, {}),
}

TYPE_VALUES: Final[Mapping[str, Type]] = {
    known.name: known
    for known in (
        *(BOOL, BYTES, DOUBLE, DURATION, INT, LIST, MAP, NULL, STRING, TIMESTAMP, TYPE, UINT, OPTIONAL),
        *(IP, CIDR, EMPTY),
    )
}
"""Names of types that an expression can use as values."""

UNUSABLE_TYPES: Final[Mapping[str, Type]] = {
    **{name: message.type for name, message in MESSAGES.items() if name not in TYPE_VALUES},
    "duration": DURATION,
    "timestamp": TIMESTAMP,
    DEVICE.name: DEVICE,
}
"""Names that the type checker accepts as types, but that fail when the tree becomes a program."""


def is_optional(candidate: Type) -> bool:
    """Whether the type is optional_type(…)."""
    return candidate.kind is TypeKind.OPAQUE and candidate.name == _OPTIONAL


def unwrap_optional(candidate: Type) -> tuple[Type, bool]:
    """The type inside of an optional type, and True; another type itself, and False."""
    return (candidate.parameters[0], True) if is_optional(candidate) else (candidate, False)


def parameters_of(candidate: Type) -> Iterator[str]:
    """The names of the type parameters inside of a type."""
    if candidate.kind is TypeKind.PARAMETER:
        yield candidate.name
    for inner in candidate.parameters:
        yield from parameters_of(inner)


Bindings = dict[str, Type]
"""The types of the type parameters that are known so far."""

_NULLABLE = frozenset((TypeKind.OPAQUE, TypeKind.STRUCT, TypeKind.ANY, TypeKind.DURATION, TypeKind.TIMESTAMP))
_SIMPLE = frozenset(
    (
        *(TypeKind.BOOL, TypeKind.BYTES, TypeKind.DOUBLE, TypeKind.INT, TypeKind.STRING, TypeKind.UINT),
        *(TypeKind.ANY, TypeKind.DURATION, TypeKind.TIMESTAMP, TypeKind.STRUCT),
    )
)


def assignable(bindings: Bindings, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> Bindings | None:
    """The bindings that make every given type fit the wanted one, or None. The arguments are not changed."""
    if len(given) != len(wanted):
        return None
    attempt = dict(bindings)
    return attempt if _all_assignable(attempt, given, wanted) else None


def _all_assignable(bindings: Bindings, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> bool:
    for given_type, wanted_type in zip(given, wanted, strict=True):
        if not _assignable(bindings, given_type, wanted_type):
            return False
    return True


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
        return _accepts_null(wanted)
    if wanted.kind is TypeKind.NULL:
        return _accepts_null(given)
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


def _accepts_null(candidate: Type) -> bool:
    return candidate.kind in _NULLABLE or candidate.kind is TypeKind.NULL or candidate.nullable


def _substitutes(bindings: Bindings, given: Type, variable: Type) -> tuple[bool, bool]:
    """Whether the type parameter can have the given type, and whether it already had a type."""
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


def most_general(left: Type, right: Type) -> Type:
    """The more general of two types, one of which is assignable to the other."""
    return left if _less_specific(left, right) else right


def _less_specific(left: Type, right: Type) -> bool:
    if left.is_dynamic or left.kind is TypeKind.PARAMETER:
        return True
    if right.is_dynamic or right.kind is TypeKind.PARAMETER or left.kind is not right.kind:
        return False
    if left.kind is TypeKind.TYPE:
        return True
    if left.kind in (TypeKind.OPAQUE, TypeKind.LIST, TypeKind.MAP):
        if left.name != right.name or len(left.parameters) != len(right.parameters):
            return False
        return all(map(_less_specific, left.parameters, right.parameters))
    return left == right


def substitute(bindings: Bindings, within: Type, *, final: bool = False) -> Type:
    """The type with its type parameters replaced by their types. With `final`, unknown parameters become dyn."""
    if within.kind is TypeKind.PARAMETER:
        bound = bindings.get(within.name)
        if bound is not None:
            return substitute(bindings, bound, final=final)
        return DYN if final else within
    if not within.parameters:
        return within
    inner = tuple([substitute(bindings, parameter, final=final) for parameter in within.parameters])
    return within if inner == within.parameters else Type(within.kind, within.name, inner)
