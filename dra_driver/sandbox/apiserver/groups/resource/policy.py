# SPDX-License-Identifier: Apache-2.0
"""The request policy of a capacity that several claims can share."""

from typing import Final

from dra_driver.resource.quantity import Quantity

from ... import field_errors as errors
from ...objects import Object
from . import rules
from .rules import Problems

_VALID_VALUES: Final = 10


def policy_problems(capacity: Object, several: bool, path: str) -> Problems:
    """Of the policy in `capacity`; `several` says that the device allows multiple allocations."""
    if not several:
        yield errors.forbidden(path, "allowMultipleAllocations must be true")
        return
    policy, most = capacity["requestPolicy"], rules.quantity(capacity.get("value", "0"))
    values, span = policy.get("validValues") or [], policy.get("validRange")
    if values and span is not None:
        text = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        yield errors.forbidden(path, text)
        return
    for field, given in (("validValues", values), ("validRange", span)):
        if given and policy.get("default") is None:
            yield errors.required(f"{path}.default", f"required when {field} is defined")
            return
    if values:
        amounts = [rules.quantity(value) for value in values]
        yield from _values_problems(rules.quantity(policy["default"]), amounts, most, f"{path}.validValues")
    elif span is not None:
        yield from _range_problems(rules.quantity(policy["default"]), span, most, f"{path}.validRange")


def _values_problems(default: Quantity, values: list[Quantity], most: Quantity, path: str) -> Problems:
    for index in range(1, len(values)):
        if values[index - 1] > values[index]:
            yield errors.invalid(f"{path}[{index}]", str(values[index]), "values must be sorted in ascending order")

    def check(value: Quantity, here: str) -> Problems:
        if value > most:
            yield errors.invalid(here, str(value), f"option is larger than capacity value: {most}")

    yield from rules.set_problems(values, _VALID_VALUES, check, lambda value: str(value.value), path)
    if default not in values:
        yield errors.invalid(path, str(default), "default value is not valid according to the requestPolicy")


def _range_problems(default: Quantity, span: Object, most: Quantity, path: str) -> Problems:
    if span.get("min") is None:
        yield errors.required(f"{path}.min", "required when validRange is defined")
        return
    low = rules.quantity(span["min"])
    high = rules.quantity(span["max"]) if span.get("max") is not None else None
    if low > most:
        yield errors.invalid(f"{path}.min", str(low), f"min is larger than capacity value: {most}")
    if default < low:
        yield errors.invalid(f"{path}.min", str(default), f"default is less than min: {low}")
    if high is not None:
        if low > high:
            yield errors.invalid(f"{path}.max", str(low), f"min is larger than max: {high}")
        if high > most:
            yield errors.invalid(f"{path}.max", str(high), f"max is larger than capacity value: {most}")
        if default > high:
            yield errors.invalid(f"{path}.max", str(default), f"default is more than max: {high}")
    if span.get("step") is not None:
        step = rules.quantity(span["step"])
        if low + step > most:
            text = f"one step {low + step} is larger than capacity value: {most}"
            yield errors.invalid(f"{path}.step", str(step), text)
        for value in (default, high):
            if value is not None and step.value and (value.value - low.value) % step.value:
                text = f"value is not a multiple of a given step ({step}) from ({low})"
                yield errors.invalid(f"{path}.step", str(value), text)
