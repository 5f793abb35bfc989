# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes release and feature gates whose allocator is reproduced, and the defects of the release.

The gates are the ones of the DynamicResources plugin of kube-scheduler (pkg/scheduler/framework/plugins/feature). Each
defect that changes answers is a field of `Defects`, and a rule of the same name in `kube.releases`. Another release is
another row of a table, and not another allocator. The answers of 1.36.2 are checked against that release, and the
changes of 1.37 and 1.38 against code of these releases or a port of it (tests/golden). The other releases have their
own gates and defects.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final

from ...kube.releases import NEWEST_RELEASED, RULES, default_gates, has_rule, is_since, is_supported, minor_of
from ...kube.releases import RELEASES as SUPPORTED
from .capacity import Arithmetic

DEFAULT_RELEASE: Final = NEWEST_RELEASED
_OLDEST_MINOR: Final = 33
"""The slices of 1.32 are decoded, but its allocator is not reproduced."""

_GATES: Final[Mapping[str, str]] = {
    "DRAAdminAccess": "admin_access",
    "DRAPrioritizedList": "prioritized_list",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRADeviceBindingConditions": "binding_conditions",
    "DRAResourceClaimDeviceStatus": "claim_device_status",
    "DRADeviceTaints": "device_taints",
    "DRADeviceTaintRules": "device_taint_rules",
    "DRAPartitionableDevices": "partitionable_devices",
    "DRAListTypeAttributes": "list_attributes",
    "DRAExtendedResource": "extended_resources",
    "DRAFractionalCapacityRange": "fractional_capacity",
    "DRADeviceCompatibilityGroups": "compatibility_groups",
    "DRADerivedAttributes": "derived_attributes",
    "DRAOptionalNodeOperations": "optional_node_operations",
    "DRANodeAllocatableResources": "node_allocatable_resources",
}
"""The field of `Features` for each feature gate that affects allocation."""
GATES: Final = frozenset(_GATES)
"""The names of these feature gates."""


class Variant(enum.Enum):
    """The three allocators of Kubernetes. The oldest allocator that supports all requested features is used."""

    STABLE = "stable"
    INCUBATING = "incubating"
    EXPERIMENTAL = "experimental"


@dataclass(frozen=True, slots=True)
class Defects:
    """Defects that change an answer. Without defects, the allocator does what the API documentation says."""

    refused_keep_counters: bool = False
    """A device that a taint or constraint refuses keeps the counters that it reserved."""
    undone_shares_keep_counters: bool = False
    """Undoing the pick of a shared device does not give its counters back."""
    refused_shares_stay_in_constraints: bool = False
    """A shared device without room stays in the constraints."""
    counters_by_pool_name: bool = False
    """Pools of several drivers that have the same name share their counters."""
    shares_without_capacity_unnoticed: bool = False
    """A recorded share that consumed no capacity does not count as the first one."""
    decimal_requests_grow: bool = False
    """Comparing a requested capacity that Go keeps as a decimal with the picked shares of a device adds these to it."""
    distinct_forgets: bool = False
    """distinctAttribute remembers one value for each request."""
    common_values_stay_narrow: bool = False
    """Undoing a pick does not restore the common values of lists for matchAttribute."""
    counter_slices_everywhere: bool = False
    """Slices with shared counters are relevant for every node, even if they name another node."""
    capacity_of_another_device: bool = False
    """For device n of a request, device n of the slice must have room too."""
    config_repeats: bool = False
    """A configuration entry of the claim appears once for each of its requests."""
    config_names_all_requests: bool = False
    """A configuration entry names its requests even if these are all requests of the claim."""
    unknown_devices_fail_pods: bool = False
    """A request for all devices of a pool that is incomplete or invalid fails the pod, and not only the node."""
    whole_beside_shares: bool = False
    """A device that is not shared any more is allocated as a whole while a share of it is in use."""


@cache
def _defects_of(release: str) -> Defects:
    return Defects(**{field.name: has_rule(release, field.name) for field in fields(Defects)})


ISSUES: Final[Mapping[str, str]] = {
    field.name: RULES[field.name].issue for field in fields(Defects) if RULES[field.name].issue
}
"""The issue of each reported defect, by the field of `Defects`."""

