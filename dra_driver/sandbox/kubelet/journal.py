# SPDX-License-Identifier: Apache-2.0
"""What happened, in order, and a way to wait until something is so.

Every part records an entry after it has changed its state. Whoever waits is woken by each entry and
looks at the state again, so that tests and the demo never sleep and hope.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_LOOK_AGAIN = 0.05

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened to `subject` (a driver, `namespace/name` of a pod, a node)."""

    reason: str
    subject: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.reason} {self.subject}" + (f": {self.message}" if self.message else "")


class Journal:
    """An append-only list of entries. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._changed = threading.Condition()

    def record(self, reason: str, subject: str, message: str = "") -> None:
        """Note what happened, and wake all who wait."""
        entry = Entry(reason, subject, message)
        _log.info("%s", entry)
        with self._changed:
            self._entries.append(entry)
            self._changed.notify_all()

    def entries(self, reason: str | None = None, subject: str | None = None) -> tuple[Entry, ...]:
        """What happened so far, all of it or only that reason, that subject."""
        with self._changed:
            return tuple(
                entry for entry in self._entries if reason in (None, entry.reason) and subject in (None, entry.subject)
            )

    def wait(self, is_so: Callable[[], bool], timeout: float, what: str) -> None:
        """Return once `is_so()`. Raises TimeoutError, with the latest entries, after `timeout` seconds.

        It is looked at after each entry, and now and then for what happens elsewhere. It may take locks of
        its own: nothing is held while it runs.
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
                    raise TimeoutError(f"{what}: not so after {timeout:g} s; what happened last:{latest or ' nothing'}")
                if len(self._entries) == seen:
                    self._changed.wait(min(left, _LOOK_AGAIN))
