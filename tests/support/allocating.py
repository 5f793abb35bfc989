# SPDX-License-Identifier: Apache-2.0
"""Claims for one device each on one node, allocated as kube-scheduler does."""

from collections.abc import Iterable
from dataclasses import replace

from dra_driver.kube.resource import (
    AllocatedDevice,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceRequirements,
    Node,
    ObjectMeta,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.scheduler.allocator import Cluster, Features, allocate

_CLASS = DeviceClass(ObjectMeta(name="any"))


class NodeClaims:
    """The claims that hold devices of a node. `slices` are its pool as a driver wants it, and `features` those of the
    scheduler.
    """

    def __init__(self, slices: Iterable[ResourceSlice], features: Features | None = None) -> None:
        self._features = features
        self._slices = tuple(replace(one, pool=replace(one.pool, generation=1)) for one in slices)
        (name,) = {one.node_name for one in self._slices}
        assert name is not None
        self._node = Node(ObjectMeta(name=name))
        self._cluster = Cluster(self._slices, (_CLASS,), (self._node,))
        self._held: dict[tuple[str, str | None], ResourceClaim] = {}

    def allocate(self, *selectors: str) -> AllocatedDevice | None:
        """A claim for one device that meets these CEL expressions gets the first that is free, or None."""
        request = DeviceRequest("one", exactly=DeviceRequirements(_CLASS.metadata.name, selectors))
        claim = ResourceClaim(ObjectMeta(name="claim", namespace="default"), DeviceClaim((request,)))
        outcome = allocate(self._cluster, [claim], self._node.name, self._features)
        if not outcome.allocations:
            assert not outcome.message, outcome.message
            return None
        (allocation,) = outcome.allocations
        (result,) = allocation.results
        assert (result.device, result.share_id) not in self._held
        held = self._held[result.device, result.share_id] = replace(claim, allocation=allocation)
        self._cluster = self._cluster.after(allocated=[held])
        return result

    def release(self, result: AllocatedDevice) -> None:
        """The claim that got it is deleted."""
        released = self._held.pop((result.device, result.share_id))
        self._cluster = self._cluster.after(released=[released])

    def room(self, *selectors: str) -> int:
        """How many more such claims would get a device; nothing changes."""
        before = self._cluster, dict(self._held)
        count = 0
        while self.allocate(*selectors) is not None:
            count += 1
        self._cluster, self._held = before
        return count
