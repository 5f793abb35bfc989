# SPDX-License-Identifier: Apache-2.0
"""How much of a device's capacity a request takes, and whether that much is left.

Follows the consumable capacity of Kubernetes' structured allocator. It asks this of every device:
one that is not shared has all its capacity left, so that only the policies can speak against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..resource import DeviceCapacity, Format, Quantity, RequestPolicy, RequestRange

Amounts = Mapping[str, Quantity]
"""What a pick consumes of each capacity of its device."""


@dataclass(frozen=True, slots=True)
class CapacityRefusal:
    """Why a device cannot serve a capacity request: `capacity` and what is wrong with it."""

    capacity: str
    reason: str


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a device that allows several allocations: what it consumes of which capacities."""

    amounts: Amounts
    capacities: Mapping[str, DeviceCapacity]


def amounts_for(
    capacities: Mapping[str, DeviceCapacity], requested: Mapping[str, Quantity]
) -> Amounts | CapacityRefusal:
    """What a request for `requested` takes of a device with these capacities, by the policies of the device."""
    for name in requested:
        if name not in capacities:
            return CapacityRefusal(name, "the device has no such capacity")
    amounts: dict[str, Quantity] = {}
    for name, capacity in capacities.items():
        policy = capacity.request_policy
        amount = requested.get(name)
        if amount is None:
            amount = capacity.value if policy is None or policy.default is None else policy.default
            as_written = True
        else:
            amount, as_written = _rounded(amount, policy)
        if policy is not None and not _is_allowed(amount, as_written, policy):
            return CapacityRefusal(name, f"{amount} is not allowed by the device's request policy")
        amounts[name] = amount
    return amounts


def shortage(
    capacities: Mapping[str, DeviceCapacity], amounts: Amounts, *taken: Mapping[str, int]
) -> CapacityRefusal | None:
    """The first capacity that `amounts` would overdraw when `taken` (billionths) is gone already, None if all fit."""
    for name, amount in amounts.items():
        gone = sum(sums.get(name, 0) for sums in taken)
        value = capacities[name].value
        if gone + amount.nanos > value.nanos:
            return CapacityRefusal(name, f"{amount} is wanted, {Quantity(value.nanos - gone, value.format)} is left")
    return None


def _rounded(requested: Quantity, policy: RequestPolicy | None) -> tuple[Quantity, bool]:
    """The amount that serves the request, and whether that is an amount as somebody wrote it."""
    if policy is None:
        return requested, True
    if policy.valid_range is not None:
        return _rounded_to_range(requested, policy.valid_range)
    fitting = next((value for value in policy.valid_values if requested <= value), requested)
    return fitting, True


def _rounded_to_range(requested: Quantity, valid: RequestRange) -> tuple[Quantity, bool]:
    if requested < valid.minimum:
        return valid.minimum, True
    if valid.step is None or valid.step.value <= 0:
        return requested, True
    minimum, step = valid.minimum.value, valid.step.value
    steps = -((minimum - requested.value) // step)
    return Quantity.of(minimum + steps * step, Format.BINARY_SI), False


def _is_allowed(amount: Quantity, as_written: bool, policy: RequestPolicy) -> bool:
    default = policy.default
    if as_written and default is not None and amount == default and amount.format is default.format:
        return True
    if policy.valid_range is not None:
        return _is_in_range(amount, policy.valid_range)
    return not policy.valid_values or amount in policy.valid_values


def _is_in_range(amount: Quantity, valid: RequestRange) -> bool:
    """The minimum is not looked at: an amount below it was raised, unless nothing was requested."""
    if valid.maximum is not None and amount > valid.maximum:
        return False
    if valid.step is None:
        return True
    return valid.step.value > 0 and (amount.value - valid.minimum.value) % valid.step.value == 0
