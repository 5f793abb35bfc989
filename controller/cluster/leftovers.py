# SPDX-License-Identifier: Apache-2.0
"""The slices and claims of nodes that no longer exist, since when, and what to do about them. Pure.

The garbage collector deletes most slices with their Node, which owns them. kube-controller-manager frees most claims:
it deletes the pods of a node that no longer exists, and clears an allocation whose last pod is deleted. So nothing is
done during a grace period. After it, only remaining objects are handled.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .facts import ClaimFacts, SliceFacts

REASONS: Final = {"node_gone": "is gone", "node_replaced": "was deleted and created again"}
"""Why a slice is a leftover, as in metrics, and the text about its node."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A slice to delete, with one of REASONS."""

    slice: SliceFacts
    reason: str

    def __str__(self) -> str:
        return f"slice {self.slice.name}: its node {self.slice.node} {REASONS[self.reason]}"


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """What to do now, and what is still in its grace period.

    `since` has the time when each object was first seen, by UID, for the next plan. `next_at` is the time when the next
    object is due.
    """

    deletes: tuple[Leftover, ...] = ()
    strays: tuple[ClaimFacts, ...] = ()
    since: Mapping[str, float] = field(default_factory=dict)
    next_at: float | None = None


def plan_cleanup(
    slices: Iterable[SliceFacts],
    claims: Iterable[ClaimFacts],
    nodes: Mapping[str, str],
    since: Mapping[str, float],
    now: float,
    grace: float,
) -> CleanupPlan:
    """What to do about `slices` and `claims`. `nodes` has the UIDs of the existing nodes by name. Times are in seconds.

    A slice is deleted if its node no longer exists, or was created again with another UID while the slice still names
    the old one. A slice without a node, or of an existing node that does not own it, is not deleted. `strays` are
    claims with devices in the pool of a node that no longer exists. Our pools have the names of their nodes.
    """
    leftovers = [leftover for leftover in (_leftover(slice_, nodes) for slice_ in slices) if leftover is not None]
    strays = [claim for claim in claims if missing_pools(claim, nodes)]
    seen = {
        uid: since.get(uid, now)
        for uid in [*(leftover.slice.uid for leftover in leftovers), *(claim.uid for claim in strays)]
    }
    ripe = {uid for uid, at in seen.items() if now - at >= grace}
    return CleanupPlan(
        tuple(leftover for leftover in leftovers if leftover.slice.uid in ripe),
        tuple(claim for claim in strays if claim.uid in ripe),
        seen,
        min((at + grace for uid, at in seen.items() if uid not in ripe), default=None),
    )


def missing_pools(claim: ClaimFacts, nodes: Mapping[str, str]) -> list[str]:
    """The pools of the claim's devices whose node no longer exists."""
    return sorted({pool for pool, _ in claim.devices if pool not in nodes})


def _leftover(slice_: SliceFacts, nodes: Mapping[str, str]) -> Leftover | None:
    if slice_.node is None:
        return None
    living = nodes.get(slice_.node)
    if living is None:
        return Leftover(slice_, "node_gone")
    if slice_.owner_uid is not None and slice_.owner_uid != living:
        return Leftover(slice_, "node_replaced")
    return None


def advice(claim: ClaimFacts, nodes: Mapping[str, str]) -> str:
    """A text for the claim's user: what has happened and what to do.

    This process never clears the allocation. kube-controller-manager does that when the last pod of a claim is deleted.
    It intentionally leaves an unused allocation alone, and the scheduler clears that one when a pod needs the claim.
    """
    pools = missing_pools(claim, nodes)
    devices = ", ".join(f"{device} (pool {pool})" for pool, device in claim.devices if pool in pools)
    what = f"allocated {devices}, but there is no node {' or '.join(pools)} any more"
    if claim.pod_groups:
        groups = ", ".join(claim.pod_groups)
        return f"{what}; delete PodGroup {groups} and its pods: the claim stays allocated as long as the group exists"
    if claim.pods:
        return f"{what}; delete pod {', '.join(claim.pods)}: the claim is then freed, and allocated elsewhere if needed"
    return f"{what}; no pod uses the claim: the next one that does gets other devices, otherwise delete the claim"
