# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node with their free and held memory slices (`dra_driver.gpu.picture`).

The picture is made from ResourceSlices and allocated claims, so it is the same for every driver that publishes GPUs as
NVIDIA's does. A GPU is one of three things:

- MIG devices of one `parentUUID` with capacities `memorySliceN` (existing MIG instances);
- a counter set with counters `memory-slice-N` (dynamic MIG), which the whole GPU and MIG devices consume;
- a device of type `gpu`, which is not divided, even if it has a counter set that no other device consumes.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, Literal

from ...gpu.devices import ENFORCED_BY
from ...gpu.picture import Cell, Claims, GpuPicture, NodePicture, joined_cells, natural
from ...kube.resource import Device, Node
from ...scheduler.allocator import Cluster, Features
from ...scheduler.allocator.nodes import is_at
from ...scheduler.allocator.pools import PoolView
from ..selectors import shown
from ..verdict import Placed

DeviceKey = tuple[str, str, str]
"""(driver, pool, device)."""

_MEMORY_SLICE: Final = re.compile(r"memory(?:-s|S)lice-?([0-9]{1,2})")
_WHOLE_GPU: Final = "gpu"

_By = Literal["counters", "capacities", "device"]
"""What describes a GPU in a pool: a set of counters, the capacities of its MIG devices, or one device as a whole."""


def attribute(device: Device | None, name: str) -> str:
    """An attribute of a device as text; empty if the device has none of this name."""
    value = device.attributes.get(name) if device is not None else None
    return shown(value) if value is not None else ""


def memory(device: Device | None) -> str:
    """The memory of a device as published, such as `80Gi`; empty if it publishes none."""
    capacity = device.capacity.get("memory") if device is not None else None
    return str(capacity.value) if capacity is not None else ""


def placed_memory(placed: Placed) -> str:
    """The memory that a demand gets. For a share, such as `12Gi of 80Gi, limited by mps`: how much of it is counted,
    and what limits it.
    """
    device, whole = placed.device, memory(placed.device)
    if device is None or not device.allow_multiple_allocations or not whole:
        return whole
    counted = placed.consumed.get("memory")
    text = f"{counted} of {whole}" if counted is not None and counted.nanos else f"{whole}, shared"
    by = attribute(device, ENFORCED_BY)
    return f"{text}, limited by {by}" if by else text


def node_picture(
    cluster: Cluster,
    features: Features,
    node: Node,
    held: Mapping[DeviceKey, Claims],
    proposed: Mapping[DeviceKey, Claims],
) -> NodePicture:
    """The picture of `node`, where claims hold `held` and others would get `proposed`.

    Raises AllocationError if a node selector of a slice cannot be evaluated.
    """
    pools = cluster.survey(features).view(node).pools
    pictures = (pool_pictures(pool, list(_devices_at(node, pool)), held, proposed) for pool in pools)
    return NodePicture(node.name, tuple(chain.from_iterable(pictures)))


def pool_pictures(
    pool: PoolView, devices: Iterable[Device], held: Mapping[DeviceKey, Claims], proposed: Mapping[DeviceKey, Claims]
) -> list[GpuPicture]:
    """The pictures of the GPUs that `devices` of a pool belong to, in the order of their names."""
    found: dict[tuple[_By, str], _Gpu] = {}
    divided = _divided_sets(pool)
    for device in devices:
        for share in _shares(device, divided):
            gpu = found.setdefault((share.by, share.of), _Gpu(share.by, _gpu_name(share, device)))
            gpu.model = gpu.model or attribute(device, "productName")
            gpu.numbers |= share.numbers
            if share.by == "counters" and share.of in pool.counter_sets:  # not while their gate is off
                gpu.numbers |= _numbers(pool.counter_sets[share.of].counters)
    for device in chain.from_iterable(slice_.devices for slice_ in (*pool.slices, *pool.elsewhere)):
        key = (*pool.key, device.name)
        claims = held.get(key, ()), proposed.get(key, ())
        for share in _shares(device, divided):
            if (share.by, share.of) in found and (any(claims) or share.by != "counters"):
                part = Cell(0, 1, (device.name,), _device_label(device), *claims)
                for number in share.numbers:
                    found[share.by, share.of].parts[number].append(part)
    return [gpu.picture() for gpu in sorted(found.values(), key=lambda gpu: natural(gpu.name))]


@dataclass(frozen=True, slots=True)
class _Share:
    """Memory slices that a device takes of a GPU: `of` is a counter set, a UUID, or the device itself."""

    by: _By
    of: str
    numbers: frozenset[int]


@dataclass(slots=True)
class _Gpu:
    """A GPU while its parts are collected: for each memory slice, a cell for each device that draws on it."""

    by: _By
    name: str
    model: str = ""
    numbers: frozenset[int] = frozenset()
    parts: dict[int, list[Cell]] = field(default_factory=lambda: defaultdict(list))

    def picture(self) -> GpuPicture:
        """The GPU. Neighbouring slices that the same devices draw on are one cell."""
        parts = [self.parts[number] for number in range(max(self.numbers) + 1)]
        if self.by == "device":
            return GpuPicture(self.name, self.model, 0, tuple(replace(cell, count=0) for cell in joined_cells(parts)))
        return GpuPicture(self.name, self.model, len(parts), tuple(joined_cells(parts)))


def _device_label(device: Device) -> str:
    whole = attribute(device, "type") == _WHOLE_GPU
    return attribute(device, "profile") or ("whole" if whole else device.name)


def _devices_at(node: Node, pool: PoolView) -> Iterator[Device]:
    """The devices of the pool that the node can reach."""
    for index, device in enumerate(pool.devices):
        if index not in pool.places or is_at(pool.places[index], node):
            yield device


def _divided_sets(pool: PoolView) -> frozenset[str]:
    """The counter sets of GPUs that can be divided. Devices with a profile consume them."""
    partitions = (device for device in pool.devices if attribute(device, "profile"))
    return frozenset(consumed.counter_set for device in partitions for consumed in device.consumes_counters)


def _shares(device: Device, divided: frozenset[str]) -> Sequence[_Share]:
    parent, numbers = attribute(device, "parentUUID"), _numbers(device.capacity)
    if parent and numbers:
        return [_Share("capacities", parent, numbers)]
    counted = [
        _Share("counters", consumption.counter_set, numbers)
        for consumption in device.consumes_counters
        if consumption.counter_set in divided and (numbers := _numbers(consumption.counters))
    ]
    if counted:
        return counted
    return [_Share("device", device.name, frozenset({0}))] if attribute(device, "type") == _WHOLE_GPU else []


def _numbers(amounts: Iterable[str]) -> frozenset[int]:
    """The memory slices among the names of counters or capacities. Drivers name only the counters that a device
    consumes.
    """
    return frozenset(int(match[1]) for name in amounts if (match := _MEMORY_SLICE.fullmatch(name)))


def _gpu_name(share: _Share, device: Device) -> str:
    """`gpu-0`, as the drivers name it in the names of its counter set and of its MIG devices."""
    if share.by == "counters":
        return share.of.removesuffix("-counter-set")
    return device.name.partition("-mig-")[0]
