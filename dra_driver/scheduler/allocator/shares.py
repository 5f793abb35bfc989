# SPDX-License-Identifier: Apache-2.0
"""The shares of devices that a search has picked, and whether there is room for another one.

Follows the consumed capacity that Kubernetes' structured allocator keeps during an attempt.
"""

from collections.abc import Mapping

from ...kube.resource import Device
from .capacity import CapacityRefusal, Share, amounts_for, shortage
from .features import Defects
from .option import Option

_NOTHING: Mapping[str, int] = {}


class ConsumedShares:
    """The capacity that picked shares consume. Devices are identified by their index in the NodeView."""

    def __init__(self, recorded: Mapping[int, Mapping[str, int]], defects: Defects) -> None:
        """`recorded` is the capacity that allocated claims consume of each device, in billionths."""
        self._recorded = recorded
        self._defects = defects
        self._picked: dict[int, dict[str, int]] = {}

    def __contains__(self, device: int) -> bool:
        """Whether a share of the device is picked, so that its counters are taken."""
        return device in self._picked

    def lacking(self, option: Option, device: int) -> CapacityRefusal | None:
        """The capacity that the device lacks for the option, or None if there is room."""
        share = option.shares.get(device)
        if share is None and option.growing is None:
            return None
        recorded, picked = self._recorded.get(device, _NOTHING), self._picked.get(device, _NOTHING)
        if option.growing is not None:
            return option.growing.compare(device, recorded, picked)
        assert share is not None
        return shortage(share.capacities, share.amounts, recorded, picked)

    def another_has_room(self, option: Option, device: Device, index: int) -> bool:
        """Whether another device than the tried one could serve the option (Kubernetes 1.34)."""
        amounts = amounts_for(device.capacity, option.requirements.capacity_requests)
        if isinstance(amounts, CapacityRefusal):
            return False
        recorded, picked = self._recorded.get(index, _NOTHING), self._picked.get(index, _NOTHING)
        return shortage(device.capacity, amounts, recorded, picked) is None

    def add(self, option: Option, device: int) -> Share:
        """Picks a share of the device for the option."""
        share = option.shares[device] if option.growing is None else option.growing.share(device)
        sums = self._picked.setdefault(device, {})
        for name, amount in share.amounts.items():
            sums[name] = sums.get(name, 0) + amount.nanos
        return share

    def remove(self, option: Option, device: int, share: Share, *, first: bool) -> None:
        """Undoes the pick of a share. `first`: the share reserved the counters of the device; it is removed last.

        Kubernetes forgets that a device is shared when the consumed capacity is zero, even if shares without capacity
        are left. If no capacity was recorded, Kubernetes never forgets it.
        """
        if option.growing is not None:
            option.growing.undo(share)
        sums = self._picked.get(device)
        if sums is None:
            return
        for name, amount in share.amounts.items():
            sums[name] -= amount.nanos
        if (share.amounts and not any(sums.values())) if self._defects.undone_shares_keep_counters else first:
            del self._picked[device]
