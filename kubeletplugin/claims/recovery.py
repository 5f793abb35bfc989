# SPDX-License-Identifier: Apache-2.0
"""Brings the node into the recorded state: after a start of the plugin or of the driver, and after errors.

The interrupted prepare or unprepare of a claim is undone, and prepared claims are completed. A prepare that may have
been waiting keeps what it has until kubelet repeats its call. A claim whose record is damaged is planned again: its
finished steps change nothing. Claims that fail are tried again later.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

from dra_driver.gpu.nvml import NO_DRIVER, NvmlError

from ..errors import NoDriverError, StoppedError
from .boundary import EXPECTED_ERRORS, ClaimBoundary
from .call import OWN_WORK, Call
from .changes import Changes, WaitsError, fields_of
from .model import ClaimRef, Record, State
from .planner import Planner
from .problems import Problems
from .store import ClaimStore

log = logging.getLogger(__name__)

_PATIENCE: Final = 1.0


def brief_call() -> Call:
    """The plugin's own work, which waits only a moment for GPUs that others use. One call is for a whole round over the
    node: others may wait for the driver, and the driver is ready only after the round.
    """
    return OWN_WORK.within(_PATIENCE, "its GPU")


class Recovery:
    """Restores claims. `problems` has the claims that failed, for which it is tried again."""

    def __init__(
        self, store: ClaimStore, changes: Changes, planner: Planner, problems: Problems, boundary: ClaimBoundary
    ) -> None:
        self._store = store
        self._changes = changes
        self._planner = planner
        self._problems = problems
        self._boundary = boundary
        self._gave_up = False

    def recover(self) -> None:
        """Restore all claims once. Raises NvmlError if the driver disappears during the recovery, or OSError."""
        self._each((record.plan.claim for record in self._store.records.all()), self._settle)
        self._each(self._store.records.damaged().values(), self._plan_again)

    def retry(self) -> bool:
        """Try those claims with problems again that are due. Returns whether a claim was given up, so that the node has
        to be swept. Raises NvmlError if the driver disappears during the work.
        """
        self._gave_up = False
        damaged = self._store.records.damaged()
        self._each((claim for claim in self._problems.due() if claim.uid not in damaged), self._settle)
        self._each((claim for claim in damaged.values() if self._problems.is_due(claim.uid)), self._plan_again)
        return self._gave_up

    def restore_specs(self) -> None:
        """Write the missing specs of prepared claims. Raises NvmlError if the driver disappears during the recovery, or
        OSError.
        """
        prepared = [record.plan.claim for record in self._store.records.all() if record.state is State.PREPARED]
        self._each((claim for claim in prepared if not self._store.specs.exists(claim.uid)), self._settle)

    def complete(self, record: Record, call: Call) -> Record:
        """Make the missing devices of a prepared claim. The caller holds the claim's lock."""
        with self._changes.hold(record.plan.keys, call) as held:
            in_containers = [step for step in record.plan.steps if step.IN_CONTAINERS]
            was_complete = self._changes.are_done(in_containers, held)
            completed = self._store.write_spec_and_record(
                record, self._changes.do(record.plan, held, OWN_WORK, was_prepared=True)
            )
        if not was_complete:
            text = "devices of this claim were gone, after a reload of the driver or a reset, and were made again"
            log.warning("%s", text, extra=fields_of(record.plan))
            self._boundary.on_event(
                record.plan.claim, "DevicesRestored", f"{text}; containers have to be restarted to use them"
            )
        return completed

    # One claim

    def _settle(self, claim: ClaimRef, call: Call) -> None:
        record = self._store.current(claim.uid)
        if record is None:
            return
        if record.state is State.PREPARED:
            self.complete(record, call)
            return
        with self._changes.hold(record.plan.keys, call) as held:
            if record.state is State.PREPARING and any(step.WAITS for step in record.plan.steps):
                with contextlib.suppress(WaitsError):
                    self._changes.do(record.plan, held, OWN_WORK)
                return
            log.info("undoing an interrupted prepare or unprepare", extra=fields_of(record.plan))
            self._store.specs.remove(claim.uid)
            self._changes.undo(record, held, OWN_WORK)
            self._store.close(record)

    def _plan_again(self, claim: ClaimRef, call: Call) -> None:
        """Restore a claim whose record is damaged. If it was prepared, as its CDI spec tells, it is recorded again. If
        not, its record is given up, and what it has on the node is swept.
        """
        if not claim.name or self._store.records.get(claim.uid) is not None:
            return  # kubelet's next call names the claim
        if self._planner.is_gone(claim):
            self._give_up(claim)
            return
        plan = self._planner.plan(claim, OWN_WORK)
        given = {device.cdi_name for device in plan.devices if device.kind.is_given}
        if not self._store.specs.devices(claim.uid) >= given:
            self._give_up(claim)
            return
        with self._changes.hold(plan.keys, call) as held:
            record = self._store.records.open(Record(State.PREPARING, self._store.boot_id, plan))
            self._store.write_spec_and_record(record, self._changes.do(plan, held, OWN_WORK, was_prepared=True))
        self._boundary.on_event(claim, "RecordRebuilt", "the damaged record of this claim was made anew")

    def _give_up(self, claim: ClaimRef) -> None:
        self._store.specs.remove(claim.uid)
        self._store.records.forget_damaged(claim.uid)
        self._gave_up = True

    # All claims

    def _each(self, claims: Iterable[ClaimRef], restore: Callable[[ClaimRef, Call], None]) -> None:
        call = brief_call()
        for claim in list(claims):

            def failed(error: Exception, claim: ClaimRef = claim) -> None:
                self._problems.add(claim, repr(error), delayed=True)

            with self._boundary.around("recover claim", claim, failed, expected=(NvmlError,)):
                self._try(claim, restore, call)

    def _try(self, claim: ClaimRef, restore: Callable[[ClaimRef, Call], None], call: Call) -> None:
        with self._store.try_hold(claim.uid) as free:
            if not free:  # a call of kubelet, or another process, has the lock
                self._problems.add(claim, "somebody else is at work on it")
                return
            try:
                restore(claim, call)
            except (StoppedError, WaitsError, NoDriverError) as error:
                self._problems.add(claim, str(error))
            except EXPECTED_ERRORS as error:
                if isinstance(error, NvmlError) and error.code in NO_DRIVER:
                    self._problems.add(claim, str(error))  # all claims are restored when the driver is back
                    raise
                self._failed(claim, error)
            else:
                self._problems.remove(claim.uid)

    def _failed(self, claim: ClaimRef, error: Exception) -> None:
        if self._problems.add(claim, str(error)):
            extra = {"claim": str(claim), "claim_uid": claim.uid}
            log.error("the claim could not be recovered; trying again later: %s", error, extra=extra)
            self._boundary.on_event(claim, "RecoveryFailed", f"the claim's devices could not be restored: {error}")
