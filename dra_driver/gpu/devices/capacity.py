# SPDX-License-Identifier: Apache-2.0
"""Capacities of devices, and how claims may share them.

A capacity without a request policy is consumed whole by every claim, so on a shared device all of them have one: who
asks for no amount gets none, memory aside, for which the mode says it, and `shares`.
"""

from collections.abc import Iterable
from dataclasses import replace

from ...resource import Device, DeviceCapacity, Format, Quantity, RequestPolicy, RequestRange
from ..inventory import MigProfile
from ..nvml import GpuInstanceProfile, Placement
from ..policy import Shares

Capacities = dict[str, DeviceCapacity]

_MIB = 1 << 20
_NOTHING = RequestPolicy(default=Quantity.of(0))


def bytes_of(amount: int) -> DeviceCapacity:
    """An amount of memory."""
    return DeviceCapacity(Quantity.of(amount, Format.BINARY_SI))


def engines(info: GpuInstanceProfile) -> dict[str, int]:
    """What an instance of a profile has besides memory, by capacity name."""
    return {
        "multiprocessors": info.multiprocessors,
        "copyEngines": info.copy_engines,
        "decoders": info.decoders,
        "encoders": info.encoders,
        "jpegEngines": info.jpeg_engines,
        "ofaEngines": info.ofa_engines,
    }


def profile_capacity(info: GpuInstanceProfile) -> Capacities:
    """What an instance of the profile has."""
    counts = {name: DeviceCapacity(Quantity.of(count)) for name, count in engines(info).items()}
    return {"memory": bytes_of(info.memory_mib * _MIB), **counts}


def largest_capacity(profiles: Iterable[MigProfile]) -> Capacities:
    """Of each capacity the most that any profile has: what a GPU that can be split is published with when whole."""
    each = [profile_capacity(profile.info) for profile in profiles]
    return {name: max((one[name] for one in each), key=lambda capacity: capacity.value) for name in each[0]}


def slice_capacity(placement: Placement) -> Capacities:
    """`memorySlice<i>` for the memory slices of an existing MIG device."""
    slices = range(placement.start, placement.start + placement.size)
    return {f"memorySlice{index}": DeviceCapacity(Quantity.of(1)) for index in slices}


def shared(device: Device, shares: Shares | int) -> Device:
    """The device as claims may share it. In MEMORY mode one whose memory is unknown stays exclusive."""
    if shares is Shares.DISABLED or (shares is Shares.MEMORY and "memory" not in device.capacity):
        return device
    capacity = {name: replace(one, request_policy=_NOTHING) for name, one in device.capacity.items()}
    if "memory" in capacity:
        capacity["memory"] = _shared_memory(capacity["memory"], shares)
    if isinstance(shares, int):
        capacity["shares"] = _counted(shares)
    return replace(device, capacity=capacity, allow_multiple_allocations=True)


def _shared_memory(memory: DeviceCapacity, shares: Shares | int) -> DeviceCapacity:
    """Memory to be asked for in whole MiB, of which the device then has a whole number too."""
    total = bytes_of(memory.value.value // _MIB * _MIB).value
    all_of_it = shares is Shares.MEMORY
    least = Quantity.of(_MIB if all_of_it else 0, Format.BINARY_SI)
    step = Quantity.of(_MIB, Format.BINARY_SI)
    policy = RequestPolicy(default=total if all_of_it else least, valid_range=RequestRange(least, total, step))
    return DeviceCapacity(total, policy)


def _counted(shares: int) -> DeviceCapacity:
    one, most = Quantity.of(1), Quantity.of(shares)
    step = one if shares > 1 else None  # the API wants room for one step
    return DeviceCapacity(most, RequestPolicy(default=one, valid_range=RequestRange(one, most, step)))
