# SPDX-License-Identifier: Apache-2.0
"""The one life of a claim on this node: prepare, repeated prepare, unprepare.

A claim is planned, its plan is recorded, its steps change the node, its CDI spec is written, and the result is
recorded. Preparing a prepared claim and unpreparing an unprepared one do nothing.

- After an error, everything is undone. If that fails too, the record stays, and it is tried again.
- If kubelet no longer waits, the work stops after the current step, and kubelet's next call continues it.
- If a call hangs, its GPU stays locked until the call returns, and then the claim is looked after.
- If the process is killed, the next one undoes what is not recorded as prepared.
- An unprepare stops a running prepare. A step that waits holds no lock, and a claim that was unprepared during the
  wait, also by another process, is not prepared.

Only one thread of one process works on a claim at a time, so the second of two calls finds the result of the first.
Claims on different GPUs proceed in parallel.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from dra_driver.gpu.fabric import FabricError
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.threads import HungError
from dra_driver.process.containment import contained

from ..errors import NoDriverError, ObsoleteClaimError, PrepareError, StoppedError
from .boot import marks_are_of, note_boot
from .boundary import EXPECTED_ERRORS, SILENT, ClaimBoundary
from .call import OWN_WORK, Call
from .changes import Changes, WaitsError, fields_of
from .files import RecordFiles
from .locks import FileRanges, Held, KeyedLocks
from .model import ClaimRef, Plan, Record, State, Step
from .pauses import Pauses
from .planner import Planner
from .problems import Problems
from .records import Records
from .recovery import Recovery
from .specs import ClaimSpecs
from .store import ClaimStore
from .sweep import Sweep
from .unrestored import Unrestored

log = logging.getLogger(__name__)

_OUT_OF_REACH: Final = frozenset({Return.GPU_IS_LOST, Return.DRIVER_NOT_LOADED, Return.UNINITIALIZED})
"""Codes of GPUs on which nothing can be undone at the moment, and that nothing can use."""


@dataclass(frozen=True, slots=True)
class ClaimTimes:
    """Times in seconds. `wait`: how long a prepare waits for what a step needs; kubelet gives up after 45 s. `look`:
    the interval of looking for it. `grace`: how long a claim must be gone before its devices are removed. `sweep`: the
    interval of looking for such claims. `retry`: the pause before failed work is tried again. `retake`: the first pause
    before a claim that disturbs others is tried again. `restore`: the first pause before it is tried again to undo a
    change that no claim needs any more.
    """

    wait: float = 40.0
    look: float = 0.2
    grace: float = 300.0
    sweep: float = 600.0
    retry: float = 10.0
    retake: float = 15.0
    restore: float = 5.0


class Engine:
    """Prepares and unprepares the claims that `planner` plans, whose records are in `files`. `boundary` contains
    unexpected errors with one claim, and tells the outside. Locks are in the driver's folder on the node, in which the
    folder of `files` is.

    Making an Engine has no effect. `begin` starts its work beside kubelet's calls.
    """

    def __init__(
        self,
        planner: Planner,
        files: RecordFiles[Record],
        specs: ClaimSpecs,
        boundary: ClaimBoundary = SILENT,
        times: ClaimTimes = ClaimTimes(),
    ) -> None:
        self.node = node = planner.node
        self._driver = planner.driver
        self._boundary = boundary
        self._times = times
        self.files = files
        self._folder = files.folder.parent
        self._ranges = FileRanges(self._folder / "locks")
        self.records = Records(self.files, lambda claim, text: boundary.on_event(claim, "RecordDamaged", text))
        self.specs = specs
        self.unrestored = Unrestored(self._look_soon, times.restore)
        self._store = ClaimStore(self.records, specs, KeyedLocks(self._ranges, "claim "), node.boot_id)
        self._changes = Changes(node, self.records, KeyedLocks(self._ranges, "gpu "), self.unrestored, boundary)
        self._planner = planner
        self._problems = Problems(times.retry)
        self._recovery = Recovery(self._store, self._changes, self._planner, self._problems, boundary)
        self._sweep = Sweep(self._store, self._changes, self._planner, self.unrestored, boundary, times.grace)
        self._pauses = Pauses(times.retake)
        self._unpreparing: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._next_sweep = 0.0

    # kubelet's calls

    def prepare(self, ref: ClaimRef, call: Call = OWN_WORK) -> Record:
        """Prepare the claim's devices, which are in the returned record. Raises one of EXPECTED_ERRORS."""
        call = call.also(lambda: self._require_not_unpreparing(ref))
        deadline = time.monotonic() + self._times.wait
        opened: Record | None = None
        while True:
            with self._store.hold(ref, call):
                record = self._store.current(ref.uid)
                if opened is not None and (record is None or record.plan != opened.plan):
                    raise _changed_meanwhile(ref)
                if record is not None and record.state is State.PREPARED:
                    return self._prepared_again(record)
                self._pauses.check(ref.uid)
                with self._reporting():
                    plan = self._plan(ref, record, call)
                    if record is not None and (record.state is State.UNPREPARING or record.plan != plan):
                        self._undo(record, call)
                        continue  # undoing may have changed what a plan depends on
                    self._finish_unprepared(plan)
                    with self._changes.hold(plan.keys, call) as held:
                        self._sweep.restore_for(plan, held)
                        opened = record or self._open(plan, held)
                        try:
                            return self._carry_out(opened, held, call)
                        except WaitsError as waits:
                            waiting = waits.step
                        except StoppedError:
                            raise  # kubelet's next call continues the claim
                        except HungError as error:
                            self._problems.add(ref, str(error))
                            raise
                        except Exception as error:
                            self._undo_failed(opened, held, error)
                            raise
            self._wait(waiting, opened, deadline, call)

    def unprepare(self, ref: ClaimRef, call: Call = OWN_WORK) -> None:
        """Undo everything of a claim, also if it was never prepared. Raises one of EXPECTED_ERRORS.

        This never waits for a driver. Without a driver there are no MIG instances either. The record stays until a
        driver is available again, and then everything that is left is undone before any claim is prepared.
        """
        with self._stopping(ref.uid), self._store.hold(ref, call):
            record = self._store.current(ref.uid)
            self._store.specs.remove(ref.uid)
            if record is not None:
                self._unprepare(record, call)
            if self.records.forget_damaged(ref.uid) and record is None:
                self._sweep.sweep_node()  # only the marks tell what the claim had
            self._pauses.end(ref.uid)

    # The parts of a prepare

    def _plan(self, ref: ClaimRef, record: Record | None, call: Call) -> Plan:
        """Plan the claim. What an earlier call did for a claim that can no longer be prepared is undone."""
        try:
            return self._planner.plan(ref, call)
        except ObsoleteClaimError:
            if record is not None:
                self._undo(record, call)
            raise

    def _open(self, plan: Plan, held: Held) -> Record:
        """Record a new claim before anything changes, at once as prepared if all that it needs is there already. Raises
        PrepareError if another claim has one of its devices.
        """
        ready = all(step.QUICK for step in plan.steps) and self._changes.are_done(plan.steps, held)
        return self.records.open(Record(State.PREPARED if ready else State.PREPARING, self.node.boot_id, plan))

    def _carry_out(self, opened: Record, held: Held, call: Call) -> Record:
        """Change the node, write the spec, and record the result."""
        began = time.monotonic()
        is_done = opened.state is State.PREPARED
        found = opened.found if is_done else self._changes.do(opened.plan, held, call)
        prepared = self._store.write_spec_and_record(opened, found)
        self._problems.remove(opened.plan.claim.uid)
        self._pauses.end(opened.plan.claim.uid)
        log.info("prepared", extra={**fields_of(opened.plan), "seconds": round(time.monotonic() - began, 4)})
        return prepared

    def _prepared_again(self, record: Record) -> Record:
        """kubelet asks again for another pod, or after its restart."""
        uid = record.plan.claim.uid
        if uid not in self._problems:
            self._store.specs.ensure(record)
            return record
        with self._reporting():  # some of its devices are missing
            record = self._recovery.complete(record, OWN_WORK)
        self._problems.remove(uid)
        return record

    def _wait(self, step: Step, opened: Record, deadline: float, call: Call) -> None:
        """Wait without locks until what the step needs is there. At the deadline (monotonic seconds), raises
        PrepareError with the missing condition, and undoes nothing, because kubelet repeats its call.
        """
        while missing := step.waits_for(self.node):
            record = self._store.current(opened.plan.claim.uid)
            if record is None or record.plan != opened.plan or record.state is State.UNPREPARING:
                raise _changed_meanwhile(opened.plan.claim)
            if time.monotonic() >= deadline:
                raise PrepareError(missing)
            call.pause(self._times.look)

    def _undo_failed(self, record: Record, held: Held, cause: Exception) -> None:
        """Undo a failed prepare. If that fails too, the record stays, and it is tried again."""
        claim = record.plan.claim
        log.info("undoing a failed prepare", extra=fields_of(record.plan))  # the caller logs the cause
        if self._changes.are_disruptive(record.plan):
            self._pauses.begin(claim.uid, cause)
        with self._boundary.around("undo claim", claim, lambda error: self._look_after(claim, error)):
            try:
                self._undo_held(record, held, OWN_WORK)
            except EXPECTED_ERRORS as error:
                log.error("undoing a failed prepare failed: %s", error, extra=fields_of(record.plan))
                self._look_after(claim, error)

    def _finish_unprepared(self, plan: Plan) -> None:
        """Undo what unprepared claims still have on the GPUs of this plan, as far as no process uses it. Of a claim
        that another process has unprepared, this process may learn only when the claim of this plan is recorded.
        """
        for record in self.records.known():
            if record.state is State.UNPREPARING and not plan.keys.isdisjoint(record.plan.keys):
                with self._boundary.around("undo claim", record.plan.claim):
                    self._finish_one(record.plan.claim.uid)

    def _finish_one(self, uid: str) -> None:
        with self._store.try_hold(uid) as free:
            current = self.records.get(uid) if free else None
            if current is not None and current.state is State.UNPREPARING:
                try:
                    self._undo(current, OWN_WORK)
                except EXPECTED_ERRORS as error:
                    log.warning("leftovers of a claim cannot be removed yet: %s", error, extra=fields_of(current.plan))

    # The parts of an unprepare

    def _unprepare(self, record: Record, call: Call) -> None:
        """Undo the steps of a claim. If its GPU is unavailable, this is done later, without kubelet waiting."""
        claim = record.plan.claim
        if not self._changes.leaves_something(record.plan):
            self._store.close(record)
            self._problems.remove(claim.uid)
            return
        record, noted = self._note_unpreparing(record)
        try:
            with self._reporting():
                self._undo(record, call)
        except (HungError, StoppedError) as error:
            self._problems.add(claim, str(error))
            raise
        except (NoDriverError, FabricError, NvmlError) as error:
            if not noted or (isinstance(error, NvmlError) and error.code not in _OUT_OF_REACH):
                raise
            log.warning("claim is unprepared, but something is left of it: %s", error, extra=fields_of(record.plan))
            self._look_after(claim, error)
        else:
            self._problems.remove(claim.uid)

    def _note_unpreparing(self, record: Record) -> tuple[Record, bool]:
        """The record in its new state, and whether it could be written. A full disk must not prevent an unprepare,
        because pods are evicted from a full disk. This process remembers the new state anyway, and kubelet asks again.
        """
        record = replace(record, state=State.UNPREPARING)
        try:
            return self.records.save(record), True
        except OSError as error:
            log.warning("unpreparing without a record of it: %s", error, extra=fields_of(record.plan))
            return self.records.remember(record), False

    def _undo(self, record: Record, call: Call) -> None:
        """Undo everything of a claim, and then remove its record."""
        with self._changes.hold(record.plan.keys, call) as held:
            self._undo_held(record, held, call)

    def _undo_held(self, record: Record, held: Held, call: Call) -> None:
        self._store.specs.remove(record.plan.claim.uid)
        self._changes.undo(record, held, call)
        self._store.close(record)

    # Beside kubelet's calls

    def begin(self) -> None:
        """Tidy up after an earlier process, and look after the node from now on. Before the driver is looked for.
        Raises OSError.
        """
        self.files.make()
        if self._ranges.join():  # otherwise another process may be writing these files
            with contained("tidy up", self._folder, self._boundary.count, expected=(OSError,)):  # a wrong --cdi-root
                self._store.specs.remove_half_written()
            with contained("tidy up", self.files.folder, self._boundary.count):
                if self._is_first_of_boot():
                    self.files.drop_unreadable()
        self.node.threads.listen(lambda _key: self._look_soon())
        self.node.access.attend(self._attend)
        for step in self._driver.steps:
            if step.LOOK_SECONDS is not None:
                self.node.access.attend(partial(self._attend_lost, step, step.LOOK_SECONDS))

    def recover(self) -> None:
        """Bring the node into the recorded state: interrupted work is undone, and prepared claims are completed. Raises
        NvmlError if the driver disappears during the recovery, or OSError.
        """
        for uid in self.files.half_written():
            with self._store.try_hold(uid) as free:
                if free:  # its writer no longer runs
                    self.files.discard_half_written(uid)
        if self._is_first_of_boot():
            for step in self._driver.steps:
                step.forget(self.node)
        note_boot(self._folder, self.node.boot_id)
        for step in self._driver.steps:
            step.was_lost(self.node)  # what is recovered now is no loss later
        self._recovery.recover()
        self._sweep.sweep_node()
        self._next_sweep = 0.0

    def _is_first_of_boot(self) -> bool:
        """Whether all marks are of an earlier boot. The file `boot-id` tells, and if it is damaged, so does a record of
        this boot, because marks of earlier boots were removed before it was written.
        """
        boot_id = self.node.boot_id
        if marks_are_of(self._folder, boot_id):
            return False
        records, _ = self.files.readable()
        return all(record.boot_id != boot_id for record in records)

    def _attend(self) -> float:
        """Try failed work again, and look for leftovers regularly. Returns the seconds until the next call."""
        with contained("look after node", self.node.name, self._boundary.count):
            return self._attended()
        return self._times.retry

    def _attended(self) -> float:
        try:
            if self._recovery.retry():
                self._sweep.sweep_node()
            self._sweep.retry()
            if time.monotonic() >= self._next_sweep:
                self._recovery.restore_specs()
                self._sweep.sweep(self._unprepare_gone)
                pause = self._times.grace if self._sweep.absent.suspicious else self._times.sweep
                self._next_sweep = time.monotonic() + min(pause, self._times.sweep)
        except NvmlError as error:
            self.node.access.report(error)
        except OSError as error:
            log.error("the claims of this node cannot be checked: %s", error)
            return self._times.retry
        now, due = time.monotonic(), self._problems.next_due()
        pauses = [self._next_sweep - now]
        if due is not None:
            pauses.append(max(self._times.retry, due - now))
        if (due := self.unrestored.next_due()) is not None:
            pauses.append(due - now)
        return max(0.0, min(pauses))

    def _attend_lost(self, step: type[Step], seconds: float) -> float:
        """Recover all claims if changes of this class were undone by something else."""
        with contained("look after lost steps", step.TAG, self._boundary.count):
            try:
                if step.was_lost(self.node):
                    self.recover()
            except NvmlError as error:
                self.node.access.report(error)
            except OSError as error:
                log.error("the claims of this node cannot be checked: %s", error)
        return seconds

    def _unprepare_gone(self, ref: ClaimRef) -> None:
        """Undo everything of a claim for which kubelet never calls again. What fails is tried again long before the
        next sweep.
        """
        try:
            self.unprepare(ref)
        except EXPECTED_ERRORS as error:
            self._problems.add(ref, str(error), delayed=True)
            raise

    def _look_after(self, claim: ClaimRef, problem: Exception) -> None:
        """Try again soon, whether kubelet calls again or not."""
        self._problems.add(claim, str(problem))
        self._look_soon()

    def _look_soon(self) -> None:
        self.node.access.wake()

    # The calls of one claim

    def _require_not_unpreparing(self, ref: ClaimRef) -> None:
        if ref.uid in self._unpreparing:
            raise StoppedError(f"claim {ref} is being unprepared")

    @contextlib.contextmanager
    def _stopping(self, uid: str) -> Iterator[None]:
        """Stop a running prepare of the claim."""
        with self._guard:
            self._unpreparing[uid] += 1
        try:
            yield
        finally:
            with self._guard:
                self._unpreparing[uid] -= 1
                if not self._unpreparing[uid]:
                    del self._unpreparing[uid]

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report NVML's errors to the thread that looks for the driver."""
        try:
            yield
        except NvmlError as error:
            self.node.access.report(error)
            raise


def _changed_meanwhile(claim: ClaimRef) -> StoppedError:
    return StoppedError(f"claim {claim} was unprepared or changed while it was being prepared")
