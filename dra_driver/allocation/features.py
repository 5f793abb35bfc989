# SPDX-License-Identifier: Apache-2.0
"""Which Kubernetes is imitated: feature gates, release, and the release's defects.

The gates are those that the DynamicResources plugin of kube-scheduler 1.36 hands to its allocator
(pkg/scheduler/framework/plugins/feature). A defect that changes answers is a field of `Quirks`, so
that another release is another row of a table and not another allocator.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DEFAULT_RELEASE: Final = "1.36"


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
    distinct_forgets: bool = False
    """distinctAttribute remembers one value for each request."""
    common_values_stay_narrow: bool = False
    """Undoing a pick does not widen the values that matchAttribute found common to lists."""
    counter_slices_everywhere: bool = False
    """Slices with shared counters are looked at for every node, whatever node they name."""
    config_repeats: bool = False
    """A configuration entry of the claim appears once for each of its requests."""


_QUIRKS: Final[Mapping[str, Quirks]] = {
    "1.36": Quirks(
        refused_keep_counters=True,
        undone_shares_keep_counters=True,
        refused_shares_stay_in_constraints=True,
        counters_by_pool_name=True,
        shares_without_capacity_unnoticed=True,
        distinct_forgets=True,
        common_values_stay_narrow=True,
        counter_slices_everywhere=True,
        config_repeats=True,
    ),
}
RELEASES: Final = tuple(_QUIRKS)
"""Releases that can be imitated."""

_GATES: Final[Mapping[str, bool]] = {
    "DRAAdminAccess": True,
    "DRAPrioritizedList": True,
    "DRAConsumableCapacity": True,
    "DRADeviceBindingConditions": True,
    "DRAResourceClaimDeviceStatus": True,
    "DRADeviceTaints": True,
    "DRAPartitionableDevices": True,
    "DRAListTypeAttributes": False,
}
"""Gates that matter here, with their defaults in 1.36."""


@dataclass(frozen=True, slots=True)
class Features:
    """Feature gates with their 1.36 defaults, the release, and whether its defects are left out (`ideal`)."""

    admin_access: bool = True
    prioritized_list: bool = True
    consumable_capacity: bool = True
    binding_conditions: bool = True
    claim_device_status: bool = True
    device_taints: bool = True
    partitionable_devices: bool = True
    list_attributes: bool = False
    """Expressions may read list-valued attributes."""
    list_constraints: bool = False
    """Constraints compare list-valued attributes. No gate: the 1.36 scheduler never asks for it."""
    release: str = DEFAULT_RELEASE
    ideal: bool = False

    def __post_init__(self) -> None:
        if self.release not in _QUIRKS:
            raise ValueError(f"Kubernetes {self.release!r} cannot be imitated (use {', '.join(RELEASES)})")

    @staticmethod
    def from_gates(gates: Mapping[str, bool], *, list_constraints: bool = False, ideal: bool = False) -> "Features":
        """Features with some gates set, by their Kubernetes names. ValueError for other names."""
        unknown = sorted(gates.keys() - _GATES.keys())
        if unknown:
            raise ValueError(f"unknown feature gate {unknown[0]!r} (known: {', '.join(_GATES)})")
        on = {**_GATES, **gates}
        return Features(
            admin_access=on["DRAAdminAccess"],
            prioritized_list=on["DRAPrioritizedList"],
            consumable_capacity=on["DRAConsumableCapacity"],
            binding_conditions=on["DRADeviceBindingConditions"],
            claim_device_status=on["DRAResourceClaimDeviceStatus"],
            device_taints=on["DRADeviceTaints"],
            partitionable_devices=on["DRAPartitionableDevices"],
            list_attributes=on["DRAListTypeAttributes"],
            list_constraints=list_constraints,
            ideal=ideal,
        )

    @property
    def binding(self) -> bool:
        """Whether devices with binding conditions are offered: that takes two gates."""
        return self.binding_conditions and self.claim_device_status

    @property
    def variant(self) -> Variant:
        """Which of Kubernetes' allocators answers."""
        if self.list_constraints:
            return Variant.EXPERIMENTAL
        if self.consumable_capacity or self.binding:
            return Variant.INCUBATING
        return Variant.STABLE

    @property
    def quirks(self) -> Quirks:
        """The defects to reproduce."""
        return Quirks() if self.ideal else _QUIRKS[self.release]
