# SPDX-License-Identifier: Apache-2.0
"""Keeps the stored slices, writes slices one by one, and decides when a slice may be written again.

A slice that fails does not delay the others. Events (the node changed, another client edited a slice) only start a
comparison of slices, but do not allow a write. Otherwise a server that modifies every write would be written to without
end, because each write is an event. A slice is sent at once if it was not yet sent in its present form. The same slice
is sent again after pauses that double.
"""

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from dra_driver.kube.api import ApiClient, ApiError, ConflictError, Kind, NotFoundError, StatusError
from dra_driver.kube.api.client import JSON
from dra_driver.kube.api.features import dropped
from dra_driver.kube.resource import ObjectMeta, ResourcePool, ResourceSlice
from dra_driver.kube.resource.codec import Dialect, decode_slice, encode_slice
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.kube.resource.validation import slice_problems
from dra_driver.process.backoff import Backoff
from dra_driver.process.containment import Count, contained

from .reconcile import Tried, Writes, as_sent, describe_difference, same_content, without_times

log = logging.getLogger(__name__)

_WHOLE_SERVER = frozenset((401, 404, 429, 502, 503, 504))
"""Errors that requests about other slices would get too."""


class StoredSlices:
    """The stored slices by object name, from JSON of one API version. Calls `on_change` when another client changed a
    slice. Thread-safe, but only one thread writes slices.

    A watch and the answers to this process's own writes report the slices. The newer version counts. A watch lags
    behind recent writes, so with the watch alone everything would be written twice.
    """

    def __init__(self, dialect: Dialect, on_change: Callable[[], None]) -> None:
        self._dialect = dialect
        self._on_change = on_change
        self._lock = threading.Lock()
        self._slices: dict[str, ResourceSlice] = {}
        self._writing = ""
        self._seen_meanwhile = 0  # the version that the watch reported for the slice that is being written
        self.listed = threading.Event()

    def by_name(self) -> dict[str, ResourceSlice]:
        """A copy of the known slices."""
        with self._lock:
            return dict(self._slices)

    def replace(self, values: Iterable[JSON]) -> None:
        """Replace all slices after a list."""
        slices = [self._decode(value) for value in values]
        with self._lock:
            self._slices = {slice_.metadata.name: slice_ for slice_ in slices}
        self._on_change()
        self.listed.set()

    def event(self, kind: str, value: JSON) -> None:
        """Handle an event of the watch: one slice was ADDED, MODIFIED or DELETED."""
        seen = self._decode(value)
        name = seen.metadata.name
        with self._lock:
            known = self._slices.get(name)
            if known is not None and _version(known) >= _version(seen):
                return  # our own write, or an older one
            if kind == "DELETED":
                self._slices.pop(name, None)
            else:
                self._slices[name] = seen
            if name == self._writing:
                self._seen_meanwhile = _version(seen)
                return  # possibly our own write, which its answer will show
        self._on_change()

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """A context for the write of one slice. An event of the watch during the write counts as a change only if
        `wrote` is not called, or is called with an older version.
        """
        self._writing = name
        try:
            yield
        finally:
            with self._lock:
                overtaken, self._seen_meanwhile, self._writing = self._seen_meanwhile, 0, ""
            if overtaken:
                self._on_change()

    def wrote(self, answer: JSON) -> ResourceSlice:
        """Store the server's answer to our create or update of the slice that is being written."""
        stored = decode_slice(answer, self._dialect, strict=False)
        with self._lock:
            if self._seen_meanwhile <= _version(stored):
                self._slices[stored.metadata.name] = stored
                self._seen_meanwhile = 0
        return stored

    def deleted(self, name: str) -> None:
        """Remove the slice that is being written, because we deleted it."""
        with self._lock:
            self._slices.pop(name, None)
            self._seen_meanwhile = 0

    def _decode(self, value: JSON) -> ResourceSlice:
        """The slice. If it cannot be read, a slice without content, which differs from every other slice."""
        try:
            return decode_slice(value, self._dialect, strict=False)
        except Exception:  # one unreadable slice must not affect the others
            meta = value["metadata"]
            log.exception("slice %s cannot be read: it will be replaced", meta["name"])
            known = ObjectMeta(meta["name"], uid=meta["uid"], resource_version=meta["resourceVersion"])
            return ResourceSlice(known, "", ResourcePool("", 0, 0))


