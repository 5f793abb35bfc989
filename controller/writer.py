# SPDX-License-Identifier: Apache-2.0
"""Writes slices one by one, and decides when a slice may be written again.

A slice that fails does not delay the others. Events (the node changed, somebody edited a slice) only start a
comparison of slices; they do not allow a write. Otherwise a server that changes every write would be written to
without end, because each write is an event. A slice that was not yet sent in its present form is sent at once. The
same slice is sent again after pauses that double.
"""

import enum
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from dra_driver.backoff import Backoff
from dra_driver.containment import Count, contained
from dra_driver.kubeapi import ApiClient, ApiError, ConflictError, Kind, NotFoundError, StatusError
from dra_driver.kubeapi.features import dropped
from dra_driver.resource import ResourceSlice
from dra_driver.resource.codec import Dialect, encode_slice
from dra_driver.resource.device import SliceFeatures
from dra_driver.resource.validation import slice_problems

from .reconcile import Tried, Writes, as_sent, describe_difference, same_content, without_times
from .stored import StoredSlices


class Why(enum.StrEnum):
    """Why the API server does not hold a slice as the node has it."""

    CHANGED = "changed"  # it stored something else, or somebody edits the slice again and again
    REFUSED = "refused"  # it answered with an error
    FAILED = "failed"  # this program failed


@dataclass(frozen=True, slots=True)
class Problem:
    """Why one slice is not published as it should be, for logs and readiness."""

    why: Why
    text: str


@dataclass(slots=True)
class _Attempt:
    sent: ResourceSlice | None  # None: deleted
    backoff: Backoff
    due: float  # on the clock
    problem: Problem | None


