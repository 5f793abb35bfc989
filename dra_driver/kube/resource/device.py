# SPDX-License-Identifier: Apache-2.0
"""Devices with their attributes, capacities, counters and taints, and the ResourceSlices that publish them.

If a feature gate is disabled, the API server removes the fields of this feature from a ResourceSlice without an error.
`SliceFeatures` describes which fields it keeps.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..releases import RULES, minor_of
from .limits import TAINTS_PER_DEVICE
from .meta import NodeSelector, ObjectMeta, empty
from .quantity import Quantity

_STRICT = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-((?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)
_LENIENT = re.compile(r"v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?", re.ASCII)

COUNTERS_APART_SINCE: Final = minor_of(RULES["counters_beside_devices"].until[0])
"""Since this minor release of Kubernetes, counter sets are in slices of their own."""
_TAINTS_BEFORE_1_35 = 4


@dataclass(frozen=True, slots=True)
class Version:
    """The value of a `version` attribute: the text of a semantic version (https://semver.org, 2.0.0).

    Two versions are equal if their texts are equal, because constraints compare them like this.
    """

    text: str

    @property
    def is_strict(self) -> bool:
        """Whether the API server accepts the text: three numbers without leading zeros, then optional parts."""
        return _STRICT.fullmatch(self.text) is not None

    def __str__(self) -> str:
        return self.text


def from_dotted(text: str) -> Version | None:
    """The version for numbers with dots. Missing numbers become 0, and leading zeros are removed.

    For example, `570.158.01` becomes `570.158.1`, and `12.8` becomes `12.8.0`. None if `text` has another form.
    """
    match = _LENIENT.fullmatch(text.strip())
    if match is None:
        return None
    return Version(".".join(str(int(part or "0")) for part in match.groups()))


@dataclass(frozen=True, slots=True)
class AttributeList:
    """An attribute with a list (Kubernetes 1.36, feature gate DRAListTypeAttributes).

    `kind` is the name of its field.
    """

    kind: str  # ints, bools, strings or versions
    items: tuple[int | bool | str | Version, ...]


@dataclass(frozen=True, slots=True)
class MalformedAttribute:
    """An attribute with no value or with several values. `fields` is its JSON form.

    The API refuses it, but a stored object may have it. A selector for such a device is an error, or reads the value
    that the scheduler reads.
    """

    fields: Mapping[str, object]


AttributeValue = str | bool | int | Version | AttributeList | MalformedAttribute
"""Attributes of the types string, bool, int and version are str, bool, int and Version."""


def attribute_kind(value: AttributeValue) -> str:
    """The name of the JSON field of an attribute: string, int, bool, version, or the field of a list."""
    match value:
        case bool():  # before int, because a bool is an int
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
    """The amounts that a share may have: `minimum`, and then in steps up to `maximum`."""

    minimum: Quantity
    maximum: Quantity | None = None
    step: Quantity | None = None


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How the capacity of a shared device may be divided. At most one of `valid_values` and `valid_range` is set."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: RequestRange | None = None


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """An amount of a resource that the device has, such as memory."""

    value: Quantity
    request_policy: RequestPolicy | None = None


@dataclass(frozen=True, slots=True)
class CounterSet:
    """Counters that the devices of one GPU share. An allocated device consumes a part of them."""

    name: str
    counters: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class CounterConsumption:
    """What a device consumes of one counter set while it is allocated.

    All devices that use the set at a time have one of the `compatibility_groups` in common, or none of them has any.
    """

    counter_set: str
    counters: Mapping[str, Quantity]
    compatibility_groups: tuple[str, ...] = ()


class TaintEffect(enum.StrEnum):
    """The effect of a taint on claims that do not tolerate it. Unknown effects are kept as text."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """A reason not to use a device. `time_added` is RFC 3339 with seconds, or empty."""

    key: str
    effect: str
    value: str = ""
    time_added: str = ""


@dataclass(frozen=True, slots=True)
class DeviceToleration:
    """A claim tolerates taints. Without `toleration_seconds` there is no time limit."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceMapping:
    """The amount of a node's resource that a device is: for the device, or for each unit of a consumed capacity."""

    device_multiplier: Quantity | None = None
    capacity_key: str = ""
    capacity_multiplier: Quantity | None = None


@dataclass(frozen=True, slots=True)
class ResourceOverhead:
    """What the use of a device takes in addition, for each pod and for each container."""

    per_pod: Quantity | None = None
    per_container: Quantity | None = None


@dataclass(frozen=True, slots=True)
class NodeAllocatableResource:
    """What a device takes of a resource of its node, such as cpu (Kubernetes 1.37, DRANodeAllocatableResources)."""

    mapping: ResourceMapping | None = None
    overhead: ResourceOverhead | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of a ResourceSlice.

    The keys of `attributes` and `capacity` are those of the slice: `profile`, or `resource.kubernetes.io/pcieRoot`.
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
    node_allocatable_resources: Mapping[str, NodeAllocatableResource] = field(default_factory=empty)


@dataclass(frozen=True, slots=True)
class ResourcePool:
    """The pool of a slice. A pool is complete if its newest generation has `resource_slice_count` slices."""

    name: str
    generation: int
    resource_slice_count: int


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A part of a pool.

    Exactly one of `node_name`, `node_selector`, `all_nodes` and `per_device_node_selection` is set. Since Kubernetes
    1.35, a slice has either `devices` or `shared_counters`. `skip_node_operations` are the calls that kubelet does not
    make for the devices, such as `NodePrepareResources`. `partition_type_attribute` is the qualified name of the
    attribute by which reports about the pool group its devices. `unread` are paths of fields that a server has stored
    and that are not known here, such as `spec.devices[].name`.
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
    skip_node_operations: tuple[str, ...] = ()
    partition_type_attribute: str | None = None
    unread: tuple[str, ...] = ()

    @property
    def has_compatibility_groups(self) -> bool:
        """Whether a device declares compatibility groups."""
        return any(taken.compatibility_groups for device in self.devices for taken in device.consumes_counters)


@dataclass(frozen=True, slots=True)
class DeviceTaintSelector:
    """The devices that a DeviceTaintRule selects: those for which all given names are equal."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """An administrator's taint for devices of any driver. `selector` is None if the rule has none."""

    metadata: ObjectMeta
    taint: DeviceTaint
    selector: DeviceTaintSelector | None = None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SliceFeatures:
    """The features of ResourceSlices that an API server has. Each of the first six fields is a feature gate.

    With `counters_beside_devices`, counter sets must be in the same slice as the devices that consume them. Kubernetes
    1.33 and 1.34 require this. Since 1.35, counter sets must be in slices of their own.
    """

    partitionable_devices: bool = True
    device_taints: bool = True
    consumable_capacity: bool = True
    list_attributes: bool = False
    binding_conditions: bool = True
    partition_type: bool = False
    counters_beside_devices: bool = False

    @property
    def taints_per_device(self) -> int:
        """The largest number of taints of a device."""
        if not self.device_taints:
            return 0
        return _TAINTS_BEFORE_1_35 if self.counters_beside_devices else TAINTS_PER_DEVICE

    @property
    def taints_without_effect(self) -> bool:
        """Whether a taint may have the effect None, which is allowed since 1.35."""
        return not self.counters_beside_devices
