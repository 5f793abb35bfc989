# SPDX-License-Identifier: Apache-2.0
"""Which Kubernetes is imitated: feature gates, release, and the release's defects.

The gates are those that the DynamicResources plugin of kube-scheduler hands to its allocator
(pkg/scheduler/framework/plugins/feature). A defect that changes answers is a field of `Quirks`, and a
rule of the same name in `kube.releases`, so that another release is another row of a table and not another
allocator. The answers of 1.36.2 are checked against that release, and the changes of 1.37 and 1.38
against code of these releases or a port of it (tests/golden). The others have their own gates and defects.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from ...kube.releases import NEWEST_RELEASED, RULES, default_gates, has_rule, is_since, is_supported, minor_of
from ...kube.releases import RELEASES as SUPPORTED
from .capacity import Arithmetic

DEFAULT_RELEASE: Final = NEWEST_RELEASED
_OLDEST_MINOR: Final = 33
"""The slices of 1.32 are decoded, but its allocator is not imitated."""

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
"""Gates that matter here, with the field of `Features`."""
GATES: Final = frozenset(_GATES)
"""Their names."""


class Variant(enum.Enum):
    """The three allocators that Kubernetes ships; the least new one that knows all features asked for answers."""

    STABLE = "stable"
    INCUBATING = "incubating"
    EXPERIMENTAL = "experimental"


@dataclass(frozen=True, slots=True)
class Quirks:
    """Defects that change an answer. All false is what the API documentation promises."""

    refused_keep_counters: bool = False
    """A candidate refused by a taint or constraint keeps the counters it reserved."""
    undone_shares_keep_counters: bool = False
    """Undoing the pick of a shared device does not give its counters back."""
    refused_shares_stay_in_constraints: bool = False
    """A shared device that turns out to be full is still counted by the constraints."""
    counters_by_pool_name: bool = False
    """Counters of pools of several drivers are mixed up when the pools have one name."""
    shares_without_capacity_unnoticed: bool = False
    """A recorded share that consumed no capacity does not count as the first one."""
    decimal_requests_grow: bool = False
    """Comparing a requested capacity that Go keeps as a decimal with the picked shares of a device adds these to it."""
    distinct_forgets: bool = False
    """distinctAttribute remembers one value for each request."""
    common_values_stay_narrow: bool = False
    """Undoing a pick does not widen the values that matchAttribute found common to lists."""
    counter_slices_everywhere: bool = False
    """Slices with shared counters are looked at for every node, whatever node they name."""
    capacity_of_another_device: bool = False
    """For the n-th device of a request, the room of the n-th device of the tried device's slice is looked at, too."""
    config_repeats: bool = False
    """A configuration entry of the claim appears once for each of its requests."""
    config_names_all_requests: bool = False
    """A configuration entry names its requests even if these are all requests of the claim."""
    unknown_devices_fail_pods: bool = False
    """A request for all devices of a pool that is incomplete or invalid fails the pod, and not only the node."""
    whole_beside_shares: bool = False
    """A device that is not shared any more is allocated as a whole while a share of it is in use."""


def _quirks_of(release: str) -> Quirks:
    return Quirks(**{field.name: has_rule(release, field.name) for field in fields(Quirks)})


ISSUES: Final[Mapping[str, str]] = {
    field.name: RULES[field.name].issue for field in fields(Quirks) if RULES[field.name].issue
}
"""Where a defect was reported, by the field of `Quirks`. The others were not found there."""

RELEASES: Final = tuple(release for release in SUPPORTED if minor_of(release) >= _OLDEST_MINOR)
"""Releases that can be imitated."""


@dataclass(frozen=True, slots=True)
class Features:
    """Feature gates with the defaults of 1.37, the release, and whether its defects are left out: all of them
    (`ideal`), or those in `mended`, by the names that `Quirks` gives them.
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
    """Constraints compare list-valued attributes. The scheduler of 1.36 never asks for it; from 1.37 the gate
    DRAListTypeAttributes does.
    """
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
    ideal: bool = False
    mended: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not is_supported(self.release) or minor_of(self.release) < _OLDEST_MINOR:
            raise ValueError(f"Kubernetes {self.release!r} cannot be imitated (use {', '.join(RELEASES)})")

    @staticmethod
    def from_gates(gates: Mapping[str, bool], *, release: str = DEFAULT_RELEASE, ideal: bool = False) -> "Features":
        """A release with some gates set, by their Kubernetes names. ValueError for other names."""
        unknown = sorted(gates.keys() - _GATES.keys())
        if unknown:
            raise ValueError(f"unknown feature gate {unknown[0]!r} (known: {', '.join(_GATES)})")
        known = Features(release=release, ideal=ideal)
        # Off by default up to 1.36, as the API of the rules is: where there are rules, both were switched on.
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
        """Whether errors of expressions name the device, and give advice: so from 1.37."""
        return not has_rule(self.release, "errors_without_device")

    @property
    def leaves_out_groups(self) -> bool:
        """Whether slices that have a device with compatibility groups are ignored: 1.37 knows the field."""
        return not self.compatibility_groups and self.is_since("1.37")

    @property
    def counters_beside_devices(self) -> bool:
        """Whether a slice holds counter sets beside the devices that draw on them: so up to 1.34."""
        return has_rule(self.release, "counters_beside_devices")

    @property
    def binding(self) -> bool:
        """Whether devices with binding conditions are offered: that takes two gates."""
        return self.binding_conditions and self.claim_device_status

    @property
    def variant(self) -> Variant:
        """Which of Kubernetes' allocators answers."""
        if self.list_constraints or self.compatibility_groups or self.derived_attributes:
            return Variant.EXPERIMENTAL
        if self.consumable_capacity or self.binding:
            return Variant.INCUBATING
        return Variant.STABLE

    @property
    def quirks(self) -> Quirks:
        """The defects to reproduce."""
        quirks = Quirks() if self.ideal else _quirks_of(self.release)
        return replace(quirks, **dict.fromkeys(self.mended, False))
