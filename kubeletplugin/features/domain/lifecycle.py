# SPDX-License-Identifier: Apache-2.0
"""The life of a claim for a channel or a daemon: prepare, unprepare, recovery, leftovers.

The rules are those of claims with GPUs: a claim is recorded before it has any effect; each call can be repeated; the
locks hold between the processes of a rolling update. There is one difference. A channel waits for the daemon of its
domain, whose own claim is prepared by another call at the same time. So a waiting prepare holds no lock. It looks at
the daemon's report, and at its record: an unprepare, by any process, deletes the record, and so ends the waiting. The
record stays while kubelet repeats its call, so that the node stays in the domain.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dra_driver.domains.daemon.report import read_report
from dra_driver.domains.names import daemon_name
from dra_driver.process.boot import boot_time
from dra_driver.process.containment import contained

from ...claims.answers import PreparedDevice
from ...claims.boundary import EXPECTED_ERRORS, SILENT, ClaimBoundary
from ...claims.cache import RecordCache
from ...claims.call import KUBELET_SECONDS, OWN_WORK, Call
from ...claims.files import RecordFiles
from ...claims.locks import FileRanges, Held, KeyedLocks
from ...claims.model import ClaimRef, State
from ...claims.reader import is_gone
from ...claims.sweep import GONE, AbsentClaims
from ...errors import PrepareError, StoppedError
from .folder import DomainFolder
from .placing import NodeImex
from .plan import DomainPlan, DomainPlanner
from .records import FORMAT, DomainRecord
from .specs import DomainSpecs, domain_cdi_names

log = logging.getLogger(__name__)

_RECORDS_LOCK = "all records"


@dataclass(frozen=True, slots=True)
class DomainTimes:
    """Times in seconds. `wait`: how long a channel waits for its daemon; kubelet gives up after 45 s. `look`: the
    interval of looking for its report. `grace`: how long a claim must be gone before its remains are removed. `sweep`:
    the interval of looking for such claims.
    """

    wait: float = 40.0
    look: float = 0.2
    grace: float = 300.0
    sweep: float = 600.0


class DomainClaims:
    """Prepares and unprepares claims. `boot_id` changes with every boot of the node. `namespace` is that of the
    driver's own objects, for messages. `boundary` contains unexpected errors with one claim, and reports events.
    """

    def __init__(
        self,
        *,
        folder: DomainFolder,
        boot_id: str,
        planner: DomainPlanner,
        node: NodeImex,
        specs: DomainSpecs,
        namespace: str,
        boundary: ClaimBoundary = SILENT,
        settings: DomainTimes = DomainTimes(),
    ) -> None:
        self._folder = folder
        self._boot_id = boot_id
        self._planner = planner
        self._node = node
        self._specs = specs
        self._namespace = namespace
        self._boundary = boundary
        self._settings = settings
        self._files = RecordFiles(folder.records, FORMAT)
        self._records = RecordCache(self._files, lambda claim, text: boundary.on_event(claim, "RecordDamaged", text))
        self._ranges = FileRanges(folder.path / "locks")
        self._locks = KeyedLocks(self._ranges)
        self._absent = AbsentClaims(lambda ref: is_gone(planner.fetch, ref), settings.grace, boundary)
        self._ending = threading.Event()

    # kubelet's calls

    def prepare(self, ref: ClaimRef, call: Call = OWN_WORK) -> list[PreparedDevice]:
        """Prepare the claim's devices. Raises one of EXPECTED_ERRORS."""
        call = self._stoppable(ref, call)
        deadline = time.monotonic() + self._settings.wait
        with self._held(ref, call):
            record = self._current(ref.uid)
            if record is not None and record.state is State.PREPARED:
                self._specs.ensure(record.plan)
                return _answer(record.plan)
            plan = self._node.place(self._planned(ref))
            call.check()
            self._begin(plan)
        if plan.joins:
            self._wait_for_daemon(plan, deadline, call)
        with self._held(ref, call):
            self._require_recorded(plan)
            self._specs.write(plan)
            self._records.save(DomainRecord(State.PREPARED, self._boot_id, plan))
        log.info("prepared", extra=_fields(plan))
        return _answer(plan)

    def unprepare(self, ref: ClaimRef, call: Call = OWN_WORK) -> None:
        """Undo everything of a claim, also if it was never prepared. Needs no NVIDIA driver and no API server. Raises
        one of EXPECTED_ERRORS.
        """
        with self._held(ref, self._stoppable(ref, call)):
            self._current(ref.uid)
            self._undo(ref.uid)

    # The parts of a prepare

    def _planned(self, ref: ClaimRef) -> DomainPlan:
        """The plan. If the claim or its domain is gone or invalid, what an earlier call has recorded is undone."""
        try:
            return self._planner.plan(ref)
        except PrepareError:
            self._undo(ref.uid)
            raise

    def _begin(self, plan: DomainPlan) -> None:
        """Record the claim, and follow the records. Raises PrepareError if the node belongs to another domain."""
        with self._locks.hold(_RECORDS_LOCK):
            self._require_free(plan)
            self._records.save(DomainRecord(State.PREPARING, self._boot_id, plan))
            self._follow()

    def _require_free(self, plan: DomainPlan) -> None:
        """Raises PrepareError if another domain, or another daemon, has the node."""
        others = [one.plan for one in self._records.all() if one.plan.claim.uid != plan.claim.uid]
        if plan.joins:
            taken = [one for one in others if one.joins and one.domain != plan.domain]
            if taken:
                claims = ", ".join(sorted(str(one.claim) for one in taken))
                raise PrepareError(
                    f"the node is in {taken[0].domain_text} at the moment, because of {claims}; a node can be in one"
                    f" ComputeDomain at a time, and kubelet tries again for {plan.domain_text}"
                )
        if plan.is_daemon and (running := [one for one in others if one.is_daemon]):
            raise PrepareError(
                f"the node still has the daemon of {running[0].domain_text} (claim {running[0].claim}); a node can have"
                " one, and kubelet tries again"
            )

    def _wait_for_daemon(self, plan: DomainPlan, deadline: float, call: Call) -> None:
        """Wait until the daemon of the plan's domain is ready on this node. Raises PrepareError with the reason if it
        is not ready in time.
        """
        folder = self._folder.of_domain(plan.domain)
        while True:
            report = read_report(folder)
            if report is not None and report.ready:
                return
            call.check()
            self._require_recorded(plan)
            if time.monotonic() >= deadline:
                break
            self._ending.wait(self._settings.look)
        about = f"the IMEX daemon of {plan.domain_text} on this node"
        look = f"kubectl describe computedomain -n {plan.domain_namespace} {plan.domain_name}"
        if report is None:
            raise PrepareError(
                f"{about} does not run yet: look at the pods {daemon_name(plan.domain)}-* in namespace"
                f" {self._namespace}, and at the conditions of the domain ({look}); kubelet tries again"
            )
        problem = report.message or f"its state is {report.state or 'unknown'}"
        raise PrepareError(f"{about} is not ready: {problem} ({look} shows all nodes); kubelet tries again")

    def _require_recorded(self, plan: DomainPlan) -> None:
        """Raises StoppedError if the claim was unprepared, or another call has changed its plan."""
        record = self._current(plan.claim.uid)
        if record is None or record.plan != plan:
            raise StoppedError(f"claim {plan.claim} was unprepared or changed while it was being prepared")

    # Both

    def _undo(self, uid: str) -> None:
        """Remove everything of a claim."""
        self._specs.files.remove(uid)
        with self._locks.hold(_RECORDS_LOCK):
            self._records.close(uid)
            self._records.forget_damaged(uid)
            self._follow()

    def _follow(self) -> None:
        """Make folders and the mark what the records say. The caller holds the lock of all records."""
        self._folder.follow(self._records.all(), keep_folders=bool(self._records.unreadable()))

    def _current(self, uid: str) -> DomainRecord | None:
        """The claim's record. One from before the last boot is none: nothing is left of it."""
        record = self._records.get(uid)
        return record if record is not None and record.boot_id == self._boot_id else None

    def _held(self, ref: ClaimRef, call: Call) -> AbstractContextManager[Held]:
        """A context with the lock of a claim, which one thread of one process can have."""
        return self._locks.hold(f"claim {ref.uid}", call=call.within(KUBELET_SECONDS, f"claim {ref}"))

    def _stoppable(self, ref: ClaimRef, call: Call) -> Call:
        """The same call, which also stops when the plugin ends."""

        def check() -> None:
            if self._ending.is_set():
                raise StoppedError(f"claim {ref} is continued by kubelet's next call, because the plugin ends")

        return call.also(check)

    # The process

    def begin(self) -> None:
        """Prepare for calls, once after the start: what was left before the last boot is removed, and the mark is made
        again. Raises OSError.
        """
        self._files.make()
        if self._ranges.join():  # otherwise another process may be writing these files
            with contained("tidy up", self._folder.path, self._boundary.count, expected=(OSError,)):
                self._specs.files.remove_leftovers()
                self._folder.remove_half_written()
                for uid in self._files.half_written():
                    self._files.discard_half_written(uid)
        booted_ns = int(boot_time() * 1e9)
        with self._locks.hold(_RECORDS_LOCK):
            for record in self._records.all():
                if record.boot_id != self._boot_id:
                    self._specs.files.remove(record.plan.claim.uid)
                    self._records.close(record.plan.claim.uid)
            unreadable = self._records.unreadable()
            for uid, stamp in self._files.stamps().items():
                if uid in unreadable and stamp.changed_ns < booted_ns:
                    self._records.close(uid)
            self._follow()

    def end(self) -> None:
        """End the waiting of all calls."""
        self._ending.set()

    def attend(self) -> float:
        """Restore what is missing, and remove leftovers. Returns the seconds until the next call."""
        with contained("look after ComputeDomains", self._folder.path, self._boundary.count):
            try:
                self._restore()
                self._sweep()
            except OSError as error:
                log.error("the claims of ComputeDomains cannot be checked: %s", error)
        return min(self._settings.grace, self._settings.sweep) if self._absent.suspicious else self._settings.sweep

    def _restore(self) -> None:
        """Write missing specs of prepared claims, and records in the place of damaged ones."""
        for record in self._records.all():
            if record.state is State.PREPARED and record.boot_id == self._boot_id:
                self._try(record.plan.claim, "recover claim", lambda claim: self._ensure(claim.uid))
        for uid, claim in self._records.damaged().items():
            if claim.name and self._files.stamp(uid) is None:
                self._try(claim, "recover claim", self._rebuild)

    def _ensure(self, uid: str) -> None:
        record = self._current(uid)
        if record is not None and record.state is State.PREPARED:
            self._specs.ensure(record.plan)

    def _rebuild(self, claim: ClaimRef) -> None:
        """Record a claim again whose record was damaged. It is prepared if its spec exists."""
        plan = self._node.place(self._planned(claim))
        self._begin(plan)
        if self._specs.exists(claim.uid) or not domain_cdi_names(plan)[0]:
            self._records.save(DomainRecord(State.PREPARED, self._boot_id, plan))
        self._boundary.on_event(claim, "RecordRebuilt", "the damaged record of this claim was made anew")

    def _sweep(self) -> None:
        """Remove claims that are gone from the API server, and specs without a record."""
        claims = [record.plan.claim for record in self._records.all()]
        for claim in self._absent.gone(claims):
            log.warning("%s", GONE, extra={"claim": str(claim), "claim_uid": claim.uid})
            if self._try(claim, "sweep claim", lambda gone: self._undo(gone.uid)):
                self._absent.forget(claim)
                self._boundary.on_event(claim, "LeftoverRemoved", GONE)
        known = {claim.uid for claim in claims} | self._records.unreadable()
        for uid in self._specs.files.identifiers():
            if uid not in known:
                self._try(ClaimRef("", "", uid), "sweep claim", self._remove_stray)
        with self._locks.hold(_RECORDS_LOCK):
            self._follow()

    def _remove_stray(self, claim: ClaimRef) -> None:
        if self._files.stamp(claim.uid) is None:
            log.warning("removing the CDI spec of an unknown claim", extra={"claim_uid": claim.uid})
            self._specs.files.remove(claim.uid)

    def _try(self, claim: ClaimRef, work: str, action: Callable[[ClaimRef], None]) -> bool:
        """Do something for a claim unless a call of kubelet is at work on it. Returns whether it was done."""
        with self._boundary.around(work, claim), self._locks.try_hold(f"claim {claim.uid}") as free:
            if not free:
                return False
            try:
                action(claim)
            except EXPECTED_ERRORS as error:
                log.warning("%s failed; trying again later: %s", work, error, extra={"claim_uid": claim.uid})
            else:
                return True
        return False


def _answer(plan: DomainPlan) -> list[PreparedDevice]:
    return [
        PreparedDevice(one.request, plan.pool, one.name, names, one.share_id)
        for one, names in zip(plan.devices, domain_cdi_names(plan), strict=True)
    ]


def _fields(plan: DomainPlan) -> dict[str, str]:
    """The fields of a log line about a claim."""
    return {"claim": str(plan.claim), "claim_uid": plan.claim.uid, "domain": plan.domain}
