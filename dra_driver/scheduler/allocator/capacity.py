# SPDX-License-Identifier: Apache-2.0
"""How much of a device's capacity a request takes, and whether that much is left.

Follows the consumable capacity of Kubernetes' structured allocator. It asks this of every device:
one that is not shared has all its capacity left, so that only the policies can speak against it.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ...kube.resource import DeviceCapacity, Format, Quantity, RequestPolicy, RequestRange
from ..cel.library.quantity import is_decimal

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
    """The amounts that a request for `requested` consumes of a device, by the request policies of its capacities."""
    for name in requested:
        if name not in capacities:
            return CapacityRefusal(name, "the device has no such capacity")
    amounts: dict[str, Quantity] = {}
    for name, capacity in capacities.items():
        amount, origin = _consumed(capacity, requested.get(name))
        policy = capacity.request_policy
        if policy is not None and not _is_allowed(amount, origin, policy):
            return CapacityRefusal(name, f"{amount} is not allowed by the device's request policy")
        amounts[name] = amount
    return amounts


def consumed(capacities: Mapping[str, DeviceCapacity], requested: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """`amounts_for` without asking whether the policies allow the amounts."""
    return {name: _consumed(capacity, requested.get(name))[0] for name, capacity in capacities.items()}


def takes_as_is(capacity: DeviceCapacity, requested: Quantity) -> bool:
    """Whether the capacity has a policy and this changes nothing about the request."""
    return capacity.request_policy is not None and _consumed(capacity, requested)[1] is _Origin.REQUEST


def shortage(
    capacities: Mapping[str, DeviceCapacity], amounts: Amounts, *taken: Mapping[str, int]
) -> CapacityRefusal | None:
    """The first capacity that `amounts` would exceed when `taken` (billionths) is in use. None if all amounts fit."""
    for name, amount in amounts.items():
        gone = sum(sums.get(name, 0) for sums in taken)
        value = capacities[name].value
        if gone + amount.nanos > value.nanos:
            return CapacityRefusal(name, f"{amount} is wanted, {Quantity(value.nanos - gone, value.format)} is left")
    return None


class _Origin(enum.Enum):
    """Where an amount comes from."""

    REQUEST = "the request"
    DEVICE = "an amount that the device publishes"
    ROUNDED = "the request, rounded"


def _consumed(capacity: DeviceCapacity, requested: Quantity | None) -> tuple[Quantity, _Origin]:
    """The amount that a request for `requested` takes."""
    policy = capacity.request_policy
    if requested is None:
        return capacity.value if policy is None or policy.default is None else policy.default, _Origin.DEVICE
    if policy is not None and policy.valid_range is not None:
        return _rounded_to_range(requested, policy.valid_range)
    for value in policy.valid_values if policy is not None else ():
        if requested <= value:
            return value, _Origin.DEVICE
    return requested, _Origin.REQUEST


def _rounded_to_range(requested: Quantity, valid: RequestRange) -> tuple[Quantity, _Origin]:
    if requested < valid.minimum:
        return valid.minimum, _Origin.DEVICE
    if valid.step is None or valid.step.value <= 0:
        return requested, _Origin.REQUEST
    minimum, step = valid.minimum.value, valid.step.value
    steps = -((minimum - requested.value) // step)
    return Quantity.of(minimum + steps * step, Format.BINARY_SI), _Origin.ROUNDED


def _is_allowed(amount: Quantity, origin: _Origin, policy: RequestPolicy) -> bool:
    """Kubernetes looks for the default by comparing Go structs, which are never equal when they hold decimals."""
    default = policy.default
    same = default is not None and amount == default and amount.format is default.format
    if same and origin is not _Origin.ROUNDED and not is_decimal(amount):
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
