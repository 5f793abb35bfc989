# SPDX-License-Identifier: Apache-2.0
"""Leader election on a Lease (coordination.k8s.io/v1), with the semantics of client-go's leaderelection package.

A candidate never compares its clock with the holder's. It notes when, by its own clock, it last saw the Lease change,
and takes it over once that is longer ago than the holder said that it lasts. Races are decided by the resource
version. The holder counts from before it sent a renewal that succeeded, and gives up after `renew_deadline`, so that
its work has the rest of `duration` to end before another's may begin. Work that does not end by then costs the
process, as it does one that was frozen for so long.

What differs from client-go: the Lease is released only after the work has ended, a Lease that somebody deleted is
not free before what was last seen of it has run out, and who sees another holder stops at once.
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
from typing import Any

from .client import JSON, ApiClient, Kind
from .errors import ApiError, ConflictError, NotFoundError

log = logging.getLogger(__name__)

LEASES = Kind("coordination.k8s.io/v1", "leases", namespaced=True)

_JITTER = 1.2  # of the retry period, as client-go: candidates that began together do not ask together


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds. `duration` is how long others wait for a silent holder, `renew_deadline` how long the holder itself
    goes on without a renewal, `retry_period` the pause between attempts. Raises ValueError when they do not fit.
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
    """A Lease as last seen, and when by our own clock its spec last changed (in seconds)."""

    lease: JSON = field(default_factory=dict)
    changed_at: float = 0.0

    @property
    def spec(self) -> Mapping[str, Any]:
        """Its spec."""
        return self.lease.get("spec") or {}

    @property
    def holder(self) -> str:
        """Who holds it; empty when it was released or never seen."""
        return str(self.spec.get("holderIdentity") or "")

    def free_for(self, identity: str, now: float, otherwise: float) -> bool:
        """Whether `identity` may take it; a Lease that does not say how long it lasts does for `otherwise` seconds."""
        lasts = float(self.spec.get("leaseDurationSeconds") or otherwise)
        return self.holder in ("", identity) or now >= self.changed_at + lasts


def next_spec(seen: Seen, identity: str, duration: float, today: datetime) -> JSON:
    """The spec by which `identity` takes or renews the Lease."""
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
    """The spec that leaves the Lease to whoever asks next."""
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
    os._exit(75)  # EX_TEMPFAIL: to be started again


class Candidate:
    """One identity's dealings with one Lease, attempt by attempt. Used by one thread at a time."""

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
        """Who held the Lease when it was last seen."""
        return self._seen.holder

    @property
    def leading(self) -> bool:
        """Whether that was us."""
        return self.holder == self._identity

    def attempt(self) -> bool:
        """Try once to take or renew the Lease; whether it is ours now. Raises ApiError."""
        if self.leading:
            with contextlib.suppress(ConflictError, NotFoundError):
                self._write()  # without a look, which would cost a request at every renewal
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
            return False  # somebody was faster, which the next look shows
        return True

    def release(self) -> None:
        """Leave the Lease to others, if it is ours. Raises ApiError."""
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

    `identity` must be one that no other process has, nor had before. The client's requests should take no longer
    than the renew deadline. `changed` is told True and False as this process becomes leader and ceases to be;
    `overdue` ends a process whose work did not end in time.
    """

    def __init__(
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
        self._candidate = Candidate(client, namespace, name, identity, self._timing.duration)
        self._lease = f"{namespace}/{name}"
        self._identity = identity
        self._changed = changed
        self._overdue = overdue
        self._stopped = threading.Event()
        self._stop_work = threading.Event()
        self._problem = ""

    @property
    def holder(self) -> str:
        """Who leads, as last seen; empty before the first look."""
        return self._candidate.holder

    @property
    def problem(self) -> str | None:
        """Why the last attempt to take or renew the Lease did not work; that another holds it is no problem."""
        return self._problem or None

    def stop(self) -> None:
        """Let `run` return as soon as the work has ended, if there is any."""
        self._stopped.set()
        self._stop_work.set()

    def run(self, lead: Callable[[threading.Event], None]) -> None:
        """Contest the Lease until `stop`, and call `lead` on this thread whenever it is ours.

        `lead` must return soon after its event is set, and is called again when the Lease was lost and won back. When
        it returns by itself or raises, the Lease is released and this returns or raises.
        """
        while self._win():
            with self._holding() as stop_work:
                lead(stop_work)
                finished = not stop_work.is_set()
            if finished:
                return

    def _win(self) -> bool:
        """Wait until the Lease is ours; False when stopped before."""
        while not self._stopped.is_set():
            if self._attempt():
                return True
            self._stopped.wait(self._timing.retry_period * random.uniform(1.0, 1.0 + _JITTER))  # noqa: S311
        return False

    @contextlib.contextmanager
    def _holding(self) -> Iterator[threading.Event]:
        """Keep the Lease while the context lasts. The event is set when it is lost, or `stop` was called."""
        stop_work = self._stop_work = threading.Event()
        if self._stopped.is_set():
            stop_work.set()
        ended = threading.Event()
        threads = [
            threading.Thread(target=task, args=(stop_work, ended), name=f"lease-{task.__name__}", daemon=True)
            for task in (self._renew, self._watch)
        ]
        log.info("leading", extra={"lease": self._lease, "identity": self._identity})
        self._changed(True)
        for thread in threads:
            thread.start()
        try:
            yield stop_work
        finally:
            ended.set()
            stop_work.set()
            for thread in threads:
                thread.join()
            self._changed(False)
            self._release()

    def _renew(self, stop_work: threading.Event, ended: threading.Event) -> None:
        """Renew the Lease until the work has ended, also while it is ending."""
        while not ended.wait(self._timing.retry_period):
            if not self._attempt() and self._candidate.holder not in ("", self._identity):
                stop_work.set()

    def _watch(self, stop_work: threading.Event, ended: threading.Event) -> None:
        """Stop the work in time, and the process if that does not end it. Apart from the renewals, since a request
        may hang for longer than the Lease lasts.
        """
        while not stop_work.wait(self._left(self._timing.renew_deadline)):
            if self._left(self._timing.renew_deadline) <= 0:
                log.error("lease %s could not be renewed in time: stopping the work", self._lease)
                stop_work.set()
        while not ended.wait(self._left(self._timing.duration)):
            if self._left(self._timing.duration) <= 0:
                self._overdue(f"lease {self._lease} is lost and the work under it does not end: ending the process")
                return

    def _left(self, seconds: float) -> float:
        """What is left of a time that began with the last renewal."""
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
