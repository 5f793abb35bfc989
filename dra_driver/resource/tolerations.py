# SPDX-License-Identifier: Apache-2.0
"""What a toleration covers. Follows k8s.io/dynamic-resource-allocation/resourceclaim."""

from .device import DeviceTaint, DeviceToleration


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether the toleration covers the taint. For how long does not matter to allocation."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return toleration.value == taint.value
        case _:
            return False