RELEASES: Final = tuple(release for release in SUPPORTED if minor_of(release) >= _OLDEST_MINOR)
"""Releases that can be reproduced."""


@dataclass(frozen=True, slots=True)
class Features:
    """Feature gates with the defaults of 1.37, and the release.

    `as_specified` leaves out all defects of the release, and `without_defects` leaves out those with these names.
    """

    admin_access: bool = True
    prioritized_list: bool = True
    consumable_capacity: bool = True
    binding_conditions: bool = True
    claim_device_status: bool = True
    device_taints: bool = True
    device_taint_rules: bool = True
    partitionable_devices: bool = True
    list_attributes: bool = False
    """Expressions may read list-valued attributes."""
    extended_resources: bool = True
    """DeviceClasses serve extended resources of pods."""
    list_constraints: bool = False
    """Constraints compare list-valued attributes. From 1.37, with the gate DRAListTypeAttributes."""
    fractional_capacity: bool = True
    """Ranges of capacity that are exact in thousandths are computed in thousandths. From 1.37."""
    compatibility_groups: bool = False
    """Devices that share counters are compared by their compatibility groups. From 1.37."""
    derived_attributes: bool = False
    """Constraints use attributes that requests compute. From 1.37."""
    optional_node_operations: bool = False
    """Slices may have kubelet skip calls. From 1.37."""
    node_allocatable_resources: bool = False
    """Devices take resources of their node, such as cpu, in the form of 1.37."""
    release: str = DEFAULT_RELEASE
    as_specified: bool = False
    without_defects: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not is_supported(self.release) or minor_of(self.release) < _OLDEST_MINOR:
            raise ValueError(f"Kubernetes {self.release!r} cannot be imitated (use {', '.join(RELEASES)})")

    @staticmethod
    def from_gates(
        gates: Mapping[str, bool], *, release: str = DEFAULT_RELEASE, as_specified: bool = False
    ) -> "Features":
        """A release with some gates set, by their Kubernetes names. ValueError for other names."""
        unknown = sorted(gates.keys() - _GATES.keys())
        if unknown:
            raise ValueError(f"unknown feature gate {unknown[0]!r} (known: {', '.join(_GATES)})")
        known = Features(release=release, as_specified=as_specified)
        # Up to 1.36, gate and API of the rules are off by default. If there are rules, both were switched on.
        settings = default_gates(release) | {"DRADeviceTaintRules": True} | dict(gates)
        on: dict[str, Any] = {field: settings.get(gate, False) for gate, field in _GATES.items()}
        on["list_constraints"] = on["list_attributes"] and not has_rule(release, "lists_not_in_constraints")
        return replace(known, **on)

    def is_since(self, release: str) -> bool:
        """Whether the release is this one or a later one."""
        return is_since(self.release, release)

    @property
    def arithmetic(self) -> Arithmetic:
        """How capacity requests are rounded."""
        is_checked = self.is_since("1.37")
        return Arithmetic(is_checked, is_checked and self.fractional_capacity)

    @property
    def names_broken_devices(self) -> bool:
        """Whether errors of expressions name the device and contain a hint. From 1.37."""
        return not has_rule(self.release, "errors_without_device")

    @property
    def leaves_out_groups(self) -> bool:
        """Whether slices that have a device with compatibility groups are ignored. From 1.37, which has the field."""
        return not self.compatibility_groups and self.is_since("1.37")

    @property
    def counters_beside_devices(self) -> bool:
        """Whether a slice contains both counter sets and the devices that consume them. Up to 1.34."""
        return has_rule(self.release, "counters_beside_devices")

    @property
    def binding(self) -> bool:
        """Whether devices with binding conditions are available. This needs two gates."""
        return self.binding_conditions and self.claim_device_status

    @property
    def variant(self) -> Variant:
        """The allocator of Kubernetes that is used."""
        if self.list_constraints or self.compatibility_groups or self.derived_attributes:
            return Variant.EXPERIMENTAL
        if self.consumable_capacity or self.binding:
            return Variant.INCUBATING
        return Variant.STABLE

    @property
    def defects(self) -> Defects:
        """The defects to reproduce."""
        defects = Defects() if self.as_specified else _defects_of(self.release)
        return replace(defects, **dict.fromkeys(self.without_defects, False)) if self.without_defects else defects
