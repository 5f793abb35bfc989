# SPDX-License-Identifier: Apache-2.0
"""An assignment of the pods of a gang to nodes and devices, and its check by the rules for single pods.

The check places the pods one after the other. Each pod sees, of its node, only the devices that the assignment gives
to it and those in use, so that the rules decide about these devices and no others.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...kube.resource import ResourceClaim, ResourceSlice
from ..allocator import Cluster, Features
from ..pods import Attempt, Snapshot
from .objects import ClaimKey, GangMember, claim_key

DeviceKey = tuple[str, str, str]
"""Driver, pool and name of a device."""


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """A pod, its node, and the claims that are allocated with it. Claims that an earlier pod has are not among them."""

    member: GangMember
    node: str
    claims: tuple[ResourceClaim, ...] = ()


def verified(placements: Sequence[GangPlacement], snapshot: Snapshot, features: Features) -> list[GangPlacement] | None:
    """The placements in an order in which the rules for single pods accept each of them. None if there is no order.

    The snapshot contains none of the pods. A pod that is refused is tried again after others, for affinity and spread
    constraints.
    """
    check = _Check(placements, snapshot, features)
    waiting, order = list(placements), []
    while waiting:
        refused = []
        for placement in waiting:
            accepted = check.accept(placement)
            if accepted is None:
                refused.append(placement)
            else:
                order.append(accepted)
        if len(refused) == len(waiting):
            return None
        waiting = refused
    return order


class _Check:
    """The cluster while the pods of an assignment are placed."""

    def __init__(self, placements: Sequence[GangPlacement], snapshot: Snapshot, features: Features) -> None:
        self._features = features
        self._snapshot = snapshot
        self._planned: dict[ClaimKey, ResourceClaim] = {
            claim_key(claim): claim for placement in placements for claim in placement.claims
        }
        self._given: dict[ClaimKey, ResourceClaim] = {}
        self._slices: dict[str | None, list[ResourceSlice]] = defaultdict(list)
        for slice_ in snapshot.cluster.slices:
            self._slices[slice_.node_name or None].append(slice_)
        self._holders: dict[tuple[str, str], list[ResourceClaim]] = defaultdict(list)
        self._hold(snapshot.cluster.claims)

    def _hold(self, claims: Iterable[ResourceClaim]) -> None:
        for claim in claims:
            for pool in {(driver, pool) for driver, pool, _ in devices_of(claim)}:
                self._holders[pool].append(claim)

    def accept(self, placement: GangPlacement) -> GangPlacement | None:
        """The placement with the claims that the rules allocate for it, or None if they refuse the pod."""
        site = self._snapshot.sites.get(placement.node)
        if site is None:
            return None
        pod = placement.member.pod
        claims = [self._given.get(claim_key(claim), claim) for claim in placement.member.claims]
        planned = [self._planned[claim_key(claim)] for claim in claims if claim_key(claim) in self._planned]
        there = self._only(
            placement.node, {device for claim in (*planned, *placement.claims) for device in devices_of(claim)}
        )
        attempt = Attempt(pod, self._snapshot.with_cluster(there), self._features, claims)
        if attempt.gates or attempt.refusal is not None or attempt.refuses(site) is not None:
            return None
        if attempt.binding_error(placement.node):
            return None
        allocated = attempt.allocated(placement.node)
        self._given.update((claim_key(claim), claim) for claim in allocated)
        self._hold(allocated)
        cluster = replace(self._snapshot.cluster, claims=(*self._snapshot.cluster.claims, *allocated))
        self._snapshot = self._snapshot.placed(attempt.placed(placement.node), placement.node, cluster)
        return GangPlacement(placement.member, placement.node, tuple(allocated))

    def _only(self, node: str, devices: set[DeviceKey]) -> Cluster:
        """What the node sees, without devices that are neither in use nor among these."""
        slices = (*self._slices[node], *self._slices[None])
        pools = {(slice_.driver, slice_.pool.name) for slice_ in slices}
        claims = list({id(claim): claim for pool in pools for claim in self._holders[pool]}.values())
        kept = devices.union(*(devices_of(claim) for claim in claims))
        cluster = self._snapshot.cluster
        return Cluster(
            tuple(_with_devices(slice_, kept) for slice_ in slices),
            cluster.classes,
            (cluster.node_by_name[node],),
            tuple(claims),
        )


def devices_of(claim: ResourceClaim) -> set[DeviceKey]:
    """The devices that a claim holds."""
    results = claim.allocation.results if claim.allocation is not None else ()
    return {(result.driver, result.pool, result.device) for result in results}


def _with_devices(slice_: ResourceSlice, kept: set[DeviceKey]) -> ResourceSlice:
    devices = tuple(device for device in slice_.devices if (slice_.driver, slice_.pool.name, device.name) in kept)
    return replace(slice_, devices=devices)
