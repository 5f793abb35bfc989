# SPDX-License-Identifier: Apache-2.0
"""What an API server keeps of a ResourceSlice: it drops the fields whose feature gate is off, without an error."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SliceFeatures:
    """One flag a feature gate. `counters_beside_devices` says that counter sets must stand in the slice of the devices
    that draw on them, as Kubernetes 1.33 and 1.34 want it; since 1.35 they must stand in slices of their own.
    """

    partitionable_devices: bool = True
    device_taints: bool = True
    consumable_capacity: bool = True
    list_attributes: bool = False
    counters_beside_devices: bool = False
