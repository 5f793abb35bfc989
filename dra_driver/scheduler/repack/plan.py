# SPDX-License-Identifier: Apache-2.0
"""The plan with the fewest moves that can be proven, and how far it may be from the least number."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ..pods import Pod
from .build import Space, Unit
from .proof import GuardKind, Prover, RepackPlan
from .search import DraftSearch, Limits
from .space import Resident, least_blockers

_LAST: Final = (1 << 62,)
"""The cost of a pod that must stay, where the pods in the way are named."""
_FEW_NODES: Final = 8
_STEPS: Final = 20_000
"""The number of steps for each number of moves in a cluster of few nodes, where a step takes less time."""
_MOST_DRAFTS: Final = 200
"""The number of drafts that are tried to prove."""


@dataclass(frozen=True, slots=True)
class PlanSearchResult:
    """The plan, or None if there is none. No plan has fewer moves than `bound`; it is None if no moves can help.

    `refusals` are the scheduler's reasons against the places that were tried. `is_cut` tells that the search was ended
    at a limit, so that without a plan there may be one nevertheless.
    """

    plan: RepackPlan | None
    bound: int | None
    refusals: tuple[str, ...] = ()
    is_cut: bool = False

    @property
    def distance(self) -> int:
        """How many moves the plan has more than the lower bound."""
        return 0 if self.plan is None or self.bound is None else len(self.plan.steps) - self.bound


def obstacles(space: Space, unit: Unit, count: int) -> tuple[str, list[tuple[Pod | str, str]]] | None:
    """The node where the fewest pods that must stay are in the way of the unit, and these pods (or the names of claims
    that are not those of one pod) with the reasons. Of several equal units, the last has what the others leave: the
    place number `count`. None if no node has such devices.
    """
    kind = space.kind(unit)
    staying = [pod for site in space.sites for pod in site.residents.values() if pod.cost is None]
    for pod in staying:
        pod.cost = _LAST
    places: list[tuple[int, int, str, list[Resident]]] = []
    for site in space.sites:
        for use in space.uses(kind, site):
            found = least_blockers(site, use, len(site.residents))
            stay = [pod for pod in found or () if pod.cost == _LAST]
            if found is not None:
                places.append((len(stay), len(found), site.name, stay))
    for pod in staying:
        pod.cost = None
    if not places:
        return None
    *_, name, residents = heapq.nsmallest(count, places, key=lambda place: place[:2])[-1]
    tenants = [space.tenants[pod.number] for pod in residents]
    return name, [(tenant.pod or f"claim {tenant.claims[0].metadata}", tenant.movability.stays) for tenant in tenants]


def find_plan(space: Space, units: Sequence[Unit], guard: GuardKind, limits: Limits | None = None) -> PlanSearchResult:
    """The plan with the fewest moves after which all units have a place."""
    limits = limits or (Limits(_STEPS, 3 * _STEPS) if len(space.sites) <= _FEW_NODES else Limits())
    limits.keeps_nodes = guard is GuardKind.CORDON
    search = DraftSearch(space.sites, [space.kind(unit) for unit in units], space.uses, limits)
    prover = Prover(space, units, guard)
    found: RepackPlan | None = None
    refused = 0
    for draft in islice(search.drafts(), _MOST_DRAFTS):
        found = prover.proven(draft)
        if found is not None:
            break
        refused += 1
    is_cut = search.is_cut or refused == _MOST_DRAFTS
    return PlanSearchResult(found, search.bound, tuple(prover.refusals), is_cut)
