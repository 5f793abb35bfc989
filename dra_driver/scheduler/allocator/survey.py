# SPDX-License-Identifier: Apache-2.0
"""The devices that each node can reach, and their use. Nothing here depends on pending claims.

Which slices are relevant for a node follows Kubernetes' structured allocator. In 1.36, slices with shared counters are
relevant for every node, so an incomplete pool of one node affects all other nodes.
"""

import copy
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ...errors import NodeSelectorError
from ...kube.resource import Device, Node, NodeSelector, ResourceClaim, ResourceSlice
from .features import Features, Variant
from .nodes import Place, is_at, place
from .outcome import AllocationError, ErrorKind
from .pools import NOTHING, PoolKey, PoolState, PoolUsage, PoolView, pool_view, usage_after, usage_of


@dataclass(frozen=True, eq=False)
class NodeView:
    """The pools that a node sees, in the order in which they are searched.

    The pools include incomplete and invalid ones: they have no available devices, but some requests fail because of
    them. A device is identified by its index in the concatenated `devices` of the pools.
    """

    node: Node
    pools: tuple[PoolView, ...]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(pool.devices) for pool in self.pools))

    def locate(self, device: int) -> tuple[PoolView, int]:
        """The pool of the device and the device's index there."""
        index = bisect_right(self._ends, device)
        pool = self.pools[index]
        return pool, device - (self._ends[index] - len(pool.devices))

    def device(self, device: int) -> tuple[PoolView, Device]:
        """The device and its pool."""
        pool, index = self.locate(device)
        return pool, pool.devices[index]

    def name(self, device: int) -> str:
        """driver/pool/device."""
        pool, published = self.device(device)
        return f"{pool.driver}/{pool.name}/{published.name}"


class Survey:
    """Views of a cluster under some features. They are computed when they are first needed."""

    def __init__(
        self,
        slices: Iterable[ResourceSlice],
        claims: Iterable[ResourceClaim],
        features: Features,
        known: dict[Hashable, PoolView],
    ) -> None:
        """`known` has the views that other surveys of the same slices have made, and gets those of this survey. Views
        keep what is computed from their devices.
        """
        self._known = known
        self._features = features
        self._binding_last = features.variant is not Variant.STABLE
        self._usage = usage_of(claims, shares=features.consumable_capacity)
        self._pools: dict[PoolKey, list[ResourceSlice]] = defaultdict(list)
        self._by_node: dict[str, list[ResourceSlice]] = defaultdict(list)
        self._by_selector: dict[NodeSelector, list[ResourceSlice]] = defaultdict(list)
        self._on_all_nodes: list[ResourceSlice] = []
        self._per_device: list[ResourceSlice] = []
        self._counters: dict[PoolKey, list[ResourceSlice]] = defaultdict(list)
        self._views: dict[tuple[PoolKey, tuple[int, ...]], PoolView | None] = {}
        self._nodes: dict[str, NodeView] = {}
        for slice_ in slices:
            if features.leaves_out_groups and slice_.has_compatibility_groups:
                continue
            self._pools[slice_.driver, slice_.pool.name].append(slice_)
            self._file(slice_)

    def _file(self, slice_: ResourceSlice) -> None:
        features = self._features
        counters_alone = slice_.shared_counters and not features.counters_beside_devices
        if not features.partitionable_devices and (slice_.per_device_node_selection or counters_alone):
            return
        if counters_alone and features.defects.counter_slices_everywhere:
            self._counters[slice_.driver, slice_.pool.name].append(slice_)
            return
        match place(slice_):
            case str() as name:
                self._by_node[name].append(slice_)
            case True:
                self._on_all_nodes.append(slice_)
            case NodeSelector() as selector:
                self._by_selector[selector].append(slice_)
            case _ if slice_.per_device_node_selection:
                self._per_device.append(slice_)

    def after(self, allocated: Iterable[ResourceClaim], released: Collection[ResourceClaim]) -> "Survey":
        """The survey after claims were allocated or released.

        Views do not depend on claims, so both surveys share them.
        """
        after = copy.copy(self)
        after._usage = usage_after(self._usage, allocated, released, shares=self._features.consumable_capacity)
        return after

    def usage(self, pool: PoolKey) -> PoolUsage:
        """The devices of the pool that allocated claims hold."""
        return self._usage.get(pool, NOTHING)

    def view(self, node: Node) -> NodeView:
        """The pools that `node` sees. Raises AllocationError if a node selector is invalid."""
        view = self._nodes.get(node.name)
        if view is None:
            view = self._nodes[node.name] = NodeView(node, tuple(self._see(node)))
        return view

    def _see(self, node: Node) -> list[PoolView]:
        relevant: dict[PoolKey, list[ResourceSlice]] = defaultdict(list)
        for slice_ in self._relevant(node):
            relevant[slice_.driver, slice_.pool.name].append(slice_)
        for key in relevant.keys() & self._counters.keys():
            relevant[key].extend(self._counters[key])
        pools = [pool for key, slices in relevant.items() if (pool := self._pool(key, slices)) is not None]
        pools.extend(pool for pool in self._unusable if pool.key not in relevant)
        pools.sort(key=lambda pool: (self._binding_last and pool.has_binding_conditions, pool.key))
        return pools

    def _relevant(self, node: Node) -> Iterable[ResourceSlice]:
        yield from self._by_node.get(node.name, ())
        yield from self._on_all_nodes
        for selector, slices in self._by_selector.items():
            try:
                matches = is_at(selector, node)
            except NodeSelectorError as error:
                raise _bad_selector(slices[0].metadata.name, error) from error
            if matches:
                yield from slices
        for slice_ in self._per_device:
            try:
                if any(is_at(where, node) for where in self._places[slice_.metadata.name]):
                    yield slice_
            except NodeSelectorError as error:
                raise _bad_selector(slice_.metadata.name, error) from error

    @cached_property
    def _places(self) -> Mapping[str, Sequence[Place]]:
        """The distinct places of the devices of each slice that selects per device, in order."""
        return {
            slice_.metadata.name: list(dict.fromkeys(place(device) for device in slice_.devices))
            for slice_ in self._per_device
        }

    @cached_property
    def _unusable(self) -> Sequence[PoolView]:
        """Incomplete and invalid pools that every node sees because of their shared counters."""
        views = (self._pool(key, slices) for key, slices in self._counters.items())
        return [view for view in views if view is not None and view.state is not PoolState.COMPLETE]

    def _pool(self, key: PoolKey, slices: Sequence[ResourceSlice]) -> PoolView | None:
        cached = (key, tuple(map(id, slices)))  # the cluster keeps its slices alive
        if cached not in self._views:
            made = pool_view(key, slices, self._pools[key], self._features)
            self._views[cached] = made and self._known.setdefault(made.content, made)
        return self._views[cached]


def _bad_selector(slice_name: str, error: NodeSelectorError) -> AllocationError:
    text = f"ResourceSlice {slice_name} has a node selector that cannot be used: {error}"
    return AllocationError(ErrorKind.NODE_SELECTOR, text)
