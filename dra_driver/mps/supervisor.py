# SPDX-License-Identifier: Apache-2.0
"""Serves the shares in the share files: starts and ends daemons, and restarts those that have ended.

`settle` applies the share files of one group of devices, when the plugin requests it. `look` applies those of all
groups, and is called all the time. Both do the same, so the next `look` completes the request of a plugin that was
killed. Work on one group does not wait for other groups.

A new supervisor ends the daemons of an earlier one and starts them again, because it cannot know their limits.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..backoff import Backoff
from ..containment import contained, nobody
from ..programs import ProgramError
from .daemon import Limits
from .errors import MpsError
from .processes import end_processes
from .protocol2 import Protocol2
from .protocol3 import Protocol3
from .shares import Share, ShareFiles

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_ANSWER_SECONDS: Final = 10.0
"""The interval at which a running daemon is checked with a command."""

_EXPECTED = (MpsError, ProgramError, OSError)


Server = Protocol2 | Protocol3
"""What serves groups of devices. Both protocols have the same methods."""


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a group of devices. `problem` is the reason if it is not served, `restarts` the number of restarts
    of its daemon, and `since` the time of the last change, in seconds of the epoch.
    """

    problem: str = ""
    restarts: int = 0
    since: float = 0.0


class Supervisor:
    """Serves the shares of `files` with `protocols`, which are by number."""

    def __init__(self, files: ShareFiles, protocols: Mapping[int, Server]) -> None:
        self._files = files
        self._protocols = protocols
        self._guard = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._by: dict[str, Server] = {}  # the protocol that serves each group
        self._statuses: dict[str, Status] = {}
        self._pauses: dict[str, tuple[Backoff, float]] = {}  # the time of the next attempt for a group that failed
        self._asked: dict[str, float] = {}

    def begin(self) -> None:
        """End the daemons of an earlier supervisor. Raises MpsError or OSError."""
        end_processes(self._files.folder, Limits.END)

    def settle(self, server: str) -> None:
        """Apply the share files of a group of devices. Raises MpsError, ProgramError or OSError."""
        with self._lock(server):
            self._settle(server)

    def look(self) -> None:
        """Apply the share files of every group once. A group that fails is tried again after a growing pause."""
        for server in {*self._files.servers(), *self._by}:
            _, due = self._pauses.get(server, (None, 0.0))
            if time.monotonic() < due:
                continue
            with contained("look after MPS", server, nobody), self._lock(server):
                self._look(server)

    def statuses(self) -> dict[str, Status]:
        """The status of every group, by name."""
        with self._guard:
            return dict(self._statuses)

    def end(self) -> None:
        """End all daemons, even if shares need them."""
        for server in list(self._by):
            with contained("end MPS", server, nobody), self._lock(server):
                try:
                    self._by.pop(server).end(server)
                except _EXPECTED as error:
                    log.error("the MPS daemon of %s cannot be ended: %s", server, error)

    def _look(self, server: str) -> None:
        try:
            if server in self._by and time.monotonic() >= self._asked.get(server, 0.0):
                self._require_answer(server)
            self._settle(server)
        except _EXPECTED as error:
            log.error("MPS for %s is not as wanted: %s", server, error)

    def _require_answer(self, server: str) -> None:
        """End a daemon that hangs, so that it is restarted."""
        self._asked[server] = time.monotonic() + _ANSWER_SECONDS
        by = self._by[server]
        if by.runs(server):
            try:
                by.answers(server)
            except (MpsError, ProgramError) as error:
                log.error("the MPS daemon of %s does not answer and is ended: %s", server, error)
                by.end(server)

    def _settle(self, server: str) -> None:
        shares, wanted = self._files.of(server), self._files.names(server)
        try:
            if shares:
                self._serve(server, shares)
            elif not wanted or server in self._by:
                self._end(server, discard=not wanted)
        except _EXPECTED as error:
            backoff, _ = self._pauses.get(server, (Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), 0.0))
            self._pauses[server] = backoff, time.monotonic() + backoff.pause()
            self._note(server, replace(self._status(server), problem=str(error), since=time.time()))
            raise
        self._pauses.pop(server, None)

    def _serve(self, server: str, shares: dict[str, Share]) -> None:
        numbers = {share.protocol for share in shares.values()}
        by = self._protocols.get(min(numbers))
        if len(numbers) > 1 or by is None:
            raise MpsError(f"the shares of {server} need MPS protocols {', '.join(map(str, sorted(numbers)))}")
        before = self._by.get(server)
        if before is not None and before is not by:
            before.end(server)
        if by.serves(server, shares):
            if self._status(server).problem:
                self._note(server, replace(self._status(server), problem="", since=time.time()))
            return
        died = before is by and not by.runs(server)
        if died:
            log.error("the MPS daemon of %s has ended; starting it again", server)
        ran = by.runs(server)
        self._by[server] = by
        by.serve(server, shares)
        self._asked[server] = time.monotonic() + _ANSWER_SECONDS
        status = self._status(server)
        if not ran or status.problem:
            status = Status("", status.restarts + (died or bool(status.problem)), time.time())
        self._note(server, status)
        log.info("MPS serves %s", server, extra={"shares": len(shares), "restarts": status.restarts})

    def _end(self, server: str, *, discard: bool) -> None:
        for by in [self._by[server]] if server in self._by else self._protocols.values():
            by.end(server)
            if discard:
                by.discard(server)
        if discard:
            self._files.discard(server)
        with self._guard:
            for known in (self._by, self._statuses, self._asked):
                known.pop(server, None)
        log.info("MPS ended for %s", server)

    def _status(self, server: str) -> Status:
        return self.statuses().get(server, Status(since=time.time()))

    def _note(self, server: str, status: Status) -> None:
        with self._guard:
            self._statuses[server] = status

    def _lock(self, server: str) -> threading.Lock:
        with self._guard:
            return self._locks[server]
