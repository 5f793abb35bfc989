# SPDX-License-Identifier: Apache-2.0
"""Capacities of devices, how claims may share them, and counters.

Capacities: a claim consumes a capacity without a request policy as a whole. So on a shared device, every capacity has
a policy: a claim that requests no amount consumes none, except for memory, which depends on the mode, and for
`shares`. If shares are enforced, every claim consumes memory, because what it consumes becomes its limit.

Counters: devices of one GPU that exclude each other consume the same counters. The counter set has the most that any
profile consumes: each memory slice, and the engines. The whole GPU and its vfio device consume all of it. A board
accepts a set of MIG instances exactly if their sums stay within the counter set (tests/gpu/test_counters.py).
If MIG devices can be created, instances for which no device with counters is published are subtracted from the
counter set, and a device that does not fit into the rest is not published. So every device that the scheduler
allocates can be created. Otherwise the counter set is that of the whole GPU, and existing MIG devices consume their
part of it.

A pool has counters if some devices of a GPU exclude each other. Then every GPU of the pool has a counter set, because
cluster-autoscaler ignores devices without counters in such a pool. GPUs of one model have equal counter sets, except
those with instances that were subtracted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from ...kube.resource import (
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCapacity,
    Format,
    Quantity,
    RequestPolicy,
    RequestRange,
)
from ..inventory import Gpu, MigProfile
from ..nvml import GpuInstanceProfile, Placement
from ..policy import ShareMode

Capacities = dict[str, DeviceCapacity]

_MIB = 1 << 20
_NOTHING = RequestPolicy(default=Quantity.of(0))

Counters = Mapping[str, Quantity]

ONE_GPU: Counters = {"gpu": Quantity.of(1)}
"""The counters of a GPU of which neither MIG profiles nor the memory are known."""


def bytes_of(amount: int) -> DeviceCapacity:
    """A capacity of `amount` bytes."""
    return DeviceCapacity(Quantity.of(amount, Format.BINARY_SI))


def engines(info: GpuInstanceProfile) -> dict[str, int]:
    """The engines of an instance, by capacity name."""
    return {
        "multiprocessors": info.multiprocessors,
        "copyEngines": info.copy_engines,
        "decoders": info.decoders,
        "encoders": info.encoders,
        "jpegEngines": info.jpeg_engines,
        "ofaEngines": info.ofa_engines,
    }


@lru_cache(maxsize=64)  # there are few profiles, and many placements of each
def profile_capacity(info: GpuInstanceProfile) -> Capacities:
    """The capacities of an instance of the profile."""
    counts = {name: DeviceCapacity(Quantity.of(count)) for name, count in engines(info).items()}
    return {"memory": bytes_of(info.memory_mib * _MIB), **counts}


def largest_capacity(profiles: Iterable[MigProfile]) -> Capacities:
    """The maximum of each capacity over all profiles. A GPU that can be split publishes these as the whole GPU."""
    each = [profile_capacity(profile.info) for profile in profiles]
    return {
        name: max((capacities[name] for capacities in each), key=lambda capacity: capacity.value) for name in each[0]
    }


def slice_capacity(placement: Placement) -> Capacities:
    """`memorySlice<i>` for each memory slice of an existing MIG device."""
    return {f"memorySlice{index}": DeviceCapacity(Quantity.of(1)) for index in placement.slices}


def shared(device: Device, shares: ShareMode | int, enforced: bool = False) -> Device:
    """The device with the policies under which claims may share it. In MEMORY mode, and if shares are `enforced`, a
    device whose memory is unknown stays exclusive.
    """
    needs_memory = enforced or shares is ShareMode.MEMORY
    if shares is ShareMode.DISABLED or (needs_memory and "memory" not in device.capacity):
        return device
    capacity = {name: replace(value, request_policy=_NOTHING) for name, value in device.capacity.items()}
    if "memory" in capacity:
        capacity["memory"] = _shared_memory(capacity["memory"], shares, enforced)
    if isinstance(shares, int):
        capacity["shares"] = _counted(shares)
    return replace(device, capacity=capacity, allow_multiple_allocations=True)


def _shared_memory(memory: DeviceCapacity, shares: ShareMode | int, enforced: bool) -> DeviceCapacity:
    """A memory capacity that claims consume in whole MiB. The capacity is rounded down to whole MiB too."""
    mebibytes = memory.value.value // _MIB
    if shares is ShareMode.MEMORY:
        least, default = 1, mebibytes
    elif enforced and isinstance(shares, int):
        least, default = 1, max(1, mebibytes // shares)
    else:
        least, default = 0, 0
    lowest, usual, total = (bytes_of(amount * _MIB).value for amount in (least, default, mebibytes))
    step = Quantity.of(_MIB, Format.BINARY_SI)
    return DeviceCapacity(total, RequestPolicy(default=usual, valid_range=RequestRange(lowest, total, step)))


def _counted(shares: int) -> DeviceCapacity:
    one, most = Quantity.of(1), Quantity.of(shares)
    step = one if shares > 1 else None  # the API requires a range that is at least one step wide
    return DeviceCapacity(most, RequestPolicy(default=one, valid_range=RequestRange(one, most, step)))


def set_name(name: str) -> str:
    """The name of a GPU's counter set: `gpu-<minor>-counter-set`, or `gpu-vfio-<position>-counter-set` for a GPU that
    NVML does not see. `name` is that of the whole GPU or of its vfio device.
    """
    return f"{name}-counter-set"


def drawn(profile: GpuInstanceProfile, placement: Placement) -> dict[str, Quantity]:
    """The counters that an instance consumes, without those of which it consumes nothing."""
    return {**_amounts(profile), **{f"memory-slice-{index}": Quantity.of(1) for index in placement.slices}}


def totals(profiles: tuple[MigProfile, ...]) -> dict[str, Quantity]:
    """The maximum that any profile consumes of each counter, without counters that no profile consumes."""
    return dict(_most(profiles))


@lru_cache(maxsize=64)  # the GPUs of a node mostly have the same profiles
def _most(profiles: tuple[MigProfile, ...]) -> Counters:
    found: dict[str, Quantity] = {}
    for profile in profiles:
        for placement in profile.placements:
            for name, amount in drawn(profile.info, placement).items():
                found[name] = max(amount, found.get(name, amount))
    return found


def less(pot: Counters, taken: Iterable[Counters]) -> dict[str, Quantity]:
    """The remaining counters, without exhausted counters."""
    left = dict(pot)
    for counters in taken:
        for name, amount in counters.items():
            if name in left:
                left[name] = Quantity(left[name].nanos - amount.nanos, left[name].format)
    return {name: amount for name, amount in left.items() if amount.nanos > 0}


def fits(wanted: Counters, pot: Counters) -> bool:
    """Whether the available counters are sufficient."""
    return all(name in pot and amount <= pot[name] for name, amount in wanted.items())


def whole_counters(gpu: Gpu, profiles: tuple[MigProfile, ...]) -> Counters:
    """The counters of a GPU that is allocated as a whole. `profiles` are those of its model, as far as they are known:
    NVML reports them for some models only in MIG mode.
    """
    found = totals(profiles)
    if found:
        return found
    return ONE_GPU if gpu.memory is None else {"memory": Quantity.of(gpu.memory, Format.BINARY_SI)}


def consumption(counter_set: CounterSet, counters: Counters | None = None) -> tuple[CounterConsumption, ...]:
    """The counter consumption of a device: by default all counters."""
    return (CounterConsumption(counter_set.name, counter_set.counters if counters is None else counters),)


@lru_cache(maxsize=64)
def _amounts(info: GpuInstanceProfile) -> dict[str, Quantity]:
    """The amounts that an instance consumes, without memory slices and what it consumes nothing of."""
    counts = {_counter_name(name): Quantity.of(count) for name, count in engines(info).items()}
    amounts = {"memory": Quantity.of(info.memory_mib << 20, Format.BINARY_SI), **counts}
    return {name: amount for name, amount in amounts.items() if amount.nanos}


def _counter_name(capacity: str) -> str:
    """`copy-engines` for `copyEngines`."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in capacity)
