# SPDX-License-Identifier: Apache-2.0
"""Events, which users see with `kubectl describe` of an object.

These are Events of the core group (v1), as kubelet and kube-controller-manager write them. An Event of events.k8s.io/v1
is stored as the same object, but its `count` and `lastTimestamp` are empty, and dashboards, exporters and `kubectl get
events --sort-by=.lastTimestamp` read these fields.

Recording never waits and never fails, because a thread writes the Events. If the same thing happens again, only the
count of the existing Event is increased, after a pause. As in client-go, the number of different Events of an object is
limited and slowly refilled. An Event that cannot be written is dropped and logged.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ...process.containment import Count, contained, nobody
from ...process.worker import Worker
from ..kinds import EVENTS
from .client import JSON, ApiClient
from .errors import ApiError, ConflictError, NotFoundError

log = logging.getLogger(__name__)


_LONGEST_MESSAGE: Final = 1024  # bytes; the API's limit
_LONGEST_NAME: Final = 253 - 17  # bytes of the object's name, so that a dot and 16 digits can be added
_NO_NAMESPACE: Final = "default"  # the namespace for Events about objects without a namespace


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object that an Event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Limits of writing. Times are in seconds. Burst and refill are those of client-go."""

    repeat: float = 60.0  # between two writes of one Event
    burst: int = 25  # different Events about one object at once
    refill: float = 300.0  # until one more is allowed
    waiting: int = 100  # Events that are not yet written
    remembered: int = 1000  # known Events and objects
    forget: float = 3600.0  # after which the API server deletes an Event (--event-ttl)


@dataclass(frozen=True, slots=True)
class _What:
    """What happened. If two of these are equal, it is the same Event again."""

    about: ObjectReference
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _Entry:
    """An Event, and what of it was written to the API server."""

    what: _What
    name: str
    first: datetime
    last: datetime
    seen_at: float
    count: int = 0
    made: bool = False  # whether the API server has the Event
    written: int = 0  # the last count that was sent
    due: float = 0.0  # the earliest time of the next write

    @property
    def waits(self) -> bool:
        """Whether a count has not been written yet."""
        return self.count > self.written


