# SPDX-License-Identifier: Apache-2.0
"""One way to serve a request in the search, and capacity requests that grow during a search.

The search identifies devices by their index in the NodeView.

`Growing` reproduces a defect of Kubernetes (`Defects.decimal_requests_grow`). Go's Quantity holds an amount such as
`1Pi` as a pointer to a decimal. A request policy that does not change the request, such as a range with only a minimum,
passes this pointer on. When Go compares it with the device's capacity, it adds the shares that were picked before to
the request itself. Every share that was picked with the same pointer changes too. See calculateConsumedCapacity and
CmpRequestOverCapacity in the structured allocator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...kube.resource import ALL, DeviceCapacity, DeviceClass, DeviceRequirements, Quantity, ResourceClaim
from ..cel.library.quantity import is_decimal
from .capacity import CapacityRefusal, Share, amounts_for, consumed, shortage, takes_as_is
from .constraints import Constraint, Fact
from .observer import DeviceRefusal, Slot
from .outcome import AllocationError


class Growing:
    """The amount of each capacity that one request asks for, during one search."""

    def __init__(self, requested: Mapping[str, Quantity]) -> None:
        self.capacities: dict[int, Mapping[str, DeviceCapacity]] = {}
        """The capacities of each candidate."""
        self._requested = dict(requested)
        self._pointers: dict[str, list[dict[str, Quantity]]] = {
            name: [self._requested] for name, amount in requested.items() if is_decimal(amount)
        }
        """For each decimal, what changes with it: the request, and the shares that were picked with its pointer."""

    @staticmethod
    def concerns(requested: Mapping[str, Quantity]) -> bool:
        """Whether one of the amounts can grow."""
        return any(map(is_decimal, requested.values()))

    def compare(self, device: int, recorded: Mapping[str, int], picked: Mapping[str, int]) -> CapacityRefusal | None:
        """The capacity that the device lacks besides the use of claims and picked shares. The request may grow."""
        capacities = self.capacities[device]
        amounts = amounts_for(capacities, self._requested)
        if isinstance(amounts, CapacityRefusal):
            return amounts
        lacking = shortage(capacities, amounts, recorded, picked)
        for name in self._shared_pointers(capacities):
            if name in picked and name not in recorded:
                grown = Quantity(amounts[name].nanos + picked[name], amounts[name].format)
                for holder in self._pointers[name]:
                    holder[name] = grown
        return lacking

    def share(self, device: int) -> Share:
        """The share that is picked of the device. Its amounts change when the request grows."""
        capacities = self.capacities[device]
        amounts = consumed(capacities, self._requested)
        for name in self._shared_pointers(capacities):
            self._pointers[name].append(amounts)
        return Share(amounts, capacities)

    def undo(self, share: Share) -> None:
        """Undoes the share that was picked last."""
        for holders in self._pointers.values():
            if holders[-1] is share.amounts:
                holders.pop()

    def _shared_pointers(self, capacities: Mapping[str, DeviceCapacity]) -> list[str]:
        """The decimals that the policies of the device take as they are. Without a policy they are copied."""
        return [name for name in self._pointers if takes_as_is(capacities[name], self._requested[name])]


@dataclass(slots=True)
class BoundConstraint:
    """Constraint `index` of the claim, and its facts about devices (None: the device has no such attribute)."""

    index: int
    constraint: Constraint
    facts: Mapping[int, Fact | None]
    errors: Mapping[int, AllocationError] = field(default_factory=dict)
    """Devices whose derived attribute cannot be computed. They end the search when the constraint is checked."""


@dataclass(slots=True)
class Option:
    """A request, or one of its alternatives."""

    slot: Slot
    claim: ResourceClaim
    request: str
    """The request's name, without the alternative."""
    requirements: DeviceRequirements
    device_class: DeviceClass
    count: int = 0
    devices: list[int] = field(default_factory=list)
    """ExactCount: the candidates in the order of the search. All: every device that is needed."""
    errors: dict[int, AllocationError] = field(default_factory=dict)
    """Candidates that end the search with an error when they are tried."""
    unavailable: dict[int, DeviceRefusal] = field(default_factory=dict)
    """Devices of an All request that are not available."""
    tainted: dict[int, DeviceRefusal] = field(default_factory=dict)
    """Devices that are refused because of a taint, after their counters were checked."""
    shares: dict[int, Share] = field(default_factory=dict)
    """The share that is picked of each shared device."""
    growing: Growing | None = None
    """The requested capacity, if it changes during the search. Then only the keys of `shares` count."""
    constraints: list[BoundConstraint] = field(default_factory=list)
    """The constraints that cover the option, in the order of the claim."""

    @property
    def wants_all(self) -> bool:
        """Whether the request asks for all matching devices."""
        return self.requirements.allocation_mode == ALL

    @property
    def is_alternative(self) -> bool:
        """Whether this is one of several alternatives of a request (`firstAvailable`)."""
        return self.slot.request != self.request

    @property
    def leaves_state_unchanged(self) -> bool:
        """Whether refused devices leave the state of the search unchanged, so that they can be skipped."""
        return not (self.errors or self.tainted or self.shares or self.constraints)
