# SPDX-License-Identifier: Apache-2.0
"""Counters: what the forms of one GPU draw from a common pot, so that those which exclude each other do.

The pot holds the most that any profile draws: memory slices one by one, and engines. The whole GPU and its vfio device
draw all of it. A board takes a set of MIG instances exactly if their sums stay within it (tests/gpu/test_counters.py).

What is taken by an instance that no published device stands for is taken out of the pot, and a device that does not
fit into what is left is withheld: so whatever the scheduler allocates can be made.
"""

from collections.abc import Iterable, Mapping

from ...resource import CounterConsumption, CounterSet, Format, Quantity
from ..inventory import Gpu, MigProfile
from ..nvml import GpuInstanceProfile, Placement
from .capacity import engines
from .names import gpu_name

Counters = Mapping[str, Quantity]

ONE_GPU: Counters = {"gpu": Quantity.of(1)}
"""The pot of a GPU that is never split: one of its forms at a time."""


def set_name(gpu: Gpu) -> str:
    """`gpu-<minor>-counter-set`."""
    return f"{gpu_name(gpu)}-counter-set"


def drawn(profile: GpuInstanceProfile, placement: Placement) -> dict[str, Quantity]:
    """What an instance draws. Counters of which it draws nothing are left out."""
    amounts = {name: amount for name, amount in _amounts(profile).items() if amount.nanos}
    return {**amounts, **{_slice_counter(index): Quantity.of(1) for index in _slices(placement)}}


def totals(profiles: Iterable[MigProfile]) -> dict[str, Quantity]:
    """The most that any profile draws of each counter. Counters that nobody draws on are left out."""
    found: dict[str, Quantity] = {}
    for profile in profiles:
        for placement in profile.placements:
            for name, amount in drawn(profile.info, placement).items():
                found[name] = max(amount, found.get(name, amount))
    return found


def less(pot: Counters, taken: Iterable[Counters]) -> dict[str, Quantity]:
    """What is left of the pot; a counter that is used up is not in it any more."""
    left = dict(pot)
    for counters in taken:
        for name, amount in counters.items():
            if name in left:
                left[name] = Quantity(left[name].nanos - amount.nanos, left[name].format)
    return {name: amount for name, amount in left.items() if amount.nanos > 0}


def fits(wanted: Counters, pot: Counters) -> bool:
    """Whether the pot holds that much."""
    return all(name in pot and amount <= pot[name] for name, amount in wanted.items())


def consumption(counter_set: CounterSet, counters: Counters) -> tuple[CounterConsumption, ...]:
    """As a device states it."""
    return (CounterConsumption(counter_set.name, counters),)


def _amounts(info: GpuInstanceProfile) -> dict[str, Quantity]:
    """What an instance of the profile draws, memory slices aside."""
    counts = {_counter_name(name): Quantity.of(count) for name, count in engines(info).items()}
    return {"memory": Quantity.of(info.memory_mib << 20, Format.BINARY_SI), **counts}


def _counter_name(capacity: str) -> str:
    """`copy-engines` for `copyEngines`."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in capacity)


def _slices(placement: Placement) -> range:
    return range(placement.start, placement.start + placement.size)


def _slice_counter(index: int) -> str:
    return f"memory-slice-{index}"
