# SPDX-License-Identifier: Apache-2.0
"""Writes the `status.devices` of claims, and Events about problems that users can correct.

One thread does this a moment later, so that no call of kubelet waits for it, and a claim that is prepared and
unprepared at once needs no request. A write that fails is repeated for a while and then dropped, because claims work
without it. If the API server does not accept device statuses (a disabled feature gate, or missing permissions),
writing stops for some time, which is logged once.
"""

import contextlib
import enum
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from dra_driver.kube.api import ApiError, ConflictError, Connection, NotFoundError, StatusError
from dra_driver.kube.api.events import EventRecorder, ObjectReference
from dra_driver.kube.resource.codec import V1
from dra_driver.process.backoff import Backoff
from dra_driver.process.worker import Worker

from ..claims.boundary import SILENT, ClaimBoundary, EventHook
from ..claims.model import ClaimRef
from .devicestatus import (
    JSON,
    PREPARE_FAILED,
    READY,
    ClaimStatusApi,
    DeviceKey,
    Outcome,
    Part,
    StatusIgnoredError,
    Trouble,
    wanted_entries,
)
from .storedclaim import StoredClaim

log = logging.getLogger(__name__)

PART: Final = Part("dra-kubeletplugin", frozenset({READY}), data=True)
"""Device statuses are the condition `Ready` and the data."""

_READS: Final = 4
"""How often a claim is read for one write, because several drivers may write to it at the same time."""
_DELAY: Final = 0.25
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_TRIES: Final = 8
_LIMIT: Final = 1024
_OFF_SECONDS: Final = 600.0
_POD_GROUP_VERSION: Final = "scheduling.k8s.io/v1beta1"

DeviceData = Callable[[str], Mapping[DeviceKey, JSON]]
"""Returns the details of each device of a claim, by the claim's UID. Empty if the claim is no longer prepared."""


class _News(enum.Enum):
    PREPARED = enum.auto()
    FAILED = enum.auto()
    UNPREPARED = enum.auto()


@dataclass(slots=True)
class _Task:
    """A report about a claim. `known` tells that an earlier process may have reported the claim."""

    ref: ClaimRef
    news: _News
    due: float
    known: bool
    error: str = ""
    tell_users: bool = False
    failures: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE, _LONGEST_PAUSE))


