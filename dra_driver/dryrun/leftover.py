# SPDX-License-Identifier: Apache-2.0
"""What stays free of each kind of device once demands have what they get."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..allocation import Cluster, Features
from ..resource import AllocatedDevice, AllocationResult, DeviceClaim, ResourceClaim
from .stock import DeviceKind, Stocktaker, totals
from .verdict import Verdict


@dataclass(frozen=True, slots=True)
class Leftover:
    """How many devices of a kind can be had one by one before and after."""

    kind: DeviceKind
    before: int
    after: int


def leftovers(verdicts: Iterable[Verdict], cluster: Cluster, features: Features) -> list[Leftover]:
    """The kinds of which the demands leave fewer, in order."""
    drivers = {id(device): one.driver for one in cluster.slices for device in one.devices}
    taken = [claim for verdict in verdicts for claim in _taken(verdict, drivers)]
    if not taken:
        return []
    touched = {(one.driver, one.pool) for claim in taken if claim.allocation for one in claim.allocation.results}
    takers = Stocktaker(features)
    every = takers.count(cluster)
    old = totals(one for one in every if (one.driver, one.pool) in touched)
    new = totals(takers.count(cluster.after(taken), touched))
    return [
        Leftover(kind, amount.free, amount.free - old[kind].free + new[kind].free)
        for kind, amount in totals(every).items()
        if kind in old and new[kind].free != old[kind].free
    ]


def _taken(verdict: Verdict, drivers: Mapping[int, str]) -> list[ResourceClaim]:
    """Claims that hold the demand's devices, but for those that others can have too: shared, or for administrators."""
    free = {
        (str(claim.metadata), name)
        for claim in verdict.demand.claims
        for name, required in claim.spec.requirements
        if required.admin_access
    }
    results = (
        AllocatedDevice(one.request, drivers[id(one.device)], one.pool, one.name)
        for one in verdict.placed
        if one.device is not None and (one.claim, one.request) not in free and not one.device.allow_multiple_allocations
    )
    return [ResourceClaim(verdict.demand.pod, DeviceClaim(), AllocationResult((one,))) for one in results]
