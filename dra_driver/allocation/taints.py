# SPDX-License-Identifier: Apache-2.0
"""Which taints keep a device from a request. Follows k8s.io/dynamic-resource-allocation/resourceclaim."""

from collections.abc import Iterable

from ..resource import DeviceTaint, DeviceToleration, TaintEffect

_BLOCKING = frozenset({TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE})


def blocking_taint(taints: Iterable[DeviceTaint], tolerations: Iterable[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that is not tolerated and does block; effects that are unknown, and None, do not."""
    tolerations = tuple(tolerations)
    for taint in taints:
        if taint.effect in _BLOCKING and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


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
