# SPDX-License-Identifier: Apache-2.0
"""Counters of partitionable devices in a slice, and what devices consume of them.

Kubernetes 1.35 moved counter sets into slices of their own. Before, a slice held its devices and
the sets that they consume, the references were checked, and the limits were sums over all sets.
"""

from typing import Final

from dra_driver.resource import limits

from ... import field_errors as errors
from ...kinds import Context
from ...objects import Object
from . import rules
from .rules import Problems

_SEPARATE_SINCE: Final = 35
# Before that release:
_SHARED: Final = 32
_CONSUMED_BY_DEVICE: Final = 32
_CONSUMED_IN_SLICE: Final = 1024


def separate(context: Context) -> bool:
    """Whether the release has counter sets in slices of their own."""
    return context.release.minor >= _SEPARATE_SINCE


def slice_problems(spec: Object, context: Context) -> Problems:
    """Of counters and devices in one slice."""
    if separate(context):
        if "sharedCounters" in spec and "devices" in spec:
            yield errors.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
        return
    consumed = sum(_consumed(device) for device in spec.get("devices", ()))
    if consumed > _CONSUMED_IN_SLICE:
        text = f"the total number of counters in devices must not exceed {_CONSUMED_IN_SLICE}"
        yield errors.invalid("spec.devices", consumed, text)
    shared = sum(len(item.get("counters", ())) for item in spec.get("sharedCounters", ()))
    if shared > _SHARED:
        text = f"the total number of shared counters must not exceed {_SHARED}"
        yield errors.invalid("spec.sharedCounters", shared, text)


def shared_problems(spec: Object, context: Context) -> Problems:
    """Of the counter sets themselves."""
    apart = separate(context)

    def check(counter_set: Object, path: str) -> Problems:
        yield from rules.required_label_problems(counter_set.get("name", ""), f"{path}.name")
        yield from _counters_problems(counter_set, path, limited=apart)

    most = limits.COUNTER_SETS_PER_SLICE if apart else rules.UNLIMITED
    yield from rules.set_problems(
        spec.get("sharedCounters", ()), most, check, lambda item: item.get("name", ""), "spec.sharedCounters"
    )


def consumption_problems(device: Object, spec: Object, path: str, context: Context) -> Problems:
    """Of what a device consumes."""
    consumptions = device.get("consumesCounters", ())
    apart = separate(context)

    def check(consumption: Object, here: str) -> Problems:
        yield from rules.required_label_problems(consumption.get("counterSet", ""), f"{here}.counterSet")
        yield from _counters_problems(consumption, here, limited=apart)

    most = limits.COUNTER_SETS_PER_DEVICE if apart else rules.UNLIMITED
    yield from rules.set_problems(
        consumptions, most, check, lambda item: item.get("counterSet", ""), f"{path}.consumesCounters"
    )
    if apart:
        return
    consumed = _consumed(device)
    if consumed > _CONSUMED_BY_DEVICE:
        yield errors.invalid(path, consumed, f"the total number of counters must not exceed {_CONSUMED_BY_DEVICE}")
    sets = {item.get("name", ""): item.get("counters", {}) for item in spec.get("sharedCounters", ())}
    for index, consumption in enumerate(consumptions):
        here = f"{path}.consumesCounters[{index}]"
        name = consumption.get("counterSet", "")
        if name not in sets:
            text = "must reference a counterSet defined in the ResourceSlice sharedCounters"
            yield errors.invalid(f"{here}.counterSet", name, text)
            continue
        for counter in consumption.get("counters", {}):
            if counter not in sets[name]:
                text = "must reference a counter defined in the ResourceSlice sharedCounters"
                yield errors.invalid(f"{here}.counters", counter, text)


def _consumed(device: Object) -> int:
    return sum(len(item.get("counters", ())) for item in device.get("consumesCounters", ()))


def _counters_problems(holder: Object, path: str, *, limited: bool) -> Problems:
    counters, here = holder.get("counters"), f"{path}.counters"
    if not counters:
        yield errors.required(here)
        return
    if limited and len(counters) > limits.COUNTERS_PER_SET:
        yield errors.too_many(here, len(counters), limits.COUNTERS_PER_SET)
        return
    for name in counters:
        yield from rules.label_problems(name, here)