class Attempts:
    """The last attempt with each slice, by object name. Pauses are in seconds, from `first` to `longest`; a slice that
    needed no attempt for `longest` after its pause begins with `first` again.
    """

    def __init__(self, first: float, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first = first
        self._longest = longest
        self._clock = clock
        self._attempts: dict[str, _Attempt] = {}

    def in_vain(self, desired: Iterable[ResourceSlice], stored: Mapping[str, ResourceSlice]) -> Tried:
        """Which slices were sent as they should be, or deleted, and are not so. Attempts to make a slice something else
        than it should be now are forgotten.
        """
        wanted: dict[str, ResourceSlice | None] = dict.fromkeys(stored)
        wanted.update((one.metadata.name, one) for one in desired)
        now = self._clock()
        self._attempts = {
            name: attempt
            for name, attempt in self._attempts.items()
            if name in wanted and _same(attempt.sent, wanted[name]) and now < attempt.due + self._longest
        }
        vain = {name: one.due for name, one in self._attempts.items() if not _achieved(one.sent, stored.get(name))}
        waiting = frozenset(name for name, due in vain.items() if now < due)
        return Tried(frozenset(vain) - waiting, waiting)

    def note(self, name: str, sent: ResourceSlice | None, problem: Problem | None) -> float:
        """Slice `name` was sent, or deleted (None). Returns the seconds until it may be tried again."""
        known = self._attempts.get(name)
        same = known is not None and _same(known.sent, sent)
        backoff = known.backoff if known is not None and same else Backoff(self._first, self._longest)
        pause = backoff.pause()
        self._attempts[name] = _Attempt(sent, backoff, self._clock() + pause, problem)
        return pause

    def problem(self, name: str) -> Problem | None:
        """What went wrong when the slice was last tried; None when the server took it as it was sent."""
        attempt = self._attempts.get(name)
        return attempt.problem if attempt is not None else None

    def seconds_until(self, names: Iterable[str]) -> float | None:
        """How long until the first of these may be tried again; None when there is none."""
        due = [attempt.due for name in names if (attempt := self._attempts.get(name)) is not None]
        return max(min(due) - self._clock(), 0.0) if due else None


def _same(one: ResourceSlice | None, other: ResourceSlice | None) -> bool:
    """Whether both are the same attempt: of one content, the times of taints aside, in a pool of one size."""
    if one is None or other is None:
        return one is other
    return one.pool.resource_slice_count == other.pool.resource_slice_count and same_content(
        without_times(one), without_times(other)
    )


def _achieved(sent: ResourceSlice | None, stored: ResourceSlice | None) -> bool:
    if sent is None or stored is None:
        return sent is stored
    return as_sent(sent, stored)


log = logging.getLogger(__name__)

_WHOLE_SERVER = frozenset((401, 404, 429, 502, 503, 504))
"""Errors that a request about another slice would get, too."""


@dataclass(slots=True)
class Written:
    """What came of some writes. `failures` is how many of them did not do what they should."""

    failures: int = 0
    conflict: bool = False
    """Somebody else wrote, and the watch has not told yet."""
    dropped: frozenset[str] = frozenset()
    """Flags of SliceFeatures whose fields an answer lacked."""


class SliceWriter:
    """Sends slices to one API server, and notes what came of it in `stored` and `attempts`. `unexpected` counts defects
    of this driver that cost one slice.
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
        """Carry out the writes for a server with these features. Raises ApiError when no other would succeed either."""
        began = time.monotonic()
        written = Written()
        for one in writes.deletes:
            self._try(one.metadata.name, None, partial(self._delete, one), written)
        for one in (*writes.updates, *writes.creates):
            self._try(one.metadata.name, one, partial(self._send, one, features, written), written)
        log.info(
            "published slices" if not written.failures else "published some slices",
            extra={
                "slices_created": len(writes.creates),
                "slices_updated": len(writes.updates),
                "slices_deleted": len(writes.deletes),
                "failures": written.failures,
                "devices": sum(len(one.devices) for one in writes.updates + writes.creates),
                "seconds": round(time.monotonic() - began, 3),
            },
        )
        return written

    def _try(self, name: str, sent: ResourceSlice | None, act: Callable[[], Problem | None], written: Written) -> None:
        """One write, within the boundary that keeps its failure from the other slices."""
        problem: Problem | None = Problem(Why.FAILED, "this driver failed unexpectedly, see the log of dra-controller")
        with contained("publish slice", name, self._unexpected, expected=(ApiError,)), self._stored.writing(name):
            problem = self._answered(act, written)
        pause = self._attempts.note(name, sent, problem)
        if problem is not None:
            written.failures += 1
            log.warning("slice %s: %s", name, problem.text, extra={"retry_seconds": round(pause, 1)})

    def _answered(self, act: Callable[[], Problem | None], written: Written) -> Problem | None:
        try:
            return act()
        except ConflictError as error:
            written.conflict = True
            return Problem(Why.REFUSED, str(error))
        except StatusError as error:
            if error.status in _WHOLE_SERVER:
                raise
            return Problem(Why.REFUSED, str(error))

    def _send(self, one: ResourceSlice, features: SliceFeatures, written: Written) -> Problem | None:
        for broken in slice_problems(one, features):
            log.error("slice %s breaks a rule of the API: %s", one.metadata.name, broken)
        value = encode_slice(one, self._dialect)
        if not one.metadata.resource_version:
            answer = self._client.create(self._kind, value)
        else:
            try:
                answer = self._client.update(self._kind, value)
            except NotFoundError as error:
                written.conflict = True  # somebody deleted it
                return Problem(Why.REFUSED, str(error))
        stored = self._stored.wrote(answer)
        if as_sent(one, stored):
            return None
        written.dropped |= dropped(one, stored)
        difference = describe_difference(one, stored, self._dialect)
        return Problem(Why.CHANGED, f"the API server changed {difference}; a mutating webhook may do that")

    def _delete(self, one: ResourceSlice) -> Problem | None:
        try:
            self._client.delete(self._kind, one.metadata.name, uid=one.metadata.uid)
        except NotFoundError:
            log.debug("slice %s was already deleted", one.metadata.name)
        self._stored.deleted(one.metadata.name)
        return None
