# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices: how a driver publishes the devices of a pool."""

from dataclasses import dataclass, field

from .device import CounterSet, Device
from .meta import NodeSelector, ObjectMeta


@dataclass(frozen=True, slots=True)
class ResourcePool:
    """The pool a slice belongs to. A pool is complete when its newest generation has `resource_slice_count` slices."""

    name: str
    generation: int
    resource_slice_count: int


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """Part of a pool. Exactly one of `node_name`, `node_selector`, `all_nodes` and
    `per_device_node_selection` says where its devices are; `devices` and `shared_counters`
    exclude each other since Kubernetes 1.35.
    """

    metadata: ObjectMeta
    driver: str
    pool: ResourcePool
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: tuple[Device, ...] = field(default=())
    shared_counters: tuple[CounterSet, ...] = ()