class EventRecorder:
    """Writes Events of `component`, which runs on the node or in the pod `instance`. Thread-safe.

    `count` counts Events that could not be written because of an unexpected error.
    """

    def __init__(
        self,
        client: ApiClient,
        component: str,
        instance: str = "",
        limits: EventLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        count: Count = nobody,
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._limits = limits or EventLimits()
        self._clock = clock
        self._count = count
        self._lock = threading.Lock()
        self._entries: OrderedDict[_What, _Entry] = OrderedDict()
        self._budgets: OrderedDict[ObjectReference, _Budget] = OrderedDict()
        self._worker = Worker("write events", self._round)
        self._started = self._closed = False
        self._problem = ""

    def normal(self, about: ObjectReference, reason: str, message: str) -> None:
        """Record normal behaviour. `reason` is a CamelCase word."""
        self._record(_What(about, "Normal", reason, _cut(message)))

    def warning(self, about: ObjectReference, reason: str, message: str) -> None:
        """Record a problem for the user. The message tells what is wrong, where, and how to repair it."""
        self._record(_What(about, "Warning", reason, _cut(message)))

    def close(self, seconds: float = 2.0) -> None:
        """Write the remaining Events, within `seconds`. Then no more Events are accepted."""
        with self._lock:
            self._closed = True
        self._worker.finish(seconds)

    def _record(self, what: _What) -> None:
        with self._lock:
            if self._closed:
                return
            entry = self._entry(what)
            if entry is None:
                return
            entry.count += 1
            entry.last, entry.seen_at = datetime.now(UTC), self._clock()
            self._entries.move_to_end(what)
            if not self._started:  # most processes record nothing for a long time
                self._worker.start()
                self._started = True
        self._worker.wake()

    def _entry(self, what: _What) -> _Entry | None:
        """The existing or a new entry. None if the limits allow no more."""
        now = self._clock()
        entry = self._entries.get(what)
        if entry is not None and now - entry.seen_at < self._limits.forget:
            return entry
        if sum(entry.waits for entry in self._entries.values()) >= self._limits.waiting:
            self._drop(what, f"{self._limits.waiting} others wait already")
            return None
        budget = self._budgets.setdefault(what.about, _Budget(float(self._limits.burst), now))
        self._budgets.move_to_end(what.about)
        _trim(self._budgets, self._limits.remembered)
        if not budget.take(self._limits, now):
            self._drop(what, "there were too many about this object")
            return None
        name = f"{what.about.name[:_LONGEST_NAME].rstrip('.-')}.{time.time_ns():x}"
        today = datetime.now(UTC)
        entry = self._entries[what] = _Entry(what, name, today, today, now)
        _trim(self._entries, self._limits.remembered)
        return entry

    def _drop(self, what: _What, why: str) -> None:
        log.info("event about %s dropped, %s", what.about, why, extra={"reason": what.reason, "event": what.message})

    # The thread that writes

    def _round(self) -> float | None:
        """Write the entry that is due first. Returns the seconds until the next one is due, or None."""
        entry = self._next()
        if entry is None:
            return None
        left = entry.due - self._clock()
        if left > 0 and not self._closed:
            return left
        count, last = entry.count, entry.last
        try:
            with contained("write event", entry.what.about, self._count, expected=(ApiError,)):
                self._write(entry, count, last)
                entry.made, self._problem = True, ""
        except ApiError as error:
            self._drop(entry.what, "it cannot be written")
            if str(error) != self._problem:
                log.warning("events cannot be written: %s", error)
            self._problem = str(error)
            if self._closed:
                self._worker.stop()  # the next writes would fail too, and the process is about to end
        with self._lock:
            entry.written, entry.due = count, self._clock() + self._limits.repeat
        return 0.0

    def _next(self) -> _Entry | None:
        with self._lock:
            waiting = [entry for entry in self._entries.values() if entry.waits]
            return min(waiting, key=lambda event: event.due, default=None)

    def _write(self, entry: _Entry, count: int, last: datetime) -> None:
        namespace = entry.what.about.namespace or _NO_NAMESPACE
        if entry.made:
            change = {"count": count, "lastTimestamp": _stamp(last)}
            try:
                self._client.patch(EVENTS, entry.name, change, namespace=namespace)
                return
            except NotFoundError:
                log.debug("event %s was deleted by the API server and is created again", entry.name)
        try:
            self._client.create(EVENTS, self._event(entry, count, last, namespace), namespace)
        except ConflictError:
            log.debug("event %s was created by a request whose answer was lost", entry.name)

    def _event(self, entry: _Entry, count: int, last: datetime, namespace: str) -> JSON:
        what = entry.what
        return {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {"name": entry.name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": what.about.api_version,
                "kind": what.about.kind,
                "name": what.about.name,
                "namespace": what.about.namespace,
                "uid": what.about.uid,
            },
            "type": what.type,
            "reason": what.reason,
            "message": what.message,
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "firstTimestamp": _stamp(entry.first),
            "lastTimestamp": _stamp(last),
            "count": count,
        }


@dataclass(slots=True)
class _Budget:
    """The number of different Events that an object may still have."""

    left: float
    at: float

    def take(self, limits: EventLimits, now: float) -> bool:
        """Use one up, if there is one."""
        self.left = min(self.left + (now - self.at) / limits.refill, float(limits.burst))
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


def _trim(known: OrderedDict[Any, Any], most: int) -> None:
    while len(known) > most:
        known.popitem(last=False)


def _cut(message: str) -> str:
    data = message.encode()
    if len(data) <= _LONGEST_MESSAGE:
        return message
    return data[: _LONGEST_MESSAGE - 3].decode(errors="ignore") + "…"


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