class ClaimReports:
    """The queue of reports and its thread. There is one report for each claim, and a newer one replaces it. `pool` is
    this node's.

    `trouble` returns, by the UID of a claim, what happened to it after it was prepared. Without `status`, only Events
    are sent; without `events`, only statuses. `wrote` is called with the result of each status: `written`, `unchanged`,
    `failed` or `dropped`. `delay` is in seconds.
    """

    def __init__(  # noqa: PLR0913  # optional parts, by keyword
        self,
        connection: Connection,
        pool: str,
        data: DeviceData,
        *,
        trouble: Callable[[str], Trouble | None] = lambda _: None,
        status: bool = True,
        events: EventRecorder | None = None,
        wrote: Callable[[str], None] = lambda _: None,
        boundary: ClaimBoundary = SILENT,
        delay: float = _DELAY,
        limit: int = _LIMIT,
    ) -> None:
        self._api = ClaimStatusApi(connection)
        self._pool = pool
        self._data = data
        self._trouble = trouble
        self._status = status
        self._events = events
        self._wrote = wrote
        self._boundary = boundary
        self._delay = delay
        self._limit = limit
        self._lock = threading.Lock()
        self._tasks: dict[str, _Task] = {}
        self._told: OrderedDict[str, None] = OrderedDict()  # UIDs of reported claims, newest last
        self._off_until = 0.0
        self._off_reason = ""
        self._worker = Worker("report claims", self._round)

    # Reports. These methods return at once.

    def prepared(self, ref: ClaimRef, *, known: bool = False) -> None:
        """The claim's devices are ready. `known` tells that they already were before this process started."""
        if self._status:
            self._put(_Task(ref, _News.PREPARED, self._soon(), known))

    def failed(self, ref: ClaimRef, error: str, *, tell_users: bool) -> None:
        """The claim could not be prepared. `tell_users` tells that users can correct the problem."""
        if self._status or (tell_users and self._events is not None):
            self._put(_Task(ref, _News.FAILED, self._soon(), False, error, tell_users))

    def unprepared(self, ref: ClaimRef) -> None:
        """The claim has nothing left on the node."""
        if self._status:
            self._put(_Task(ref, _News.UNPREPARED, self._soon(), True))

    def waiting(self) -> int:
        """The number of claims with a waiting report."""
        with self._lock:
            return len(self._tasks)

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def stop(self, seconds: float) -> None:
        """Send the remaining reports, each once and within `seconds`, and end."""
        self._worker.finish(seconds)

    # The queue

    def _soon(self) -> float:
        return time.monotonic() + self._delay

    def _put(self, task: _Task) -> None:
        uid = task.ref.uid
        with self._lock:
            older = self._tasks.pop(uid, None)
            if older is not None and uid not in self._told:
                task.known = older.known
                if task.news is _News.UNPREPARED and not task.known:
                    return  # the server never got a report about the claim, and needs none now
            if len(self._tasks) >= self._limit:
                dropped = self._tasks.pop(next(iter(self._tasks)))
                self._give_up(dropped, "too many claims are waiting", "dropped")
            self._tasks[uid] = task
        self._worker.wake(self._delay)

    def _round(self) -> float | None:
        """Send the report that is due first. Returns the seconds until the next one is due, or None."""
        task = self._take()
        if task is not None:
            with self._boundary.around("report claim", task.ref, partial(self._failed, task)):
                try:
                    self._tell_in_turn(task)
                except ApiError as error:
                    self._failed(task, error)
            self._ended(task)
        return self._seconds_until_next()

    def _ended(self, task: _Task) -> None:
        """Forget an unprepared claim, whatever the result of its report, unless it is tried again."""
        with self._lock:
            if task.news is _News.UNPREPARED and self._tasks.get(task.ref.uid) is not task:
                self._told.pop(task.ref.uid, None)

    def _take(self) -> _Task | None:
        """Take the report that is due first out of the queue. At the end, all are due."""
        with self._lock:
            task = min(self._tasks.values(), key=lambda task: task.due, default=None)
            if task is None or (task.due > time.monotonic() and not self._worker.is_finishing):
                return None
            return self._tasks.pop(task.ref.uid)

    def _seconds_until_next(self) -> float | None:
        with self._lock:
            due = min((task.due for task in self._tasks.values()), default=None)
        if due is None:
            return None
        return 0.0 if self._worker.is_finishing else max(0.0, due - time.monotonic())

    def _failed(self, task: _Task, error: Exception) -> None:
        if isinstance(error, NotFoundError):
            self._forget(task.ref.uid)  # the claim was deleted with its status
            return
        if isinstance(error, StatusIgnoredError) or (isinstance(error, StatusError) and error.status == 403):
            self._turn_off(str(error))
            return
        task.failures += 1
        if not _may_pass(error) or task.failures >= _TRIES or self._worker.is_finishing:
            self._give_up(task, str(error), "failed")
            return
        log.debug("the status of a claim could not be written: %s", error, extra=_fields(task.ref))
        task.due = time.monotonic() + task.backoff.pause()
        with self._lock:
            self._tasks.setdefault(task.ref.uid, task)  # unless there is a newer report

    def _give_up(self, task: _Task, why: str, result: str) -> None:
        log.warning("the status of a claim is not written: %s", why, extra=_fields(task.ref))
        self._wrote(result)

    def _turn_off(self, reason: str) -> None:
        if reason != self._off_reason:
            log.warning("device statuses of claims are not written for now: %s", reason)
        self._off_reason = reason
        self._off_until = time.monotonic() + _OFF_SECONDS
        self._wrote("failed")

    # Sending

    def _tell_in_turn(self, task: _Task) -> None:
        """Read and write the claim, and do so again if it was changed in between."""
        for _ in range(_READS - 1):
            with contextlib.suppress(ConflictError):
                return self._tell(task)
        return self._tell(task)

    def _tell(self, task: _Task) -> None:
        wanted = self._status and time.monotonic() >= self._off_until
        if not (wanted or task.tell_users):
            return
        stored = self._api.read(task.ref)
        if stored.uid != task.ref.uid:
            self._forget(task.ref.uid)
            return
        if task.tell_users:
            self._warn_users(stored.view(), task.ref, task.error)
            task.tell_users = False  # even if the status must be tried again
        if wanted:
            self._write(stored, task)

    def _write(self, stored: StoredClaim, task: _Task) -> None:
        outcome = self._outcome(task)
        if outcome is not None:
            self._remember(task.ref.uid)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = wanted_entries(stored.view(), self._pool, outcome, now)
        if found is None:
            self._wrote("unchanged")
            return
        self._api.write(stored, task.ref, self._pool, found, PART)
        self._wrote("written")
        log.debug("device status is written", extra={**_fields(task.ref), "entries": len(found)})

    def _remember(self, uid: str) -> None:
        """Note that the claim was reported. The number of claims that are never unprepared is limited."""
        with self._lock:
            self._told[uid] = None
            self._told.move_to_end(uid)
            if len(self._told) > self._limit:
                self._told.popitem(last=False)

    def _forget(self, uid: str) -> None:
        with self._lock:
            self._told.pop(uid, None)

    def _outcome(self, task: _Task) -> Outcome | None:
        match task.news:
            case _News.PREPARED:
                ready, data = f"ready on node {self._pool}", self._data(task.ref.uid)
                trouble = self._trouble(task.ref.uid)
                if trouble is None:
                    return Outcome(True, ready, data)
                text = f"{ready}; {trouble.message}" if trouble.ready else trouble.message
                return Outcome(trouble.ready, text, data, trouble.reason)
            case _News.FAILED:
                return Outcome(False, task.error)
        return None

    def _warn_users(self, claim: JSON, ref: ClaimRef, error: str) -> None:
        """Write an Event for the claim, and one for each pod or PodGroup that waits for the claim."""
        if self._events is None:
            return
        message = f"ResourceClaim {ref.name} cannot be prepared on node {self._pool}: {error}"
        users = (claim.get("status") or {}).get("reservedFor") or ()
        about = [ObjectReference(claim["apiVersion"], claim["kind"], ref.name, ref.namespace, ref.uid)]
        about += [
            ObjectReference("v1", "Pod", user["name"], ref.namespace, user["uid"])
            for user in users
            if user.get("resource") == "pods" and not user.get("apiGroup")
        ]
        about += [
            ObjectReference(_POD_GROUP_VERSION, "PodGroup", user["name"], ref.namespace, user["uid"])
            for user in users
            if (user.get("apiGroup"), user.get("resource")) == ("scheduling.k8s.io", "podgroups")
        ]
        for reference in about:
            self._events.warning(reference, PREPARE_FAILED, message)


def claim_events(events: EventRecorder, count: Callable[[str], None]) -> EventHook:
    """Sends Events about claims that no call of kubelet caused. `count` is called with the reason."""

    def told(claim: ClaimRef, reason: str, message: str) -> None:
        count(reason)
        if claim.name:  # otherwise only the UID of the claim is known
            about = ObjectReference(V1.api_version, "ResourceClaim", claim.name, claim.namespace, claim.uid)
            events.warning(about, reason, message)

    return told


def _may_pass(error: Exception) -> bool:
    """Whether another attempt may succeed: the server is unavailable or busy, the claim has changed, or the error is
    unknown.
    """
    if not isinstance(error, StatusError):
        return True
    return isinstance(error, ConflictError) or error.status == 429 or error.status >= 500


def _fields(ref: ClaimRef) -> dict[str, object]:
    return {"claim": str(ref), "claim_uid": ref.uid}