def _version(slice_: ResourceSlice) -> int:
    """The resource version as a number. Versions of one collection are ordered (guaranteed since Kubernetes 1.35)."""
    return int(slice_.metadata.resource_version or 0)


class Why(enum.StrEnum):
    """Why the API server does not store a slice as it should be."""

    CHANGED = "changed"  # the server stored something else, or somebody edits the slice again and again
    REFUSED = "refused"  # the server answered with an error
    FAILED = "failed"  # this program failed
    INVALID = "invalid"  # it breaks a rule of the API, so it was not sent


@dataclass(frozen=True, slots=True)
class SliceProblem:
    """Why a slice is not stored as it should be, for logs and readiness."""

    why: Why
    text: str


@dataclass(slots=True)
class _Attempt:
    sent: ResourceSlice | None  # None: deleted
    backoff: Backoff
    due: float  # when the slice may be sent again, by `clock`
    problem: SliceProblem | None


class Attempts:
    """The last attempt for each slice, by object name. Pauses are in seconds, from `first` to `longest`. If a slice
    needed no attempt for `longest` after its pause, the next pause is `first` again.
    """

    def __init__(self, first: float, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first = first
        self._longest = longest
        self._clock = clock
        self._attempts: dict[str, _Attempt] = {}

    def in_vain(self, desired: Iterable[ResourceSlice], stored: Mapping[str, ResourceSlice]) -> Tried:
        """The slices that were sent as they should be, or deleted, without success. Attempts with another content than
        the slice should have now are forgotten.
        """
        wanted: dict[str, ResourceSlice | None] = dict.fromkeys(stored)
        wanted.update((slice_.metadata.name, slice_) for slice_ in desired)
        now = self._clock()
        self._attempts = {
            name: attempt
            for name, attempt in self._attempts.items()
            if name in wanted and _same(attempt.sent, wanted[name]) and now < attempt.due + self._longest
        }
        vain = {
            name: attempt.due
            for name, attempt in self._attempts.items()
            if not _achieved(attempt.sent, stored.get(name))
        }
        waiting = frozenset(name for name, due in vain.items() if now < due)
        return Tried(frozenset(vain) - waiting, waiting)

    def note(self, name: str, sent: ResourceSlice | None, problem: SliceProblem | None) -> float:
        """Note that slice `name` was sent, or deleted (None). Returns the seconds until it may be tried again."""
        known = self._attempts.get(name)
        same = known is not None and _same(known.sent, sent)
        backoff = known.backoff if known is not None and same else Backoff(self._first, self._longest)
        pause = backoff.pause()
        self._attempts[name] = _Attempt(sent, backoff, self._clock() + pause, problem)
        return pause

    def problem(self, name: str) -> SliceProblem | None:
        """The problem of the last attempt. None if the server stored the slice as it was sent."""
        attempt = self._attempts.get(name)
        return attempt.problem if attempt is not None else None

    def seconds_until(self, names: Iterable[str]) -> float | None:
        """The seconds until the first of these slices may be tried again. None if there is none."""
        due = [attempt.due for name in names if (attempt := self._attempts.get(name)) is not None]
        return max(min(due) - self._clock(), 0.0) if due else None


def _same(slice_: ResourceSlice | None, other: ResourceSlice | None) -> bool:
    """Whether both attempts have the same content, except the times of taints, and the same size of the pool."""
    if slice_ is None or other is None:
        return slice_ is other
    return slice_.pool.resource_slice_count == other.pool.resource_slice_count and same_content(
        without_times(slice_), without_times(other)
    )


def _achieved(sent: ResourceSlice | None, stored: ResourceSlice | None) -> bool:
    if sent is None or stored is None:
        return sent is stored
    return as_sent(sent, stored)


@dataclass(slots=True)
class Written:
    """The result of some writes. `failures` is the number of writes without success."""

    failures: int = 0
    conflict: bool = False
    """Another client wrote a slice, and the watch has not reported it yet."""
    dropped: frozenset[str] = frozenset()
    """Flags of SliceFeatures whose fields were missing in an answer."""


class SliceWriter:
    """Sends slices to one API server, and records the results in `stored` and `attempts`. `unexpected` counts
    unexpected errors with one slice.
    """

    def __init__(
        self,
        client: ApiClient,
        target: tuple[Kind, Dialect],
        stored: StoredSlices,
        attempts: Attempts,
        unexpected: Count,
    ) -> None:
        self._client = client
        self._kind, self._dialect = target
        self._stored = stored
        self._attempts = attempts
        self._unexpected = unexpected

    def write(self, writes: Writes, features: SliceFeatures) -> Written:
        """Carry out the writes, for a server with these features. Raises ApiError if all other writes would
        fail too.
        """
        began = time.monotonic()
        written = Written()
        for slice_ in writes.deletes:
            self._try(slice_.metadata.name, None, partial(self._delete, slice_), written)
        for slice_ in (*writes.updates, *writes.creates):
            self._try(slice_.metadata.name, slice_, partial(self._send, slice_, features, written), written)
        log.info(
            "published slices" if not written.failures else "published some slices",
            extra={
                "slices_created": len(writes.creates),
                "slices_updated": len(writes.updates),
                "slices_deleted": len(writes.deletes),
                "failures": written.failures,
                "devices": sum(len(slice_.devices) for slice_ in writes.updates + writes.creates),
                "seconds": round(time.monotonic() - began, 3),
            },
        )
        return written

    def _try(
        self, name: str, sent: ResourceSlice | None, act: Callable[[], SliceProblem | None], written: Written
    ) -> None:
        """Carry out one write. A failure does not affect the other slices."""
        problem: SliceProblem | None = SliceProblem(
            Why.FAILED, "an unexpected error occurred, see the log of dra-controller"
        )
        with contained("publish slice", name, self._unexpected, expected=(ApiError,)), self._stored.writing(name):
            problem = self._answered(act, written)
        pause = self._attempts.note(name, sent, problem)
        if problem is not None:
            written.failures += 1
            log.warning("slice %s: %s", name, problem.text, extra={"retry_seconds": round(pause, 1)})

    def _answered(self, act: Callable[[], SliceProblem | None], written: Written) -> SliceProblem | None:
        try:
            return act()
        except ConflictError as error:
            written.conflict = True
            return SliceProblem(Why.REFUSED, str(error))
        except StatusError as error:
            if error.status in _WHOLE_SERVER:
                raise
            return SliceProblem(Why.REFUSED, str(error))

    def _send(self, slice_: ResourceSlice, features: SliceFeatures, written: Written) -> SliceProblem | None:
        broken = slice_problems(slice_, features)
        for problem in broken:
            log.error("slice %s breaks a rule of the API: %s", slice_.metadata.name, problem)
        if broken:
            return SliceProblem(Why.INVALID, f"it is not sent, because it breaks a rule of the API: {broken[0]}")
        value = encode_slice(slice_, self._dialect)
        if not slice_.metadata.resource_version:
            answer = self._client.create(self._kind, value)
        else:
            try:
                answer = self._client.update(self._kind, value)
            except NotFoundError as error:
                written.conflict = True  # somebody deleted it
                return SliceProblem(Why.REFUSED, str(error))
        stored = self._stored.wrote(answer)
        if as_sent(slice_, stored):
            return None
        written.dropped |= dropped(slice_, stored)
        difference = describe_difference(slice_, stored, self._dialect)
        return SliceProblem(Why.CHANGED, f"the API server changed {difference}; a mutating webhook may do that")

    def _delete(self, slice_: ResourceSlice) -> SliceProblem | None:
        try:
            self._client.delete(self._kind, slice_.metadata.name, uid=slice_.metadata.uid)
        except NotFoundError:
            log.debug("slice %s was already deleted", slice_.metadata.name)
        self._stored.deleted(slice_.metadata.name)
        return None
