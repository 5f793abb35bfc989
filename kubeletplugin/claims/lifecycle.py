# SPDX-License-Identifier: Apache-2.0
"""The life of a claim on this node: prepare, repeated prepare, unprepare.

Preparing a prepared claim and unpreparing an unprepared one do nothing. A prepare that fails is undone. If kubelet no
longer waits for a prepare, it stops after the current step, and kubelet's next call continues it. Only one thread of
one process works on a claim at a time, so the second of two calls finds the result of the first. An unprepare stops a
running prepare. Claims on different GPUs proceed in parallel.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dra_driver.gpu.calls import STEP_SECONDS, HungError
from dra_driver.gpu.fabric import FabricError
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.policy import NodePolicy
from dra_driver.process.containment import contained

from ..containers.specs import ClaimSpecs
from ..errors import NoDriverError, RecordError
from ..features.fabric.partitions import FabricPartitions
from ..features.mps.services import MpsServices
from ..kinds.gpu_settings import TimeSlices
from ..kinds.targets import ClaimRef
from ..kinds.vfio.binder import VfioBinder
from ..node.gpus import GpuAccess, Gpus
from ..node.marks import Marks
from ..plans.plan import Plan
from ..plans.planning import FetchClaim, Planner
from ..plans.resources import ResourceOfClass, no_resource
from ..records.files import State
from ..records.format import Record, Records
from ..records.ledger import Ledger
from ..records.locks import FileRanges, Held, KeyedLocks
from ..steps import BUSY_SECONDS, Tools, VfioStep
from .actions import (
    EXPECTED_ERRORS,
    KUBELET_SECONDS,
    Actions,
    Check,
    StepHook,
    StoppedError,
    always,
    fields_of,
    still_wanted,
    within,
)
from .boundary import UNHEARD, ClaimBoundary, unheard
from .leftovers import Leftovers
from .pauses import Pauses
from .recovery import Recovery
from .unrestored import Unrestored

log = logging.getLogger(__name__)

_OUT_OF_REACH = frozenset({Return.GPU_IS_LOST, Return.DRIVER_NOT_LOADED, Return.UNINITIALIZED})
"""Codes of GPUs whose instances can currently neither be destroyed nor used."""
_FABRIC_SECONDS = 5.0
_PLANS = 3


@dataclass(frozen=True, slots=True)
class ClaimTimes:
    """Times in seconds. `step`: the time limit of one step on a GPU. `busy`: how long a step waits for a process to
    leave a MIG device. `grace`: how long a claim must be gone before its devices are removed. `sweep`: the interval of
    looking for such claims. `retry`: the pause before failed work is tried again. `retake`: the first pause before a
    GPU is taken again for a claim that failed afterwards. `restore`: the first pause before it is tried again to undo a
    change of a GPU that no claim needs any more.
    """

    step: float = STEP_SECONDS
    busy: float = BUSY_SECONDS
    grace: float = 300.0
    sweep: float = 600.0
    retry: float = 10.0
    retake: float = 15.0
    restore: float = 5.0


class Lifecycle:
    """Prepares and unprepares claims. `pool` is this node's pool, and `boot_id` changes with every boot of the node.

    `time_slices` sets time-slice intervals, and `vfio` binds GPUs for virtual machines. `policy` returns the node's
    current policy. With `mps_shared_memory`, clients of MPS get the /dev/shm of their daemon. `resource_of` reads the
    extended resources of DeviceClasses. `boundary` contains unexpected errors with one claim and reports events for
    users. `on_step` is called for every step. Locks and marks are beside the folder of `records`.
    """

    def __init__(
        self,
        *,
        pool: str,
        boot_id: str,
        fetch: FetchClaim,
        records: Records,
        specs: ClaimSpecs,
        access: GpuAccess,
        time_slices: TimeSlices,
        vfio: VfioBinder,
        policy: Callable[[], NodePolicy] = NodePolicy,
        mps_shared_memory: bool = True,
        resource_of: ResourceOfClass = no_resource,
        boundary: ClaimBoundary = UNHEARD,
        on_step: StepHook = unheard,
        settings: ClaimTimes = ClaimTimes(),
    ) -> None:
        folder = records.folder.parent
        files = FileRanges(folder / "locks")
        marks = Marks(folder)
        access.calls.listen(lambda _key: access.wake())
        self._pool = pool
        self._records = records
        self._specs = specs
        self._access = access
        self._settings = settings
        self._ledger = Ledger(records, lambda claim, text: boundary.on_event(claim, "RecordDamaged", text))
        self._claims = KeyedLocks(files, "claim ")
        fabric, mps = FabricPartitions(access.fabric, marks.fabric), MpsServices(marks.mps)
        self._planner = Planner(
            pool,
            fetch,
            policy,
            mps_shared_memory,
            taken=marks.vfio,
            marked=marks.fabric,
            switches=access.fabric.read,
            resource_of=resource_of,
        )
        self._actions = Actions(
            boot_id=boot_id,
            planner=self._planner,
            ledger=self._ledger,
            specs=specs,
            marks=marks,
            claims=self._claims,
            gpu_locks=KeyedLocks(files, "gpu "),
            boundary=boundary,
            calls=access.calls,
            fabric=fabric,
            unrestored=Unrestored(access.wake, settings.restore),
            tools=lambda gpus, going_on: Tools(
                gpus.mig, gpus.compute_modes, time_slices, mps, vfio, fabric, marks, settings.busy, going_on
            ),
            current=access.current,
            step_seconds=settings.step,
            on_step=on_step,
        )
        self._recovery = Recovery(self._actions, settings.retry)
        self._pauses = Pauses(settings.retake)
        self._leftovers = Leftovers(self._actions, self._unprepare_gone, settings.grace)
        self._boundary = boundary
        self._ending: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._next_sweep = 0.0
        if files.join():
            with contained("tidy up", folder, boundary.count, expected=(OSError,)):  # a wrong --cdi-root, for example
                specs.remove_half_written()
            with contained("tidy up", records.folder, boundary.count):
                if not marks.are_of(boot_id):
                    records.drop_unreadable()
        access.attend(self._attend)
        access.attend(self._attend_fabric)

    # kubelet's calls

    def prepare(self, ref: ClaimRef, wanted: Callable[[], bool] = always) -> Plan:
        """Prepare the claim's devices, which are in the returned plan. Raises one of EXPECTED_ERRORS.

        No further step begins after `wanted` returns False, because no caller waits any more.
        """
        check = still_wanted(ref, wanted, lambda: "is being unprepared" if self._ending[ref.uid] else "")
        with self._claims.hold(ref.uid, check=within(KUBELET_SECONDS, f"claim {ref}", check)):
            record = self._recovery.current_record(ref.uid)
            if record is not None and record.state is State.PREPARED:
                return self._prepared(record)
            self._pauses.check(ref.uid)
            with self._reporting():
                plan, gpus = self._planned(ref, check)
                return self._prepare(plan, record, gpus, check)

    def unprepare(self, ref: ClaimRef, wanted: Callable[[], bool] = always) -> None:
        """Undo everything of a claim, also if it was never prepared. Raises one of EXPECTED_ERRORS.

        This never waits for a driver. Without a driver there are no MIG instances either. The record stays until a
        driver is available again, and then all remaining instances are destroyed before any claim is prepared.
        """
        check = still_wanted(ref, wanted)
        waiting = within(KUBELET_SECONDS, f"claim {ref}", check)
        with self._stopping(ref.uid), self._claims.hold(ref.uid, check=waiting):
            record = self._recovery.current_record(ref.uid)
            if record is None:
                self._specs.remove(ref.uid)
                record = self._rebuilt(ref)
                if record is None:
                    self._pauses.end(ref.uid)
                    return
            self._specs.remove(ref.uid)
            if self._actions.leaves_something(record):
                self._unprepare(record, check)
            else:
                self._actions.undo(record, self._access.current, check)
                self._recovery.settled(ref.uid)
            self._ledger.settle_damaged(ref.uid)
            self._pauses.end(ref.uid)

    # After a start of the plugin or of the driver, and from then on

    def recover(self, gpus: Gpus) -> None:
        """Bring the node into the recorded state: interrupted work is undone, and prepared claims are completed. Raises
        NvmlError if the driver disappears meanwhile, or OSError.
        """
        for uid in self._records.half_written():
            with self._claims.try_hold(uid) as free:
                if free:  # its writer no longer runs
                    self._records.discard_half_written(uid)
        self._recovery.recover(gpus)
        self._leftovers.sweep_node(gpus)
        self._next_sweep = 0.0

    def unrestored(self) -> int:
        """The number of changes of GPUs that no claim needs any more, and that could not be undone yet."""
        return self._actions.unrestored.count()

    def _attend(self, gpus: Gpus) -> float:
        """Try failed work again, and look for leftovers regularly. Returns the seconds until the next call."""
        with contained("look after node", self._pool, self._boundary.count):
            return self._attended(gpus)
        return self._settings.retry

    def _attended(self, gpus: Gpus) -> float:
        try:
            self._recovery.retry(gpus)
            self._leftovers.retry(gpus)
            if time.monotonic() >= self._next_sweep:
                self._leftovers.sweep(gpus)
                pause = self._settings.grace if self._leftovers.absent.suspicious else self._settings.sweep
                self._next_sweep = time.monotonic() + min(pause, self._settings.sweep)
        except NvmlError as error:
            self._access.report(error)
        except OSError as error:
            log.error("the claims of this node cannot be checked: %s", error)
            return self._settings.retry
        now, due = time.monotonic(), self._recovery.next_due()
        pauses = [self._next_sweep - now]
        if due is not None:
            pauses.append(max(self._settings.retry, due - now))
        if (due := self._actions.unrestored.next_due()) is not None:
            pauses.append(due - now)
        return max(0.0, min(pauses))

    def _attend_fabric(self, gpus: Gpus) -> float:
        """Restore the partitions of claims after a restart of Fabric Manager."""
        with contained("look after NVSwitches", self._pool, self._boundary.count, expected=(NvmlError, OSError)):
            if self._actions.fabric.was_restarted():
                self._recovery.recover(gpus)
        return _FABRIC_SECONDS

    # Parts of a prepare

    def _planned(self, ref: ClaimRef, check: Check) -> tuple[Plan, Gpus]:
        """The plan, and the GPUs for which it was made. A GPU may be taken for a virtual machine, or come back, while
        the API server is asked for the claim. Then inventory and marks contradict each other, and the claim is planned
        again. Raises StoppedError if that happens too often.
        """
        for _ in range(_PLANS):
            gpus = self._access.current()
            check()
            plan = self._planner.plan(ref, gpus)
            check()
            if gpus.is_current:
                return plan, gpus
        raise StoppedError(f"GPUs of the node came and went while claim {ref} was planned; kubelet tries again")

    def _prepared(self, record: Record) -> Plan:
        """The plan of a prepared claim. kubelet asks again for another pod, or after its restart."""
        uid = record.plan.claim.uid
        if self._recovery.is_unsettled(uid):  # some of its devices are missing
            with self._reporting():
                self._recovery.complete(record, self._access.current())
            self._recovery.settled(uid)
        else:
            self._specs.ensure(record)
        return record.plan

    def _prepare(self, plan: Plan, earlier: Record | None, gpus: Gpus, check: Check) -> Plan:
        """Carry out the plan. An `earlier` attempt with the same plan is continued, and any other one is
        undone first.
        """
        began = time.monotonic()
        self._finish_unprepared(plan, gpus)
        with self._actions.hold({*plan.gpus(), *(earlier.plan.gpus() if earlier else ())}, check) as held:
            if earlier is not None and (earlier.state is State.UNPREPARING or earlier.plan != plan):
                self._actions.undo_held(earlier, gpus, held, check)
                _require_same_gpus(earlier)
                earlier = None
            self._leftovers.restore_for(plan, gpus, held)
            record = earlier or self._actions.begin(plan, gpus, held)
            try:
                record = self._actions.finish(record, gpus, held, check)
            except StoppedError:
                raise  # kubelet's next call continues the claim
            except HungError as error:
                self._recovery.look_after(plan.claim, str(error))
                raise
            except Exception as error:
                self._undo_failed(record, gpus, held, error)
                raise
        self._ledger.settle_damaged(plan.claim.uid)
        self._recovery.settled(plan.claim.uid)
        self._pauses.end(plan.claim.uid)
        log.info("prepared", extra={**fields_of(record), "seconds": round(time.monotonic() - began, 4)})
        return plan

    def _undo_failed(self, record: Record, gpus: Gpus, held: Held, cause: Exception) -> None:
        """Undo a failed prepare. If that fails too, the record stays, and it is tried again."""
        claim = record.plan.claim
        log.warning("prepare failed, undoing it: %s", cause, extra=fields_of(record))
        if self._actions.has_taken_a_gpu(record, gpus):
            self._pauses.begin(claim.uid, cause)
        with self._boundary.around("undo claim", claim, lambda error: self._look_after(claim, error)):
            try:
                self._actions.undo_held(record, gpus, held)
            except EXPECTED_ERRORS as error:
                log.error("undoing a failed prepare failed: %s", error, extra=fields_of(record))
                self._look_after(claim, error)

    def _finish_unprepared(self, plan: Plan, gpus: Gpus) -> None:
        """Destroy what unprepared claims still have on the GPUs of this plan, as far as no process uses it."""
        wanted = set(plan.gpus())
        for record in self._ledger.all():
            if record.state is not State.UNPREPARING or wanted.isdisjoint(record.plan.gpus()):
                continue
            with self._boundary.around("undo claim", record.plan.claim):
                self._finish_one(record.plan.claim.uid, gpus)

    def _finish_one(self, uid: str, gpus: Gpus) -> None:
        with self._claims.try_hold(uid) as free:
            current = self._ledger.get(uid) if free else None
            if current is not None and current.state is State.UNPREPARING:
                try:
                    self._actions.undo(current, lambda: gpus)
                except EXPECTED_ERRORS as error:
                    log.warning("leftovers of a claim cannot be removed yet: %s", error, extra=fields_of(current))

    # Parts of an unprepare

    def _unprepare(self, record: Record, check: Check) -> None:
        """Undo the steps that need a driver. If the GPU is unavailable, this is done later, and kubelet need not wait
        for it.
        """
        record, noted = self._note_unpreparing(record)
        try:
            with self._reporting():
                self._actions.undo(record, self._access.current, check)
        except (HungError, StoppedError) as error:
            self._recovery.look_after(record.plan.claim, str(error))
            raise
        except (NoDriverError, FabricError, NvmlError) as error:
            if not noted or (isinstance(error, NvmlError) and error.code not in _OUT_OF_REACH):
                raise
            log.warning("claim is unprepared, but something is left of it: %s", error, extra=fields_of(record))
            self._look_after(record.plan.claim, error)
        else:
            self._recovery.settled(record.plan.claim.uid)

    def _unprepare_gone(self, ref: ClaimRef) -> None:
        """Undo everything of a claim for which kubelet never calls again. What fails is tried again long before the
        next sweep.
        """
        try:
            self.unprepare(ref)
        except EXPECTED_ERRORS as error:
            self._recovery.look_after(ref, str(error), delayed=True)
            raise

    def _note_unpreparing(self, record: Record) -> tuple[Record, bool]:
        """The record in its new state, and whether it could be written. A full disk must not prevent an unprepare,
        because pods are evicted from a full disk. This process remembers the new state anyway, and kubelet asks again.
        """
        record = replace(record, state=State.UNPREPARING)
        try:
            return self._ledger.save(record), True
        except OSError as error:
            log.warning("unpreparing without a record of it: %s", error, extra=fields_of(record))
            return self._ledger.remember(record), False

    def _rebuilt(self, ref: ClaimRef) -> Record | None:
        """Rebuild the damaged record of a claim, if possible. If not, the claim's leftovers are found when the claim is
        gone. But a record that does not even name its claim cannot wait for that, so it raises RecordError.
        """
        damaged = self._ledger.damaged().get(ref.uid)
        if damaged is not None:
            try:
                with self._boundary.around("recover claim", ref, expected=EXPECTED_ERRORS), self._reporting():
                    self._recovery.rebuild(ref, self._access.current())
            except EXPECTED_ERRORS as error:
                if not damaged.name:
                    text = f"the record of claim {ref} is damaged, and the devices of the claim are unknown yet"
                    raise RecordError(f"{text}: {error}") from error
                log.warning("the devices of the claim are unknown: %s", error, extra={"claim_uid": ref.uid})
        return self._ledger.get(ref.uid)

    # Both

    def _look_after(self, claim: ClaimRef, problem: Exception) -> None:
        """Try again soon, whether kubelet calls again or not."""
        self._recovery.look_after(claim, str(problem))
        self._access.wake()

    @contextlib.contextmanager
    def _stopping(self, uid: str) -> Iterator[None]:
        """Stop a running prepare of the claim."""
        with self._guard:
            self._ending[uid] += 1
        try:
            yield
        finally:
            with self._guard:
                self._ending[uid] -= 1
                if not self._ending[uid]:
                    del self._ending[uid]

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report NVML's errors to the thread that looks for the driver."""
        try:
            yield
        except NvmlError as error:
            self._access.report(error)
            raise


def _require_same_gpus(undone: Record) -> None:
    """Raises StoppedError if NVML must be initialized anew, after an earlier attempt of a claim was undone."""
    if any(isinstance(step, VfioStep) for step in undone.plan.steps):
        raise StoppedError(
            f"an earlier attempt of claim {undone.plan.claim} was undone; kubelet's next call prepares it"
        )
