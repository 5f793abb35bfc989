# SPDX-License-Identifier: Apache-2.0
"""Keeps MPS as the shares' files say: starts what is wanted, ends what is not, restarts what has ended.

`settle` brings one group of devices to what its files say, and `look` all of them, again and again. Both do the same,
so whatever a caller that was killed has left is finished by the next look. Work on one group waits for no other group.

A new supervisor ends the daemons that an earlier one left, and starts them anew: it cannot know which limits they have.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ..backoff import Backoff
from ..containment import Count, contained, nobody
from ..programs import ProgramError
from .daemon import Limits
from .errors import MpsError
from .processes import end_processes
from .shares import Share, ShareFiles

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_ANSWER_SECONDS: Final = 10.0
"""How often a daemon that runs is asked whether it answers."""

_EXPECTED = (MpsError, ProgramError, OSError)


class Server(Protocol):
    """A way to serve groups of devices: see Protocol2 and Protocol3."""

    def serves(self, server: str, shares: Mapping[str, Share]) -> bool:
        """Whether nothing has to be done."""
        raise NotImplementedError

    def runs(self, server: str) -> bool:
        """Whether the group is served at all, however."""
        raise NotImplementedError

    def answers(self, server: str) -> None:
        """Raises MpsError or ProgramError when it hangs."""
        raise NotImplementedError

    def serve(self, server: str, shares: Mapping[str, Share]) -> None:
        """Do it. Raises MpsError, ProgramError or OSError."""
        raise NotImplementedError

    def end(self, server: str) -> None:
        """Serve the group no more. Raises MpsError or OSError."""
        raise NotImplementedError

    def discard(self, server: str) -> None:
        """Remove the files of a group that is not served any more. Raises OSError."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Status:
    """How a group of devices is served: `problem` says why it is not, `restarts` how often its daemon had to be started
    again, `since` when either was last true (seconds of the epoch).
    """

    problem: str = ""
    restarts: int = 0
    since: float = 0.0


class Supervisor:
    """Serves the shares of `files` by these protocols, by their numbers. `count` hears of unexpected errors."""

    def __init__(self, files: ShareFiles, protocols: Mapping[int, Server], count: Count = nobody) -> None:
        self._files = files
        self._protocols = protocols
        self._count = count
        self._guard = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._by: dict[str, Server] = {}  # how each group is served now
        self._statuses: dict[str, Status] = {}
        self._pauses: dict[str, tuple[Backoff, float]] = {}  # until when a group that failed is left alone
        self._asked: dict[str, float] = {}

    def begin(self) -> None:
        """End what an earlier supervisor left. Raises MpsError or OSError."""
        end_processes(self._files.folder, Limits.END)

    def settle(self, server: str) -> None:
        """Bring a group of devices to what its files say. Raises MpsError, ProgramError or OSError."""
        with self._lock(server):
            self._settle(server)

    def look(self) -> None:
        """Look at every group once; what fails is tried again after a pause that grows."""
        for server in {*self._files.servers(), *self._by}:
            _, due = self._pauses.get(server, (None, 0.0))
            if time.monotonic() < due:
                continue
            with contained("look after MPS", server, self._count), self._lock(server):
                self._look(server)

    def statuses(self) -> dict[str, Status]:
        """How the groups are, by their names."""
        with self._guard:
            return dict(self._statuses)

    def end(self) -> None:
        """End all daemons, whoever wants them."""
        for server in list(self._by):
            with contained("end MPS", server, self._count), self._lock(server):
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
        """End a daemon that hangs, so that it is started again."""
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
