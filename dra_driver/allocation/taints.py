# SPDX-License-Identifier: Apache-2.0
"""Which taints keep a device from a request. Follows k8s.io/dynamic-resource-allocation/resourceclaim."""

from collections.abc import Iterable

from ..resource import DeviceTaint, DeviceToleration, TaintEffect
from ..resource.tolerations import tolerates

_BLOCKING = frozenset({TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE})


def blocking_taint(taints: Iterable[DeviceTaint], tolerations: Iterable[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that is not tolerated and does block; effects that are unknown, and None, do not."""
    tolerations = tuple(tolerations)
    for taint in taints:
        if taint.effect in _BLOCKING and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
