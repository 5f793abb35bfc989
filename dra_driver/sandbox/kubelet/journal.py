# SPDX-License-Identifier: Apache-2.0
"""A journal of what happened, and waiting for conditions.

Each part of kubelet records an entry after it has changed its state. Every entry wakes the threads that wait, which
then check their conditions. Therefore tests and the demo need no fixed pauses.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_LOOK_AGAIN = 0.05

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An entry about `subject` (a driver, `namespace/name` of a pod, a node)."""

    reason: str
    subject: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.reason} {self.subject}" + (f": {self.message}" if self.message else "")


class Journal:
    """A list of entries that only grows. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._entries: list[JournalEntry] = []
        self._changed = threading.Condition()

    def record(self, reason: str, subject: str, message: str = "", level: int = logging.INFO) -> None:
        """Add an entry, log it with this level, and wake all threads that wait."""
        entry = JournalEntry(reason, subject, message)
        _log.log(level, "%s", entry)
        with self._changed:
            self._entries.append(entry)
            self._changed.notify_all()

    def entries(self, reason: str | None = None, subject: str | None = None) -> tuple[JournalEntry, ...]:
        """Return all entries, or those with this reason or subject."""
        with self._changed:
            return tuple(
                entry for entry in self._entries if reason in (None, entry.reason) and subject in (None, entry.subject)
            )

    def wait(self, is_so: Callable[[], bool], timeout: float, what: str) -> None:
        """Return when `is_so()` is true. Raises TimeoutError with the latest entries after `timeout` seconds.

        The condition is checked after each entry, and every 50 ms for changes elsewhere. It may take locks, because no
        lock is held during the call.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                seen = len(self._entries)
            if is_so():
                return
            with self._changed:
                left = deadline - time.monotonic()
                if left <= 0:
                    latest = "".join(f"\n  {entry}" for entry in self._entries[-8:])
                    raise TimeoutError(f"waited {timeout:g} s for {what}; the latest entries:{latest or ' none'}")
                if len(self._entries) == seen:
                    self._changed.wait(min(left, _LOOK_AGAIN))
