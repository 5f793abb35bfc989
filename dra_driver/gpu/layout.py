# SPDX-License-Identifier: Apache-2.0
"""How a node's devices are laid out in the slices of its pool.

One pool a node, named after it. Counter sets come first, in slices of their own (the API wants that since
Kubernetes 1.35); then whole GPUs together; then each partitioned GPU in a slice of its own, so that a change
to one GPU is one write. The scheduler goes through slices by name and takes the first device that fits, so
names start with the slice's position.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from .. import DRIVER_NAME
from ..resource import CounterSet, Device, ObjectMeta, OwnerReference, ResourcePool, ResourceSlice
from ..resource.limits import COUNTER_SETS_PER_SLICE, DEVICES_PER_SLICE_WITH_EXTRAS
from .devices import GpuDevices

T = TypeVar("T")


def node_slices(node_name: str, node_uid: str, gpus: Sequence[GpuDevices]) -> tuple[ResourceSlice, ...]:
    """The slices that the node should have; at least one, so that "no devices" can be told from "no driver".

    Their generation is left at 0: it depends on what was published before.
    """
    whole = [gpu for gpu in gpus if gpu.counter_set is None]
    split = [gpu for gpu in gpus if gpu.counter_set is not None]
    contents: list[tuple[tuple[CounterSet, ...], tuple[Device, ...]]] = [
        *(
            (sets, ())
            for sets in _chunks((gpu.counter_set for gpu in split if gpu.counter_set), COUNTER_SETS_PER_SLICE)
        ),
        *(((), devices) for devices in _chunks((device for gpu in whole for device in gpu.devices), _DEVICES)),
        *(((), devices) for gpu in split for devices in _chunks(gpu.devices, _DEVICES)),
    ]
    if not contents:
        contents.append(((), ()))
    owner = OwnerReference("v1", "Node", node_name, node_uid, controller=True)
    return tuple(
        ResourceSlice(
            metadata=ObjectMeta(name=f"{index:05x}-{DRIVER_NAME}-{node_name}", owner_references=(owner,)),
            driver=DRIVER_NAME,
            pool=ResourcePool(node_name, generation=0, resource_slice_count=len(contents)),
            node_name=node_name,
            devices=devices,
            shared_counters=counter_sets,
        )
        for index, (counter_sets, devices) in enumerate(contents)
    )


_DEVICES = DEVICES_PER_SLICE_WITH_EXTRAS  # for whole GPUs too: a taint must not make a slice too large


def _chunks(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    iterator = iter(items)
    while chunk := tuple(islice(iterator, size)):
        yield chunk
