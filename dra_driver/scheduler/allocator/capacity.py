# SPDX-License-Identifier: Apache-2.0
"""The capacity that a request takes of a device, and whether this capacity is left.

Follows the consumable capacity of Kubernetes' structured allocator, which checks every device. A device that is not
shared has all its capacity left, so only its request policies can refuse the request.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...errors import UnrepresentableError
from ...kube.resource import Device, DeviceCapacity, Format, Quantity, RequestPolicy, RequestRange
from ...kube.resource.quantity import NANO
from ..cel.library.quantity import is_decimal

_MILLI: Final = NANO // 1000
_MOST: Final = (1 << 63) - 1

Amounts = Mapping[str, Quantity]
"""The amount of each capacity that a pick consumes."""


@dataclass(frozen=True, slots=True)
class CapacityRefusal:
    """Why a device cannot serve a capacity request: the name of the capacity and the reason."""

    capacity: str
    reason: str


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a device that allows several allocations: the amounts that it consumes, and the capacities."""

    amounts: Amounts
    capacities: Mapping[str, DeviceCapacity]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How requests are rounded to the steps of a range."""

    is_checked: bool = False
    """Results outside of an int64 are errors, and results keep the notation of the step: so from 1.37."""
    fractions: bool = False
    """Ranges that are exact in thousandths are computed in thousandths (DRAFractionalCapacityRange), if their bounds in
    thousandths are int64."""

    def unit(self, valid: RequestRange) -> int:
        """The unit in which a range with a step is computed, in billionths: a whole, or a thousandth."""
        bounds = [bound.nanos for bound in (valid.minimum, valid.maximum, valid.step) if bound is not None]
        in_thousandths = self.fractions and valid.step is not None and valid.step.nanos >= _MILLI
        return _MILLI if in_thousandths and all(map(_is_exact_in_thousandths, bounds)) else NANO


def _is_exact_in_thousandths(nanos: int) -> bool:
    return nanos % _MILLI == 0 and nanos // _MILLI <= _MOST


WHOLES: Final = Arithmetic()
"""The arithmetic up to 1.36."""


def amounts_for(
    capacities: Mapping[str, DeviceCapacity], requested: Mapping[str, Quantity], arithmetic: Arithmetic = WHOLES
) -> Amounts | CapacityRefusal:
    """The amounts that a request for `requested` consumes of a device, by the request policies of its capacities.

    Raises UnrepresentableError if the arithmetic is checked.
    """
    for name in requested:
        if name not in capacities:
            return CapacityRefusal(name, "the device has no such capacity")
    amounts = {
        name: _consumed(name, capacity, requested.get(name), arithmetic) for name, capacity in capacities.items()
    }
    for name, (amount, origin) in amounts.items():
        policy = capacities[name].request_policy
        if policy is not None and not _is_allowed(amount, origin, policy, arithmetic):
            return CapacityRefusal(name, f"{amount} is not allowed by the device's request policy")
    return {name: amount for name, (amount, _) in amounts.items()}


def has_all_left(device: Device) -> bool:
    """Whether a request without capacities takes the whole device, whatever its capacities are: it has no shares, and
    no policy that could refuse the request.
    """
    return not device.allow_multiple_allocations and all(
        capacity.request_policy is None for capacity in device.capacity.values()
    )


def as_published(
    requested: Mapping[str, Quantity], capacities: Mapping[str, DeviceCapacity], driver: str
) -> Mapping[str, Quantity]:
    """The requests by the names that a device of the driver publishes, with or without the driver's domain.

    If the device publishes both names, the one with the domain counts. Names that it does not publish are kept.
    """
    return {_published_name(name, capacities, driver): amount for name, amount in requested.items()}


def _published_name(name: str, capacities: Mapping[str, DeviceCapacity], driver: str) -> str:
    domain, slash, identifier = name.rpartition("/")
    if slash and domain != driver:
        return name
    qualified = f"{driver}/{identifier}"
    return next((known for known in (qualified, identifier) if known in capacities), name)


def consumed(capacities: Mapping[str, DeviceCapacity], requested: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """`amounts_for` without checking whether the policies allow the amounts."""
    return {name: _consumed(name, capacity, requested.get(name), WHOLES)[0] for name, capacity in capacities.items()}


def takes_as_is(capacity: DeviceCapacity, requested: Quantity) -> bool:
    """Whether the capacity has a policy and this changes nothing about the request."""
    return capacity.request_policy is not None and _consumed("", capacity, requested, WHOLES)[1] is _Origin.REQUEST


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


def _consumed(
    name: str, capacity: DeviceCapacity, requested: Quantity | None, arithmetic: Arithmetic
) -> tuple[Quantity, _Origin]:
    """The amount that a request for `requested` takes."""
    policy = capacity.request_policy
    if requested is None:
        return capacity.value if policy is None or policy.default is None else policy.default, _Origin.DEVICE
    if policy is not None and policy.valid_range is not None:
        return _rounded_to_range(name, requested, policy.valid_range, arithmetic)
    for value in policy.valid_values if policy is not None else ():
        if requested <= value:
            return value, _Origin.DEVICE
    return requested, _Origin.REQUEST


def _rounded_to_range(
    name: str, requested: Quantity, valid: RequestRange, arithmetic: Arithmetic
) -> tuple[Quantity, _Origin]:
    if requested < valid.minimum:
        return valid.minimum, _Origin.DEVICE
    if valid.step is None or valid.step.value <= 0:
        return requested, _Origin.REQUEST
    unit = arithmetic.unit(valid)
    minimum, step, wanted = (_units(amount, unit) for amount in (valid.minimum, valid.step, requested))
    rounded = minimum - (minimum - wanted) // step * step
    if not arithmetic.is_checked:
        return Quantity(rounded * unit, Format.BINARY_SI), _Origin.ROUNDED
    if unit != NANO and (requested.nanos % unit or wanted > _MOST):
        raise UnrepresentableError(name, f"request {requested} is not a representable milli value")
    if wanted > _MOST:
        raise UnrepresentableError(name, f"request {requested} exceeds MaxInt64")
    if rounded > _MOST:
        passed = "MaxInt64" if unit == NANO else "the milli-value range"
        raise UnrepresentableError(name, f"rounding request {requested} up to the next step passes {passed}")
    return Quantity(rounded * unit, valid.step.format), _Origin.ROUNDED


def _units(amount: Quantity, unit: int) -> int:
    """The amount in units of `unit` billionths, rounded up."""
    return -(-amount.nanos // unit)


def _is_allowed(amount: Quantity, origin: _Origin, policy: RequestPolicy, arithmetic: Arithmetic) -> bool:
    """Kubernetes looks for the default by comparing Go structs, which are never equal when they hold decimals."""
    default = policy.default
    same = default is not None and amount == default and amount.format is default.format
    if same and not is_decimal(amount) and not (arithmetic.is_checked and origin is _Origin.ROUNDED):
        return True
    if policy.valid_range is not None:
        return _is_in_range(amount, policy.valid_range, arithmetic.unit(policy.valid_range))
    return not policy.valid_values or amount in policy.valid_values


def _is_in_range(amount: Quantity, valid: RequestRange, unit: int) -> bool:
    """The minimum is not checked: a smaller amount was raised to it, unless nothing was requested."""
    if valid.maximum is not None and amount > valid.maximum:
        return False
    if valid.step is None:
        return True
    return valid.step.value > 0 and (_units(amount, unit) - _units(valid.minimum, unit)) % _units(valid.step, unit) == 0
