# SPDX-License-Identifier: Apache-2.0
"""Which claims use which devices of which nodes, from the slices and claims of a cluster.

A pool is read as the scheduler reads it (`scheduler.allocator.pools`): its newest generation counts, and an incomplete
pool offers nothing. Devices of this driver belong to GPUs: a device that consumes counters belongs to the GPU of its
counter set, a part of a GPU with `parentUUID` to the GPU of that UUID, and any other device is a GPU by itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from ...gpu.health.meanings import Gravity
from ...gpu.picture import Cell, GpuPicture, natural
from ...kube.resource import Device, DeviceTaint, Node, ResourceClaim, ResourceSlice, TaintEffect
from ...kube.resource.codec import Decoded
from ...names import DRIVER_NAME
from ...scheduler.allocator import Features
from ...scheduler.allocator.capacity import consumed
from ...scheduler.allocator.pools import NOTHING, PoolKey, PoolState, PoolUsage, PoolView, pool_view, usage_of
from ..explain import health_of, listed_taint
from ..report.picture import attribute, memory, pool_pictures
from .model import (
    PASSTHROUGH,
    SHARE,
    WHOLE,
    DeviceConsumer,
    GpuUsage,
    OtherDevices,
    Taint,
    UsedDevice,
    UsedGpu,
    UsedNode,
)
from .users import ConsumerPod, DeviceConsumers

_SET_SUFFIX: Final = "-counter-set"
_BLOCKING: Final = {TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE}


def used_nodes(objects: Sequence[Decoded], pods: Iterable[ConsumerPod], features: Features) -> list[UsedNode]:
    """The nodes that have devices, in the order of their names, and a node without a name for devices of several."""
    claims = [object_ for object_ in objects if isinstance(object_, ResourceClaim)]
    labels = {object_.name: object_.metadata.labels for object_ in objects if isinstance(object_, Node)}
    uses = DeviceConsumers(claims, pods)
    usage = usage_of(claims, shares=features.consumable_capacity)
    slices: dict[PoolKey, list[ResourceSlice]] = defaultdict(list)
    for object_ in objects:
        if isinstance(object_, ResourceSlice):
            slices[object_.driver, object_.pool.name].append(object_)
    nodes: dict[str, UsedNode] = {}
    for key, own in sorted(slices.items()):
        for name, part in _of_pool(key, own, usage.get(key, NOTHING), uses, features):
            nodes[name] = _joined(nodes.get(name, UsedNode(name, labels.get(name, {}))), part)
    return [nodes[name] for name in sorted(nodes, key=lambda name: (not name, natural(name)))]


def _joined(node: UsedNode, part: UsedNode) -> UsedNode:
    return replace(
        node,
        total=node.total + len(part.gpus),
        gpus=(*node.gpus, *part.gpus),
        others=(*node.others, *part.others),
        problems=(*node.problems, *part.problems),
    )


def _of_pool(
    key: PoolKey, slices: Sequence[ResourceSlice], usage: PoolUsage, uses: DeviceConsumers, features: Features
) -> Iterator[tuple[str, UsedNode]]:
    """What each node has of a pool. The name is empty for devices of several nodes."""
    pool = pool_view(key, slices, slices, features)
    if pool is None:
        return
    if pool.state is not PoolState.COMPLETE:
        name = slices[0].node_name or ""
        yield name, UsedNode(name, problems=(f"nothing of pool {pool.name} of {pool.driver}: {pool.reason}",))
        return
    by_node: dict[str, list[Device]] = defaultdict(list)
    for slice_ in pool.slices:
        for device in slice_.devices:
            by_node[slice_.node_name or device.node_name or ""].append(device)
    counter = _PoolDevices(pool, usage, uses)
    for name, devices in by_node.items():
        if pool.driver == DRIVER_NAME:
            yield name, UsedNode(name, gpus=tuple(counter.gpus(devices)))
        else:
            yield name, UsedNode(name, others=(counter.others(devices),))


class _PoolDevices:
    """The devices of one pool, and what is in use of them."""

    def __init__(self, pool: PoolView, usage: PoolUsage, uses: DeviceConsumers) -> None:
        self._pool = pool
        self._usage = usage
        self._uses = uses
        self._left = pool.available(usage)

    def others(self, devices: Sequence[Device]) -> OtherDevices:
        """The devices of another driver."""
        return OtherDevices(self._pool.driver, len(devices), tuple(self._used(devices)))

    def gpus(self, devices: Sequence[Device]) -> Iterator[UsedGpu]:
        """The GPUs that the devices belong to, in the order of their names."""
        held = {
            (self._pool.driver, self._pool.name, device.name): tuple(use.claim for use in uses if not use.admin)
            for device in devices
            if (uses := self._uses_of(device))
        }
        divided = {picture.name: picture for picture in pool_pictures(self._pool, devices, held, {}) if picture.slices}
        groups: dict[str, list[Device]] = defaultdict(list)
        names = {attribute(device, "uuid"): _name(device) for device in devices if attribute(device, "uuid")}
        for device in devices:
            parent = attribute(device, "parentUUID")
            groups[_name(device) if device.consumes_counters else names.get(parent, _name(device))].append(device)
        for name in sorted(groups, key=natural):
            yield self._gpu(name, groups[name], divided.get(name))

    def _gpu(self, name: str, devices: Sequence[Device], divided: GpuPicture | None) -> UsedGpu:
        whole = next((device for device in devices if attribute(device, "type") == "gpu"), None)
        first = whole or next((device for device in devices if attribute(device, "profile")), devices[0])
        model = attribute(first, "productName")
        free = tuple(dict.fromkeys(_kind(device) for device in devices if self._is_available(device)))
        used = tuple(self._used(devices))
        holders = {use.claim: device.kind for device in used for use in device.uses if not use.admin}
        state = {
            (False, False): GpuUsage.UNAVAILABLE,
            (False, True): GpuUsage.FREE,
            (True, False): GpuUsage.USED,
            (True, True): GpuUsage.PARTLY,
        }[bool(holders), bool(free)]
        kinds = dict.fromkeys(holders.values()) or dict.fromkeys(map(_kind, devices))
        whole_cell = Cell(0, 0, tuple(device.name for device in devices), ", ".join(kinds), tuple(holders))
        return UsedGpu(
            name,
            model,
            attribute(whole, "uuid") or attribute(first, "parentUUID"),
            memory(whole),
            state,
            divided or GpuPicture(name, model, 0, (whole_cell,)),
            used,
            free,
        )

    def _used(self, devices: Iterable[Device]) -> Iterator[UsedDevice]:
        """The devices that are in use or tainted."""
        for device in sorted(devices, key=lambda device: natural(device.name)):
            uses = self._uses_of(device)
            if uses or device.taints:
                kind = _kind(device) if self._pool.driver == DRIVER_NAME else ""
                yield UsedDevice(device.name, kind, memory(device), uses, tuple(map(_taint, device.taints)))

    def _uses_of(self, device: Device) -> tuple[DeviceConsumer, ...]:
        return self._uses.of(self._pool.driver, self._pool.name, device.name)

    def _is_available(self, device: Device) -> bool:
        """Whether a claim without tolerations could get the device, or a share of it, now."""
        if any(taint.effect in _BLOCKING for taint in device.taints) or device.name in self._usage.whole:
            return False
        if device.allow_multiple_allocations:
            taken = self._usage.consumed.get(device.name, {})
            least = consumed(device.capacity, {}) if device.name in self._usage.shared else {}
            if any(
                taken.get(name, 0) + amount.nanos > device.capacity[name].value.nanos
                for name, amount in least.items()
                if device.capacity[name].request_policy is not None
            ):
                return False
        elif device.name in self._usage.shared:
            return False
        if self._usage.is_used(device.name):
            return True  # its counters are consumed already
        return all(
            amount.nanos <= self._left.get((consumption.counter_set, counter), 0)
            for consumption in device.consumes_counters
            for counter, amount in consumption.counters.items()
        )


def _name(device: Device) -> str:
    """The name of the GPU that a device belongs to, as the drivers name it."""
    if device.consumes_counters:
        return device.consumes_counters[0].counter_set.removesuffix(_SET_SUFFIX)
    return device.name.partition("-mig-")[0]


def _kind(device: Device) -> str:
    """The kind of a device of a GPU: its profile or vGPU type, WHOLE, SHARE or PASSTHROUGH."""
    if attribute(device, "type") == "vfio":
        return PASSTHROUGH
    profile = attribute(device, "profile") or attribute(device, "vgpuType")
    return profile or (SHARE if device.allow_multiple_allocations else WHOLE)


def _taint(taint: DeviceTaint) -> Taint:
    gravity = health_of(taint)
    return Taint(listed_taint(taint), taint.time_added, gravity is not None and gravity is not Gravity.NOTE)
