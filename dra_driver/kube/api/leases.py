# SPDX-License-Identifier: Apache-2.0
"""Leader election on a Lease (coordination.k8s.io/v1), with the semantics of client-go's leaderelection package.

A candidate never compares its clock with the holder's. It notes the time, by its own clock, when it last saw the Lease
change. It takes the Lease over when that was longer ago than the lease duration. The resource version decides races.
The holder counts from the time before it sent its last successful renewal, and stops its work after `renew_deadline`.
So the work has the rest of `duration` to end before another holder may begin. If the work does not end by then, the
process exits, also if it was frozen for that long.

There are three differences to client-go. The Lease is released only after the work has ended. A deleted Lease is not
free until the last known state has expired. A process that sees another holder stops at once.
"""

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ...process.worker import Worker
from ..kinds import LEASES
from .client import JSON, ApiClient
from .errors import ApiError, ConflictError, NotFoundError

log = logging.getLogger(__name__)


_JITTER = 1.2  # factor of the retry period, as in client-go, so that candidates do not try at the same time


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Times in seconds. `duration` is how long others wait for a silent holder. `renew_deadline` is how long the holder
    continues without a renewal. `retry_period` is the pause between attempts. Raises ValueError if they do not fit
    together.
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if self.duration < 1 or self.duration != int(self.duration):
            raise ValueError(f"the lease duration must be whole seconds, at least 1, not {self.duration:g}")
        if not self.duration > self.renew_deadline:
            raise ValueError(
                f"the lease duration ({self.duration:g} s) must be longer than the renew deadline"
                f" ({self.renew_deadline:g} s)"
            )
        if not self.renew_deadline > self.retry_period * _JITTER or self.retry_period <= 0:
            raise ValueError(
                f"the renew deadline ({self.renew_deadline:g} s) must be longer than {_JITTER} times the retry period"
                f" ({self.retry_period:g} s)"
            )


