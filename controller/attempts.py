# SPDX-License-Identifier: Apache-2.0
"""What was tried with each slice, and when it may be tried again.

Events (the node changed, somebody edited a slice) say that slices are to be compared. They do not say that a slice may
be written: a server that changes every write would otherwise be written to without end, since each write is an event.
A slice that has not been sent in this form yet is sent at once. The same slice is sent again with pauses that double.
"""

import enum
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dra_driver.backoff import Backoff
from dra_driver.resource import ResourceSlice

from .reconcile import Tried, as_sent, same_content, without_times


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
