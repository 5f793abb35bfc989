# SPDX-License-Identifier: Apache-2.0
"""The ResourceSlices of a node's pool, and the order of devices in them.

A node has one pool, with the node's name. The scheduler tries slices in the order of their names, and devices in the
order in which a slice lists them, and takes the first that fits. So the names of slices start with their position, and
devices are in the order in which an administrator would allocate them: first whole GPUs that cannot be divided and
existing MIG devices, then the devices that can be created: MIG devices from the first GPU on, whole GPUs from the last
one on.

A pool has counters only if the scheduler needs them, that is, if devices of one of its GPUs exclude each other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import TypeVar

from ..kube.resource import CounterSet, Device, ObjectMeta, OwnerReference, ResourcePool, ResourceSlice
from ..kube.resource.device import SliceFeatures
from ..kube.resource.limits import COUNTER_SETS_PER_SLICE, DEVICES_PER_SLICE_WITH_EXTRAS
from ..kube.resource.names import object_name
from ..names import DRIVER_NAME
from .devices import MIG_TYPE, GpuDevices

T = TypeVar("T")

Contents = tuple[tuple[CounterSet, ...], tuple[Device, ...]]
"""The counter sets and devices of one slice."""

_DEVICES = DEVICES_PER_SLICE_WITH_EXTRAS  # also without taints, because a later taint must not make a slice too large
_EVERY_FEATURE = SliceFeatures()


def node_slices(
    node_name: str,
    node_uid: str,
    gpus: Sequence[GpuDevices],
    features: SliceFeatures = _EVERY_FEATURE,
    *,
    driver: str = DRIVER_NAME,
) -> tuple[ResourceSlice, ...]:
    """The slices of a driver that the node should have. There is at least one, so that an empty node differs from a
    node whose driver does not run.

    The generation is 0, because it depends on the slices that were published before. `describe`, `taint` and
    `without_tainted` must already have left out what the API server does not store.
    """
    if not any(gpu.overlapping for gpu in gpus):
        gpus = [_without_counters(gpu) for gpu in gpus]
    contents = _beside(gpus) if features.counters_beside_devices else _apart(gpus)
    owner = OwnerReference("v1", "Node", node_name, node_uid, controller=True)
    return tuple(
        ResourceSlice(
            metadata=ObjectMeta(name=object_name(f"{index:05x}-{driver}-{node_name}"), owner_references=(owner,)),
            driver=driver,
            pool=ResourcePool(node_name, generation=0, resource_slice_count=len(contents)),
            node_name=node_name,
            devices=devices,
            shared_counters=counter_sets,
            partition_type_attribute=_partition_type(devices, driver) if features.partition_type else None,
        )
        for index, (counter_sets, devices) in enumerate(contents)
    )


def _partition_type(devices: Sequence[Device], driver: str) -> str | None:
    """The attribute by which reports about a pool group MIG devices. None if there are no MIG devices."""
    return f"{driver}/profile" if any("profile" in device.attributes for device in devices) else None


def _without_counters(gpu: GpuDevices) -> GpuDevices:
    devices = tuple(replace(device, consumes_counters=()) for device in gpu.devices)
    return replace(gpu, devices=devices, counter_set=None)


def _apart(gpus: Sequence[GpuDevices]) -> list[Contents]:
    """Slices with counter sets only, followed by slices with devices."""
    sets = _chunks((gpu.counter_set for gpu in gpus if gpu.counter_set is not None), COUNTER_SETS_PER_SLICE)
    made = [_Sorted(gpu) for gpu in gpus]
    whole = [
        *(device for gpu in made if not gpu.placements for device in gpu.whole),
        *(device for gpu in reversed(made) if gpu.placements for device in gpu.whole),
        *(device for gpu in made for device in gpu.static),
    ]
    return [
        *((chunk, ()) for chunk in sets),
        *(((), chunk) for chunk in _chunks(whole, _DEVICES)),
        *(((), chunk) for gpu in made for chunk in _chunks(gpu.placements, _DEVICES)),
    ] or [((), ())]


class _Sorted:
    """The devices of one GPU by kind, each kind in its order."""

    def __init__(self, gpu: GpuDevices) -> None:
        mig = [device for device in gpu.devices if device.attributes["type"] == MIG_TYPE]
        self.whole = [device for device in gpu.devices if device.attributes["type"] != MIG_TYPE]
        self.static = [device for device in mig if "uuid" in device.attributes]
        self.placements = [device for device in mig if "uuid" not in device.attributes]


def _beside(gpus: Sequence[GpuDevices]) -> list[Contents]:
    """Each counter set in one slice with the devices that consume its counters: one slice for each GPU. GPUs whose
    devices exclude each other come last.
    """
    first: list[tuple[tuple[CounterSet, ...], Device]] = []
    last: list[Contents] = []
    for gpu in gpus:
        sets = () if gpu.counter_set is None else (gpu.counter_set,)
        counted = tuple(device for device in gpu.devices if device.consumes_counters)
        first += [((), device) for device in gpu.devices if not device.consumes_counters]
        if gpu.overlapping:
            last.append((sets, counted))
        else:
            first += [(sets, device) for device in counted]
    ready = [
        (sets, chunk)
        for sets, group in groupby(first, key=lambda pair: pair[0])
        for chunk in _chunks((device for _, device in group), _DEVICES)
    ]
    return [*ready, *last] or [((), ())]


def _chunks(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    iterator = iter(items)
    while chunk := tuple(islice(iterator, size)):
        yield chunk
