# SPDX-License-Identifier: Apache-2.0
"""Removes remains of claims that kubelet will never unprepare.

kubelet forgets a claim when its own state is lost, and a claim can be deleted by force. So every claim with a record is
regularly looked up in the API server by its UID. If the claim has been gone for a while, its devices are removed. If
the API server does not answer, no claim counts as gone. Then the node is checked for marked changes and CDI specs
without a record.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from dra_driver.process.containment import contained

from ..errors import PrepareError
from .boundary import EXPECTED_ERRORS, ClaimBoundary
from .call import Call
from .changes import Changes
from .locks import Held
from .model import ClaimRef, Plan, Undoable
from .planner import Planner
from .recovery import brief_call
from .store import ClaimStore
from .unrestored import Unrestored

log = logging.getLogger(__name__)

GONE: Final = "the claim is gone from the API server: what it had on this node is removed"


class AbsentClaims:
    """The claims that the API server no longer has, and since when. `is_gone` asks it for one claim, and returns None
    if it does not answer. A claim must be gone for `grace` seconds.
    """

    def __init__(self, is_gone: Callable[[ClaimRef], bool | None], grace: float, boundary: ClaimBoundary) -> None:
        self._is_gone = is_gone
        self._grace = grace
        self._boundary = boundary
        self._missed: dict[str, float] = {}

    @property
    def suspicious(self) -> bool:
        """Whether some claims are gone, but not yet for long enough."""
        return bool(self._missed)

    def gone(self, claims: Iterable[ClaimRef]) -> list[ClaimRef]:
        """Those of all recorded `claims` that have been gone for long enough."""
        now = time.monotonic()
        recorded = list(claims)
        for uid in self._missed.keys() - {claim.uid for claim in recorded}:
            del self._missed[uid]
        gone: list[ClaimRef] = []
        for claim in recorded:
            missing: bool | None = False
            with self._boundary.around("sweep claim", claim):
                missing = self._is_gone(claim)
            if missing is None:
                break  # one unanswered request is enough
            if not missing:
                self._missed.pop(claim.uid, None)
            elif now - self._missed.setdefault(claim.uid, now) >= self._grace:
                gone.append(claim)
        return gone

    def forget(self, claim: ClaimRef) -> None:
        """Nothing is left of a claim."""
        self._missed.pop(claim.uid, None)


class Sweep:
    """Finds and removes leftovers. A claim must be gone for `grace` seconds."""

    def __init__(
        self,
        store: ClaimStore,
        changes: Changes,
        planner: Planner,
        unrestored: Unrestored,
        boundary: ClaimBoundary,
        grace: float,
    ) -> None:
        self._store = store
        self._changes = changes
        self._node = planner.node
        self._steps = planner.driver.steps
        self._unrestored = unrestored
        self._boundary = boundary
        self.absent = AbsentClaims(planner.is_gone, grace, boundary)

    def sweep(self, unprepare: Callable[[ClaimRef], None]) -> None:
        """Check everything once, and remove leftovers. `unprepare` undoes a claim that is gone."""
        for claim in self.absent.gone(record.plan.claim for record in self._store.records.all()):
            with self._boundary.around("sweep claim", claim):
                self._remove(claim, unprepare)
        self.sweep_node()

    def retry(self) -> None:
        """Try again to undo the remaining changes of GPUs that are due."""
        patience = brief_call()
        for key in self._unrestored.due():
            self._sweep_contained(key, patience)

    def restore_for(self, plan: Plan, held: Held) -> None:
        """Undo changes of earlier claims that disturb the claim with this plan, whose locks the caller holds. Raises
        PrepareError if one cannot be undone, and errors of NVML.
        """
        strays = [
            stray for step in self._steps if step.DISTURBS for stray in step.strays(self._node) if stray.disturbs(plan)
        ]
        if not strays or self._store.records.unreadable():  # one of these claims may need the change
            return
        needed = self._store.records.marks_of_others(plan.claim.uid)
        for stray in strays:
            if stray.mark in needed:
                continue
            if problem := self._changes.undo_stray(stray, held):
                self._unrestored.add(stray.key, str(stray), problem)
                raise PrepareError(
                    f"GPU {stray.key} still has the {stray} of an earlier claim, which cannot be restored: {problem};"
                    " kubelet tries again"
                )
            self._unrestored.remove(stray.key, str(stray))

    def sweep_node(self) -> None:
        """Remove what has no record, without asking the API server."""
        patience = brief_call()
        for key in {stray.key for stray in self._strays()}:
            self._sweep_contained(key, patience)
        known = self._store.known()
        for uid in self._store.specs.claims():
            if uid not in known:
                with self._boundary.around("sweep claim", ClaimRef("", "", uid)):
                    self._sweep_spec(uid)

    def _remove(self, claim: ClaimRef, unprepare: Callable[[ClaimRef], None]) -> None:
        log.warning("%s", GONE, extra={"claim": str(claim), "claim_uid": claim.uid})
        try:
            unprepare(claim)
        except EXPECTED_ERRORS as error:
            log.warning("leftovers of a claim cannot be removed yet: %s", error, extra={"claim_uid": claim.uid})
        else:
            self.absent.forget(claim)
            self._boundary.on_event(claim, "LeftoverRemoved", GONE)

    def _marked(self) -> list[Undoable]:
        """A change for each mark on the node, in the order in which changes can be undone."""
        return [stray for step in reversed(self._steps) for stray in step.strays(self._node)]

    def _sweep_contained(self, key: str, patience: Call) -> None:
        with contained("sweep GPU", key, self._boundary.count, lambda _: self._unrestored.failed(key), gpu=key):
            self._sweep_key(key, patience)

    def _sweep_key(self, key: str, patience: Call) -> None:
        """Undo everything on a GPU that no record needs. What fails is tried again long before the next sweep."""
        problems: dict[str, str] = {}
        try:
            with self._changes.hold([key], patience) as held:
                strays = self._strays_of(key)
                if self._store.records.unreadable():  # some of it may belong to these claims
                    self._unrestored.failed(key)
                    return
                for stray in strays:
                    if problem := self._changes.undo_stray(stray, held):
                        problems[str(stray)] = problem
        except EXPECTED_ERRORS as error:
            log.warning("leftovers cannot be removed yet: %s", error, extra={"key": key})
            problems = {str(stray): str(error) for stray in self._strays_of(key)} | problems
        self._unrestored.tried(key, problems)

    def _strays_of(self, key: str) -> list[Undoable]:
        return [stray for stray in self._strays() if stray.key == key]

    def _strays(self) -> list[Undoable]:
        """The marked changes that no record needs. Marks are read first, because a record is older than its marks.
        Callers ask for unreadable records afterwards: a record that is damaged in between is among them.
        """
        marked = self._marked()
        needed = {step.mark for record in self._store.records.all() for step in record.plan.steps}
        return [stray for stray in marked if stray.mark not in needed]

    def _sweep_spec(self, uid: str) -> None:
        with self._store.try_hold(uid) as free:
            if free and uid not in self._store.known():
                log.warning("removing the CDI spec of an unknown claim", extra={"claim_uid": uid})
                self._store.specs.remove(uid)
