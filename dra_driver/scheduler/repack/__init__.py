# SPDX-License-Identifier: Apache-2.0
"""The fewest pods to move so that a demand fits: pure functions from a snapshot to a plan.

`build` makes counters, pods and places of a snapshot (`space`, `placements`). `bounds` has the lower bound of the
number of moves, and `search` finds drafts of plans, those with the fewest moves first. `proof` lets the allocator and
the filters of the scheduler decide every step of a draft, and `plan` combines both. A pod is moved by its controller:
it is evicted, and the pod that is made instead is placed by the rules of the scheduler.
"""

from .build import Movability, Space, Unit
from .plan import Result, find_plan
from .proof import GUARD_TAINT, Guard, GuardKind, Placement, Plan, Step
from .search import Limits

__all__ = [
    "GUARD_TAINT",
    "Guard",
    "GuardKind",
    "Limits",
    "Movability",
    "Placement",
    "Plan",
    "Result",
    "Space",
    "Step",
    "Unit",
    "find_plan",
]
