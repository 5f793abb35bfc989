# SPDX-License-Identifier: Apache-2.0
"""What an API server keeps of a ResourceSlice: it drops the fields whose feature gate is off, without an error."""

from dataclasses import dataclass
from typing import Final

from .limits import TAINTS_PER_DEVICE

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
