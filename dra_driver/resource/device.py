# SPDX-License-Identifier: Apache-2.0
"""Devices, with their attributes, capacities, counters and taints, and the ResourceSlices that publish them.

An API server drops the fields of a ResourceSlice whose feature gate is disabled, without an error. `SliceFeatures`
says which fields it keeps.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .limits import TAINTS_PER_DEVICE
from .meta import NodeSelector, ObjectMeta, empty
from .quantity import Quantity
from .semver import Version


@dataclass(frozen=True, slots=True)
class AttributeList:
    """A list-valued attribute (Kubernetes 1.36, gate DRAListTypeAttributes). `kind` is its field's name."""

    kind: str  # ints, bools, strings or versions
    items: tuple[int | bool | str | Version, ...]


@dataclass(frozen=True, slots=True)
class MalformedAttribute:
    """An attribute with no value or with several: the API refuses it, but a stored object may carry it.

    `fields` is its JSON form. Evaluating any selector on a device that has one is an error or follows
    the scheduler's precedence; nothing here guesses.
    """

    fields: Mapping[str, object]


AttributeValue = str | bool | int | Version | AttributeList | MalformedAttribute
"""string, bool, int and version attributes are str, bool, int and Version."""


def attribute_kind(value: AttributeValue) -> str:
    """The name of the JSON field that holds `value`: string, int, bool, version, or a list's."""
    match value:
        case bool():  # before int: a bool is one
            return "bool"
        case int():
            return "int"
        case str():
            return "string"
        case Version():
            return "version"
        case AttributeList():
            return value.kind
        case MalformedAttribute():
            return "malformed"


@dataclass(frozen=True, slots=True)
class RequestRange:
    """Amounts a share may take: `minimum`, and from there in steps up to `maximum`."""

    minimum: Quantity
    maximum: Quantity | None = None
    step: Quantity | None = None


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How a shared device's capacity may be split. At most one of values and range is set."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: RequestRange | None = None


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """An amount of something that the device has."""

    value: Quantity
    request_policy: RequestPolicy | None = None


@dataclass(frozen=True, slots=True)
class CounterSet:
    """A pot that the partitions of one GPU draw from."""

    name: str
    counters: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class CounterConsumption:
    """What a device draws from one counter set while it is allocated."""

    counter_set: str
    counters: Mapping[str, Quantity]


class TaintEffect(enum.StrEnum):
    """What a taint does to claims that don't tolerate it. Unknown effects are kept as plain text."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """A reason not to use a device. `time_added` is RFC 3339 with seconds, empty while unset."""

    key: str
    effect: str
    value: str = ""
    time_added: str = ""


@dataclass(frozen=True, slots=True)
class DeviceToleration:
    """A claim's consent to taints. `toleration_seconds` None means for ever."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of a ResourceSlice.

    Keys of `attributes` and `capacity` are as published: `profile`, or `resource.kubernetes.io/pcieRoot`.
    """

    name: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=empty)
    capacity: Mapping[str, DeviceCapacity] = field(default_factory=empty)
    consumes_counters: tuple[CounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool = False


@dataclass(frozen=True, slots=True)
class ResourcePool:
    """The pool a slice belongs to. A pool is complete when its newest generation has `resource_slice_count` slices."""

    name: str
    generation: int
    resource_slice_count: int


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """Part of a pool. Exactly one of `node_name`, `node_selector`, `all_nodes` and
    `per_device_node_selection` says where its devices are; `devices` and `shared_counters`
    exclude each other since Kubernetes 1.35.
    """

    metadata: ObjectMeta
    driver: str
    pool: ResourcePool
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: tuple[Device, ...] = field(default=())
    shared_counters: tuple[CounterSet, ...] = ()


COUNTERS_APART_SINCE: Final = 35
"""The minor release of Kubernetes since which counter sets stand in slices of their own."""
_TAINTS_BEFORE_1_35 = 4


@dataclass(frozen=True, slots=True)
class SliceFeatures:
    """One flag a feature gate. `counters_beside_devices` says that counter sets must stand in the slice of the devices
    that draw on them, as Kubernetes 1.33 and 1.34 want it; since 1.35 they must stand in slices of their own.
    """

    partitionable_devices: bool = True
    device_taints: bool = True
    consumable_capacity: bool = True
    list_attributes: bool = False
    binding_conditions: bool = True
    counters_beside_devices: bool = False

    @property
    def taints_per_device(self) -> int:
        """How many taints a device may have."""
        if not self.device_taints:
            return 0
        return _TAINTS_BEFORE_1_35 if self.counters_beside_devices else TAINTS_PER_DEVICE

    @property
    def taints_without_effect(self) -> bool:
        """Whether a taint may have the effect None: since 1.35."""
        return not self.counters_beside_devices
