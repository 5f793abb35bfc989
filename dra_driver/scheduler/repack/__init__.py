# SPDX-License-Identifier: Apache-2.0
"""The fewest pods to move so that a demand fits: pure functions from a snapshot to a plan.

`disruption` tells which pods may be moved. `build` makes counters, pods and places of a snapshot (`space`,
`placements`). `bounds` has the lower bound of the
number of moves, and `search` finds drafts of plans, those with the fewest moves first. `proof` lets the allocator and
the filters of the scheduler decide every step of a draft, and `plan` combines both.
`packing` tells what a perfect packing would add. A pod is moved by its controller:
it is evicted, and the pod that is made instead is placed by the rules of the scheduler.
"""

from .build import Movability, Space, Unit
from .disruption import Disruption
from .packing import Packing, pack
from .plan import PlanSearchResult, find_plan, obstacles
from .proof import GUARD_TAINT, Guard, GuardKind, RepackPlan, RepackStep, UnitPlacement
from .search import Limits

__all__ = [
    "GUARD_TAINT",
    "Disruption",
    "Guard",
    "GuardKind",
    "Limits",
    "Movability",
    "Packing",
    "PlanSearchResult",
    "RepackPlan",
    "RepackStep",
    "Space",
    "Unit",
    "UnitPlacement",
    "find_plan",
    "obstacles",
    "pack",
]
