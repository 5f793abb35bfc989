# SPDX-License-Identifier: Apache-2.0
"""Which Kubernetes an expression is compiled for, and the names that it declares.

kube-apiserver checks a new or changed expression against what the release before also knew, so that
an upgrade can be undone; kube-scheduler, and the API server for an unchanged expression, compile with
all that the release knows. Follows k8s.io/apiserver `pkg/cel/environment` and
k8s.io/dynamic-resource-allocation `cel`.

Names of types, and the protobuf messages that expressions can write (`google.protobuf.BoolValue{value: true}`), are
the same in all environments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..types import (
    ANY,
    BOOL,
    BYTES,
    CIDR,
    DEVICE,
    DOUBLE,
    DURATION,
    DYN,
    EMPTY,
    INT,
    IP,
    LIST,
    MAP,
    NULL,
    OPTIONAL,
    STRING,
    TIMESTAMP,
    TYPE,
    UINT,
    Type,
    list_of,
    map_of,
    wrapper,
)

RELEASES: Final = ("1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
"""Releases whose environment is known, oldest first."""
NEWEST: Final = RELEASES[-1]

_MULTIPLE_ALLOCATIONS: Final = 34
_LIST_ATTRIBUTES: Final = 36
_LISTS_WITHOUT_GATE: Final = 37


@dataclass(frozen=True, slots=True)
class Environment:
    """One CEL environment. The gates are DRAConsumableCapacity and DRAListTypeAttributes, with their 1.36 defaults.

    `stored` chooses what kube-scheduler compiles with; False, what kube-apiserver checks new expressions with.
    """

    kubernetes: str = NEWEST
    consumable_capacity: bool = True
    list_type_attributes: bool = False
    stored: bool = True

    def __post_init__(self) -> None:
        if self.kubernetes not in RELEASES:
            raise ValueError(f"Kubernetes {self.kubernetes!r} is not supported (use {', '.join(RELEASES)})")

    @property
    def release(self) -> int:
        """The minor version."""
        return int(self.kubernetes.partition(".")[2])

    @property
    def level(self) -> int:
        """The minor version whose functions are available."""
        return self.release if self.stored else self.release - 1

    @property
    def has_multiple_allocations(self) -> bool:
        """Whether `device.allowMultipleAllocations` is declared."""
        return self.release >= _MULTIPLE_ALLOCATIONS and (self.stored or self.consumable_capacity)

    @property
    def has_includes(self) -> bool:
        """Whether `includes()` is declared."""
        return self.release >= _LIST_ATTRIBUTES and (self.stored or self.list_type_attributes)

    @property
    def reads_lists(self) -> bool:
        """Whether a device with a list attribute can be evaluated at all."""
        gated = self.release >= _LIST_ATTRIBUTES and self.list_type_attributes
        return gated or self.release >= _LISTS_WITHOUT_GATE

    @property
    def attribute_type(self) -> Type:
        """The static type of an attribute: `dyn` where it may be a list, otherwise `any`."""
        if self.release >= _LISTS_WITHOUT_GATE and self.stored:
            return DYN
        return DYN if self.release >= _LIST_ATTRIBUTES and self.list_type_attributes else ANY

    @property
    def result_types(self) -> tuple[Type, ...]:
        """Types, beside bool, that a whole expression may have: an attribute can be a bool."""
        if self.release >= _LISTS_WITHOUT_GATE or self.attribute_type is ANY:
            return (self.attribute_type,)
        return (ANY, DYN)


@dataclass(frozen=True, slots=True)
class Message:
    """A message type of protobuf: what the type checker makes of it, and its fields."""

    type: Type
    fields: Mapping[str, Type]


MESSAGES: Final[Mapping[str, Message]] = {
    "google.protobuf.BoolValue": Message(wrapper(BOOL), {"value": BOOL}),
    "google.protobuf.BytesValue": Message(wrapper(BYTES), {"value": BYTES}),
    "google.protobuf.DoubleValue": Message(wrapper(DOUBLE), {"value": DOUBLE}),
    "google.protobuf.FloatValue": Message(wrapper(DOUBLE), {"value": DOUBLE}),
    "google.protobuf.Int32Value": Message(wrapper(INT), {"value": INT}),
    "google.protobuf.Int64Value": Message(wrapper(INT), {"value": INT}),
    "google.protobuf.UInt32Value": Message(wrapper(UINT), {"value": UINT}),
    "google.protobuf.UInt64Value": Message(wrapper(UINT), {"value": UINT}),
    "google.protobuf.StringValue": Message(wrapper(STRING), {"value": STRING}),
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
        BOOL,
        BYTES,
        DOUBLE,
        DURATION,
        INT,
        LIST,
        MAP,
        NULL,
        STRING,
        TIMESTAMP,
        TYPE,
        UINT,
        OPTIONAL,
        IP,
        CIDR,
    )
} | {EMPTY.name: EMPTY}
"""Names of types that an expression can use as values."""

UNUSABLE_TYPES: Final[Mapping[str, Type]] = {
    **{name: message.type for name, message in MESSAGES.items() if name not in TYPE_VALUES},
    "duration": DURATION,
    "timestamp": TIMESTAMP,
    DEVICE.name: DEVICE,
}
"""Names that the type checker takes for types, and planning then cannot find."""

CONSTANTS: Final[Mapping[str, int]] = {"google.protobuf.NullValue.NULL_VALUE": 0}
"""Enumeration values."""
