# SPDX-License-Identifier: Apache-2.0
"""Restores claims that differ from their records: after a start, a reboot, a reload of the NVIDIA driver, or an error.

Interrupted work is undone, and prepared claims get back what they lost. Records from before the last boot are deleted.
A damaged record is rebuilt from the claim and from what the node still has of it. Failed work is tried again while the
NVIDIA driver is available; after unexpected errors, the pauses grow to minutes.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.gpu.nvml import NO_DRIVER, NvmlError
from dra_driver.process.backoff import Backoff

from ..kinds.targets import ClaimRef
from ..node.gpus import Gpus
from ..records.files import State
from ..records.format import Record
from ..records.locks import wait_on
from .actions import EXPECTED_ERRORS, Actions, Check, StoppedError, fields_of, within

log = logging.getLogger(__name__)

_PATIENCE = 1.0
_LONGEST_PAUSE = 300.0


def not_long() -> Check:
    """Wait only a moment for a GPU that another call or process uses, because recovery is not urgent."""
    return within(_PATIENCE, "its GPU")


@dataclass(frozen=True, slots=True)
class _Problem:
    """A problem of a claim. It is tried again after `due` (monotonic seconds)."""

    claim: ClaimRef
    text: str
    backoff: Backoff
    due: float = 0.0


class Recovery:
    """Restores claims. After an unexpected error, a claim is tried again after `pause` seconds, the first time."""

    def __init__(self, actions: Actions, pause: float) -> None:
        self._actions = actions
        self._boot_id = actions.boot_id
        self._boundary = actions.boundary
        self._pause = pause
        self._guard = threading.Lock()
        self._problems: dict[str, _Problem] = {}

    def recover(self, gpus: Gpus) -> None:
        """Restore all claims once. Raises NvmlError if the driver disappears meanwhile, or OSError."""
        self._actions.marks.forget_other_boots(self._boot_id)
        self._actions.fabric.was_restarted()
        for record in self._actions.ledger.all():
            self._try(record.plan.claim, gpus, self._settle)
        for claim in self._actions.ledger.damaged().values():
            self._try(claim, gpus, self.rebuild)

    def retry(self, gpus: Gpus) -> None:
        """Try those claims with problems again that are due. Raises NvmlError if the driver disappears meanwhile."""
        damaged = self._actions.ledger.damaged()
        with self._guard:
            problems = list(self._problems.values())
        now = time.monotonic()
        later = {one.claim.uid for one in problems if one.due > now}
        for one in problems:
            if one.claim.uid not in later | damaged.keys():
                self._try(one.claim, gpus, self._settle)
        for claim in damaged.values():
            if claim.uid not in later:
                self._try(claim, gpus, self.rebuild)

    def next_due(self) -> float | None:
        """When the next claim is due (monotonic seconds). None if there are no problems."""
        with self._guard:
            return min((one.due for one in self._problems.values()), default=None)

    def is_unsettled(self, uid: str) -> bool:
        """Whether the claim has a problem."""
        return uid in self._problems

    def look_after(self, claim: ClaimRef, problem: str, *, delayed: bool = False) -> bool:
        """Try the claim again later, or after a pause that grows if `delayed`. Returns whether this problem is new."""
        with self._guard:
            known = self._problems.get(claim.uid)
            backoff = Backoff(self._pause, _LONGEST_PAUSE) if known is None else known.backoff
            due = time.monotonic() + backoff.pause() if delayed else 0.0
            self._problems[claim.uid] = _Problem(claim, problem, backoff, due)
        return known is None or known.text != problem

    def settled(self, uid: str) -> None:
        """Remove the claim's problem."""
        with self._guard:
            self._problems.pop(uid, None)

    def current_record(self, uid: str) -> Record | None:
        """The claim's record. A record from before the last boot is removed, because the claim has nothing left."""
        record = self._actions.ledger.get(uid)
        if record is None or record.boot_id == self._boot_id:
            return record
        log.info("removing the record of a claim from before the last boot", extra=fields_of(record))
        self._actions.specs.remove(uid)
        self._actions.ledger.close(uid)
        return None

    def complete(self, record: Record, gpus: Gpus, check: Check = wait_on) -> Record:
        """Create the missing devices of a prepared claim."""
        with self._actions.hold(record.plan.gpus(), check) as held:
            self._actions.adopt(record, gpus, held)
            whole = self._actions.all_done(record.plan, gpus, held)
            completed = self._actions.carry_out(record, gpus, held)
        if not whole:
            text = "devices of this claim were gone, after a reload of the driver or a reset, and were made again"
            log.warning("%s", text, extra=fields_of(record))
            self._boundary.on_event(
                record.plan.claim, "DevicesRestored", f"{text}; containers have to be restarted to use them"
            )
        return completed

    def rebuild(self, claim: ClaimRef, gpus: Gpus) -> None:
        """Replace a damaged record. The claim is prepared if its CDI spec exists with all its devices, and otherwise
        undone. Raises one of EXPECTED_ERRORS. The caller holds the claim's lock.
        """
        ledger, specs = self._actions.ledger, self._actions.specs
        if ledger.get(claim.uid) is None:
            if not claim.name:
                return  # kubelet's next call names the claim
            if self._actions.planner.is_gone(claim):
                specs.remove(claim.uid)
                ledger.settle_damaged(claim.uid, gone=True)
                return
            self._rebuild(Record(State.PREPARING, self._boot_id, self._actions.planner.plan(claim, gpus)), gpus)
        ledger.settle_damaged(claim.uid)

    def _rebuild(self, record: Record, gpus: Gpus) -> None:
        claim = record.plan.claim
        with self._actions.hold(record.plan.gpus(), not_long()) as held:
            self._actions.ledger.open(record)
            if self._actions.specs.devices(claim.uid) >= {one.cdi_name for one in record.plan.devices}:
                self._actions.carry_out(record, gpus, held)
                self._boundary.on_event(claim, "RecordRebuilt", "the damaged record of this claim was made anew")
            else:
                self._actions.undo_held(record, gpus, held)

    def _try(self, claim: ClaimRef, gpus: Gpus, bring_about: Callable[[ClaimRef, Gpus], None]) -> None:
        def failed(error: Exception) -> None:
            self.look_after(claim, repr(error), delayed=True)

        with self._boundary.around("recover claim", claim, failed, expected=(NvmlError,)):
            self._try_expecting(claim, gpus, bring_about)

    def _try_expecting(self, claim: ClaimRef, gpus: Gpus, bring_about: Callable[[ClaimRef, Gpus], None]) -> None:
        with self._actions.claims.try_hold(claim.uid) as free:
            if not free:  # a call of kubelet, or another process, has the lock
                self.look_after(claim, "somebody else is at work on it")
                return
            try:
                bring_about(claim, gpus)
            except StoppedError as error:
                self.look_after(claim, str(error))
            except EXPECTED_ERRORS as error:
                self._failed(claim, error)
                if isinstance(error, NvmlError) and error.code in NO_DRIVER:
                    raise
            else:
                self.settled(claim.uid)

    def _settle(self, claim: ClaimRef, gpus: Gpus) -> None:
        record = self.current_record(claim.uid)
        if record is None:
            return
        if record.state is State.PREPARED:
            self.complete(record, gpus, not_long())
            return
        log.info("undoing an interrupted prepare or unprepare", extra=fields_of(record))
        with self._actions.hold(record.plan.gpus(), not_long()) as held:
            self._actions.adopt(record, gpus, held)
            self._actions.undo_held(record, gpus, held)

    def _failed(self, claim: ClaimRef, error: Exception) -> None:
        if self.look_after(claim, str(error)):
            extra = {"claim": str(claim), "claim_uid": claim.uid}
            log.error("the claim could not be recovered; trying again later: %s", error, extra=extra)
            self._boundary.on_event(claim, "RecoveryFailed", f"the claim's devices could not be restored: {error}")
