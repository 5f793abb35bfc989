# SPDX-License-Identifier: Apache-2.0
"""The records of all claims with GPUs, and the claim of each device. Callers hold the lock of the claim that they work
on, and the locks of the GPUs whose devices they take.
"""

from ..errors import PrepareError
from ..plans.planning import conflicts, require_no_overlap, require_same_interval, require_same_mps
from ..steps import Step
from .cache import RecordCache
from .files import State
from .format import Record


class Ledger(RecordCache[Record]):
    """All records with GPUs."""

    def open(self, record: Record) -> None:
        """Record a new claim. Raises PrepareError if it needs a device exclusively that another claim has."""
        plan = record.plan
        require_no_overlap(plan)
        others = {one.plan.claim.uid: one for one in self.all() if one.plan.claim.uid != plan.claim.uid}
        for mine, theirs, other in conflicts(plan, (one.plan for one in others.values())):
            taken = others[other.claim.uid].state is State.UNPREPARING
            what = f"device {mine}" if mine == theirs else f"device {mine} cannot be had beside {theirs}, which"
            raise PrepareError(
                f"{what} {'is still being removed from' if taken else 'is in use by'} claim {other.claim}"
                f" (UID {other.claim.uid}); kubelet tries again within 90 s after that claim is unprepared"
            )
        sharing = [one.plan for one in others.values() if one.state is not State.UNPREPARING]
        require_same_interval(plan, sharing)
        require_same_mps(plan, sharing)
        self.save(record)

    def needed_by_others(self, uid: str) -> frozenset[Step]:
        """The steps that other claims need."""
        return frozenset(
            step
            for record in self.all()
            if record.plan.claim.uid != uid and record.state is not State.UNPREPARING
            for step in record.plan.steps
        )
