# SPDX-License-Identifier: Apache-2.0
"""How cluster-autoscaler computes the utilization of a node's devices, restated.

The rules are those of pkg/simulator/dynamicresources/utils/utilization.go in kubernetes-sigs/cluster-autoscaler (commit
33c3f97), where its core is since 1.36. `--scale-down-utilization-threshold` is compared with the result.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dra_driver.kube.resource import Quantity

JSON = Mapping[str, Any]


def utilization(slices: Sequence[JSON], allocated: Collection[str]) -> float:
    """The utilization of one pool, between 0 and 1. `slices` are its ResourceSlices in the format of the API (v1), and
    `allocated` the names of the devices that claims hold without `adminAccess`.
    """
    devices = [device for one in slices for device in one["spec"].get("devices", ())]
    held = [device for device in devices if device["name"] in allocated]
    sets = [one for each in slices for one in each["spec"].get("sharedCounters", ())]
    if not sets:
        return len(held) / len(devices) if devices else 0.0
    used = {consumed["counterSet"] for device in devices for consumed in device.get("consumesCounters", ())}
    if not used:
        return 0.0
    return sum(_highest(one, held) for one in sets) / len(used)


def _highest(counter_set: JSON, held: Sequence[JSON]) -> float:
    """The share of the counter of which the largest share is consumed."""
    totals = {name: _amount(one) for name, one in counter_set["counters"].items()}
    consumed = [
        consumption["counters"]
        for device in held
        for consumption in device.get("consumesCounters", ())
        if consumption["counterSet"] == counter_set["name"]
    ]
    shares = [
        sum(_amount(counters[name]) for counters in consumed if name in counters) / total
        for name, total in totals.items()
        if total
    ]
    return max(shares, default=0.0)


def _amount(counter: JSON) -> float:
    return Quantity.parse(counter["value"]).nanos