@dataclass(frozen=True, slots=True)
class Seen:
    """A Lease as last seen, and the time by our clock when its spec last changed (in seconds)."""

    lease: JSON = field(default_factory=dict)
    changed_at: float = 0.0

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec of the Lease."""
        return self.lease.get("spec") or {}

    @property
    def holder(self) -> str:
        """The holder. Empty if the Lease was released or never seen."""
        return str(self.spec.get("holderIdentity") or "")

    def free_for(self, identity: str, now: float, otherwise: float) -> bool:
        """Whether `identity` may take the Lease. `otherwise` is the duration in seconds of a Lease without one."""
        lasts = float(self.spec.get("leaseDurationSeconds") or otherwise)
        return self.holder in ("", identity) or now >= self.changed_at + lasts


def next_spec(seen: Seen, identity: str, duration: float, today: datetime) -> JSON:
    """The spec with which `identity` takes or renews the Lease."""
    stamp = _micro_time(today)
    renewal = seen.holder == identity
    transitions = int(seen.spec.get("leaseTransitions") or 0)
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": int(duration),
        "acquireTime": (seen.spec.get("acquireTime") or stamp) if renewal else stamp,
        "renewTime": stamp,
        "leaseTransitions": transitions if renewal or not seen.spec else transitions + 1,
    }


def released_spec(seen: Seen, today: datetime) -> JSON:
    """The spec with which the Lease is released."""
    stamp = _micro_time(today)
    return {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": stamp,
        "renewTime": stamp,
        "leaseTransitions": int(seen.spec.get("leaseTransitions") or 0),
    }


def _micro_time(today: datetime) -> str:
    return today.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _end_process(why: str) -> None:
    log.critical("%s", why)
    logging.shutdown()
    os._exit(75)  # EX_TEMPFAIL: the process should be started again


class LeaseCandidate:
    """The attempts of one identity to take and renew a Lease. Used by one thread at a time."""

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        name: str,
        identity: str,
        duration: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = duration
        self._clock = clock
        self._seen = Seen()
        self.renewed_at = 0.0

    @property
    def holder(self) -> str:
        """The holder of the Lease when it was last seen."""
        return self._seen.holder

    @property
    def leading(self) -> bool:
        """Whether this identity is the holder."""
        return self.holder == self._identity

    def attempt(self) -> bool:
        """Try once to take or renew the Lease. Returns whether this identity is the holder now. Raises ApiError."""
        if self.leading:
            with contextlib.suppress(ConflictError, NotFoundError):
                self._write()  # without reading, which would cost one more request for each renewal
                return True
        try:
            found = self._client.get(LEASES, self._name, self._namespace)
        except NotFoundError:
            found = None
        if found is not None:
            unchanged = found.get("spec") == self._seen.lease.get("spec")
            self._seen = Seen(found, self._seen.changed_at if unchanged else self._clock())
        if not self._seen.free_for(self._identity, self._clock(), self._duration):
            return False
        try:
            self._write(new=found is None)
        except ConflictError:
            return False  # another candidate was faster; the next attempt will read its Lease
        return True

    def release(self) -> None:
        """Release the Lease if this identity holds it. Raises ApiError."""
        if self.leading:
            spec = released_spec(self._seen, datetime.now(UTC))
            self._seen = Seen(self._client.update(LEASES, {**self._seen.lease, "spec": spec}), self._clock())

    def _write(self, *, new: bool = False) -> None:
        began = self._clock()
        spec = next_spec(self._seen, self._identity, self._duration, datetime.now(UTC))
        if new:
            metadata = {"name": self._name, "namespace": self._namespace}
            lease = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}
            stored = self._client.create(LEASES, lease, self._namespace)
        else:
            stored = self._client.update(LEASES, {**self._seen.lease, "spec": spec})
        self._seen, self.renewed_at = Seen(stored, began), began


class Election:
    """Runs work in at most one of the processes that share a Lease.

    `identity` must be unique among all processes, also earlier ones. The client's requests should have a time limit
    below the renew deadline. `changed` is called with True and False when this process becomes leader and stops being
    leader. `overdue` ends a process whose work did not end in time.
    """

    def __init__(  # noqa: PLR0913  # times of the election, all by keyword
        self,
        client: ApiClient,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming | None = None,
        *,
        changed: Callable[[bool], None] = lambda _leading: None,
        overdue: Callable[[str], None] = _end_process,
    ) -> None:
        self._timing = timing or LeaseTiming()
        self._candidate = LeaseCandidate(client, namespace, name, identity, self._timing.duration)
        self._lease = f"{namespace}/{name}"
        self._identity = identity
        self._changed = changed
        self._overdue = overdue
        self._stopped = threading.Event()
        self._stop_work = threading.Event()
        self._problem = ""

    @property
    def holder(self) -> str:
        """The leader, as last seen. Empty before the first attempt."""
        return self._candidate.holder

    @property
    def problem(self) -> str | None:
        """Why the last attempt to take or renew the Lease failed. None also if another process holds the Lease."""
        return self._problem or None

    def stop(self) -> None:
        """Let `run` return as soon as the work, if any, has ended."""
        self._stopped.set()
        self._stop_work.set()

    def run(self, lead: Callable[[threading.Event], None]) -> None:
        """Try to get the Lease until `stop` is called, and call `lead` on this thread while this process holds it.

        `lead` must return soon after its event is set. It is called again if the Lease is lost and won again. If it
        returns by itself or raises an exception, the Lease is released, and this method returns or raises.
        """
        while self._win():
            with self._holding() as stop_work:
                lead(stop_work)
                finished = not stop_work.is_set()
            if finished:
                return

    def _win(self) -> bool:
        """Wait until this process holds the Lease. False if stopped before."""
        while not self._stopped.is_set():
            if self._attempt():
                return True
            self._stopped.wait(self._timing.retry_period * random.uniform(1.0, 1.0 + _JITTER))  # noqa: S311
        return False

    @contextlib.contextmanager
    def _holding(self) -> Iterator[threading.Event]:
        """Keep the Lease during the context. The event is set when the Lease is lost, or `stop` was called."""
        stop_work = self._stop_work = threading.Event()
        if self._stopped.is_set():
            stop_work.set()
        renewal = Worker("renew lease", partial(self._renew, stop_work), interval=self._timing.retry_period)
        watch = Worker("watch lease", partial(self._watch, stop_work))
        log.info("leading", extra={"lease": self._lease, "identity": self._identity})
        self._changed(True)
        renewal.start(after=self._timing.retry_period)
        watch.start()
        try:
            yield stop_work
        finally:
            stop_work.set()
            watch.stop()
            renewal.stop(self._timing.duration)  # longer than a request, so that no renewal follows the release
            self._changed(False)
            self._release()

    def _renew(self, stop_work: threading.Event) -> None:
        """Renew the Lease, also while the work is ending. Stop the work if another process has the Lease."""
        if not self._attempt() and self._candidate.holder not in ("", self._identity):
            stop_work.set()

    def _watch(self, stop_work: threading.Event) -> float | None:
        """Stop the work in time, and the process if the work does not end. This worker is separate from the renewals,
        because a request may hang for longer than the Lease lasts. Returns the seconds until it has to act.
        """
        if not stop_work.is_set():
            left = self._left(self._timing.renew_deadline)
            if left > 0:
                return left
            log.error("lease %s could not be renewed in time: stopping the work", self._lease)
            stop_work.set()
        left = self._left(self._timing.duration)
        if left > 0:
            return left
        self._overdue(f"lease {self._lease} is lost and the work under it does not end: ending the process")
        return None

    def _left(self, seconds: float) -> float:
        """The remaining part of a time in seconds since the last renewal."""
        return max(self._candidate.renewed_at + seconds - time.monotonic(), 0.0)

    def _attempt(self) -> bool:
        before = self._candidate.holder
        try:
            ours, problem = self._candidate.attempt(), ""
        except ApiError as error:
            ours, problem = False, str(error)
        if problem and problem != self._problem:
            log.warning("lease %s: %s", self._lease, problem)
        self._problem = problem
        holder = self._candidate.holder
        if holder not in (before, self._identity):
            log.info("lease %s is held by %s", self._lease, holder or "nobody")
        return ours

    def _release(self) -> None:
        try:
            self._candidate.release()
        except ApiError as error:
            log.info("lease %s could not be released and expires by itself: %s", self._lease, error)
