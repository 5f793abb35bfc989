# SPDX-License-Identifier: Apache-2.0
"""Capacity requests that grow while a search compares them: a defect of Kubernetes (`Quirks.decimal_requests_grow`).

Go's Quantity holds an amount such as `1Pi` as a pointer to a decimal. A request policy that takes the request
as it is, like a range with a minimum only, hands this pointer on. Comparing it with the device's capacity then
adds the shares that were picked before to the request itself. Every share that was picked with the same
pointer changes, too. See calculateConsumedCapacity and CmpRequestOverCapacity in the structured allocator.
"""

from collections.abc import Mapping

from ..cel.library.quantity import is_decimal
from ..resource import DeviceCapacity, Quantity
from .capacity import CapacityRefusal, Share, amounts_for, consumed, shortage, takes_as_is


class Growing:
    """What one request asks of each capacity, as it stands during one search."""

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
        """What the device lacks, given what claims and picked shares consume of it. The request may grow by it."""
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
        """The share that was picked last is given up."""
        for holders in self._pointers.values():
            if holders[-1] is share.amounts:
                holders.pop()

    def _shared_pointers(self, capacities: Mapping[str, DeviceCapacity]) -> list[str]:
        """The decimals that the policies of the device take as they are. Without a policy they are copied."""
        return [name for name in self._pointers if takes_as_is(capacities[name], self._requested[name])]
