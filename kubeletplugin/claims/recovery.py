# SPDX-License-Identifier: Apache-2.0
"""Claims that are not as their records say: after a start, a reboot, a reload of the driver, or an error.

What was broken off is undone, prepared claims are made complete again, what belongs to an earlier boot is forgotten. A
damaged record is made anew from the claim and from what the node still has of it. What does not succeed is kept in
mind and tried again, as long as the driver is there.
"""

import logging
import threading
from collections.abc import Callable

from dra_driver.gpu.nvml import NO_DRIVER, NvmlError

from ..hardware.gpus import Gpus
from ..hardware.targets import ClaimRef
from ..plans.planning import Planner
from ..records.locks import KeyedLocks, wait_on
from ..records.store import Record, State
from .actions import Actions, Check, fields_of, within
from .errors import EXPECTED_ERRORS, StoppedError

log = logging.getLogger(__name__)

_PATIENCE = 1.0

EventHook = Callable[[ClaimRef, str, str], None]
"""Hears what a user may want to know of a claim: the claim, a reason in one word, a sentence."""


def not_long() -> Check:
    """Wait a moment for a GPU that a call, or another process, is at work on: what is not urgent can be done later."""
    return within(_PATIENCE, "its GPU")


class Recovery:
    """Brings claims and the node together again. `claims` are the locks of claims."""

    def __init__(
        self, actions: Actions, claims: KeyedLocks, planner: Planner, boot_id: str, on_event: EventHook
    ) -> None:
        self._actions = actions
        self._claims = claims
        self._planner = planner
        self._boot_id = boot_id
        self._on_event = on_event
        self._guard = threading.Lock()
        self._problems: dict[str, tuple[ClaimRef, str]] = {}

    def recover(self, gpus: Gpus) -> None:
        """All claims, once. Raises NvmlError when the driver goes away meanwhile, or OSError."""
        self._actions.marks.forget_other_boots(self._boot_id)
        for record in self._actions.ledger.all():
            self._try(record.plan.claim, gpus, self._settle)
        for claim in self._actions.ledger.damaged().values():
            self._try(claim, gpus, self.rebuild)

    def retry(self, gpus: Gpus) -> None:
        """The claims that something went wrong with, again. Raises NvmlError when the driver goes away meanwhile."""
        damaged = self._actions.ledger.damaged()
        for claim in self.unsettled():
            if claim.uid not in damaged:
                self._try(claim, gpus, self._settle)
        for claim in damaged.values():
            self._try(claim, gpus, self.rebuild)

    def unsettled(self) -> list[ClaimRef]:
        """The claims that something went wrong with."""
        with self._guard:
            return [claim for claim, _ in self._problems.values()]

    def is_unsettled(self, uid: str) -> bool:
        """Whether something went wrong with this claim."""
        return uid in self._problems

    def look_after(self, claim: ClaimRef, problem: str) -> bool:
        """Try again later; gives whether this problem is news."""
        with self._guard:
            known = self._problems.get(claim.uid)
            self._problems[claim.uid] = claim, problem
        return known is None or known[1] != problem

    def settled(self, uid: str) -> None:
        """There is nothing to look after any more."""
        with self._guard:
            self._problems.pop(uid, None)

    def current_record(self, uid: str) -> Record | None:
        """The claim's record, unless it is of before the last boot: then nothing of the claim is left."""
        record = self._actions.ledger.get(uid)
        if record is None or record.boot_id == self._boot_id:
            return record
        log.info("forgetting a claim of before the last reboot", extra=fields_of(record))
        self._actions.specs.remove(uid)
        self._actions.ledger.close(uid)
        return None

    def complete(self, record: Record, gpus: Gpus, check: Check = wait_on) -> Record:
        """A prepared claim with all that it needs, what is missing made now."""
        with self._actions.hold(record.plan.gpus(), check) as held:
            self._actions.adopt(record, gpus, held)
            whole = self._actions.all_done(record.plan, gpus, held)
            completed = self._actions.carry_out(record, gpus, held)
        if not whole:
            text = "devices of this claim were gone, after a reload of the driver or a reset, and were made again"
            log.warning("%s", text, extra=fields_of(record))
            self._on_event(record.plan.claim, "DevicesRestored", f"{text}; containers have to be restarted to use them")
        return completed

    def rebuild(self, claim: ClaimRef, gpus: Gpus) -> None:
        """A record in place of the damaged one: the claim is prepared if its CDI spec is there with all its devices,
        and otherwise undone. Raises one of EXPECTED_ERRORS. The caller holds the claim's lock.
        """
        ledger, specs = self._actions.ledger, self._actions.specs
        if ledger.get(claim.uid) is None:
            if not claim.name:
                return  # kubelet will tell it when it asks
            if self._planner.is_gone(claim):
                specs.remove(claim.uid)
                ledger.settle_damaged(claim.uid, gone=True)
                return
            self._rebuild(Record(State.PREPARING, self._boot_id, self._planner.plan(claim, gpus)), gpus)
        ledger.settle_damaged(claim.uid)

    def _rebuild(self, record: Record, gpus: Gpus) -> None:
        claim, devices = record.plan.claim, {one.name for one in record.plan.devices}
        with self._actions.hold(record.plan.gpus(), not_long()) as held:
            self._actions.ledger.open(record)
            if self._actions.specs.devices(claim.uid) >= devices:
                self._actions.carry_out(record, gpus, held)
                self._on_event(claim, "RecordRebuilt", "the damaged record of this claim was made anew")
            else:
                self._actions.undo_held(record, gpus, held)

    def _try(self, claim: ClaimRef, gpus: Gpus, bring_about: Callable[[ClaimRef, Gpus], None]) -> None:
        with self._claims.try_hold(claim.uid) as free:
            if not free:  # by a call of kubelet, or by another process
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
        log.info("undoing what was broken off", extra=fields_of(record))
        with self._actions.hold(record.plan.gpus(), not_long()) as held:
            self._actions.adopt(record, gpus, held)
            self._actions.undo_held(record, gpus, held)

    def _failed(self, claim: ClaimRef, error: Exception) -> None:
        if self.look_after(claim, str(error)):
            extra = {"claim": str(claim), "claim_uid": claim.uid}
            log.error("claim could not be recovered, which will be tried again: %s", error, extra=extra)
            self._on_event(claim, "RecoveryFailed", f"the claim's devices are not as they should be: {error}")
