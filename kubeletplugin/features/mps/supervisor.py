# SPDX-License-Identifier: Apache-2.0
"""Serves the shares in the share files: starts and ends daemons, and restarts daemons that have ended.

`settle` applies the share files of one group of devices, when the plugin requests it. `look` applies those of all
groups, and is called all the time. Both do the same, so the next `look` completes the request of a plugin that was
killed. Work on one group does not wait for other groups: each one has a lock, and `look` has a thread for each.

A new supervisor ends the daemons of an earlier one and starts them again, because it cannot know their limits.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from dra_driver.errors import MpsError, ProgramError
from dra_driver.process.containment import contained, nobody
from dra_driver.process.mps import end_processes

from ...errors import ServerGoneError
from .daemon import DaemonLimits
from .patience import Checks, Patience, activity_of
from .protocol2 import Protocol2
from .protocol3 import Protocol3
from .shares import MpsShare, ShareFiles

log = logging.getLogger(__name__)

_THREADS: Final = 256
"""More than a node has groups of devices."""
_MOST_REMOVED: Final = 2000
"""How many names of folders that are not used any more are removed at a time."""
_REMOVAL_PAUSE: Final = 60.0

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


class _Group:
    """A group of devices: the protocol that serves it, if any, and its status. `due` is the time before which `look`
    does nothing. `started` is the time at which its daemon was started, until its end is noticed.
    """

    def __init__(self, name: str, patience: Patience) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.by: Server | None = None
        self.status: Status | None = None
        self.checks = Checks(patience, 0.0)
        self.due = 0.0
        self.started: float | None = None
        self._patience = patience
        self._backoff = patience.backoff()
        self._was_restarted = False

    def note(self, problem: str = "", *, restarts: int = 0) -> None:
        """Change the status."""
        self.status = Status(problem, self.restarts + restarts, time.time())

    @property
    def restarts(self) -> int:
        """How often its daemon was started again."""
        return self.status.restarts if self.status else 0

    def pause(self) -> float:
        """Let `look` do nothing for a time, which grows unless the daemon has run for a while. Returns the seconds."""
        self._forgive()
        seconds = self._backoff.pause()
        self.due = time.monotonic() + seconds
        return seconds

    def pause_before_restart(self) -> float:
        """The same after the end of the daemon. After it has run for a while, it is started again at once."""
        self._forgive()
        self.started = None
        if self._was_restarted:
            return self.pause()
        self._was_restarted = True
        return 0.0

    def _forgive(self) -> None:
        if self.started is not None and time.monotonic() - self.started >= self._patience.healthy:
            self._backoff.reset()
            self._was_restarted = False

    def forget(self) -> None:
        """There are no shares any more."""
        self.by, self.status, self.started, self.due = None, None, None, 0.0
        self._backoff.reset()
        self._was_restarted = False


class MpsSupervisor:
    """Serves the shares of `files` with `protocols`, which are by number."""

    def __init__(self, files: ShareFiles, protocols: Mapping[int, Server], patience: Patience | None = None) -> None:
        self._files = files
        self._protocols = protocols
        self._patience = patience or Patience()
        self._guard = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._pool = ThreadPoolExecutor(_THREADS, "mps")
        self._work: dict[str, Future[None]] = {}
        self._removal_due = 0.0

    def begin(self) -> None:
        """End the daemons of an earlier supervisor. One that cannot be ended is a problem of its group only, which is
        reported when the group is served. Raises OSError.
        """
        try:
            end_processes(self._files.folder, DaemonLimits.END)
        except MpsError as error:
            log.error("an MPS daemon of an earlier dra-mps remains: %s", error)

    def settle(self, server: str) -> None:
        """Apply the share files of a group of devices. Raises MpsError, ProgramError or OSError."""
        group = self._group(server)
        with group.lock:
            self._settle(group)

    def look(self) -> list[Future[None]]:
        """Apply the share files of every group once, each in a thread of its own. Returns the work that has begun. A
        group is left out while its earlier work goes on, and during its pause after a failure or the end of its daemon.
        """
        now = time.monotonic()
        groups = [self._group(name) for name in {*self._files.servers(), *self._served()}]
        begun = [self._begin(group.name, partial(self._look, group)) for group in groups if now >= group.due]
        if now >= self._removal_due:
            begun.append(self._begin("", self._remove))
        return [work for work in begun if work is not None]

    def statuses(self) -> dict[str, Status]:
        """The status of every group, by name."""
        with self._guard:
            return {name: group.status for name, group in self._groups.items() if group.status is not None}

    def end(self) -> None:
        """End all daemons, even if shares need them. No other method may be called afterwards."""
        wait(list(self._work.values()))
        wait([self._pool.submit(self._end_served, self._group(name)) for name in self._served()])
        self._pool.shutdown()

    def _begin(self, name: str, work: Callable[[], None]) -> Future[None] | None:
        if name in self._work and not self._work[name].done():
            return None
        self._work[name] = self._pool.submit(work)
        return self._work[name]

    def _remove(self) -> None:
        with contained("remove folders of MPS", self._files.folder, nobody):
            try:
                self._files.trash.empty(_MOST_REMOVED)
            except OSError as error:
                self._removal_due = time.monotonic() + _REMOVAL_PAUSE
                log.error("folders of MPS that are not used any more cannot be removed: %s", error)

    def _end_served(self, group: _Group) -> None:
        with contained("end MPS", group.name, nobody), group.lock:
            by, group.by = group.by, None
            try:
                if by is not None:
                    by.end(group.name)
            except _EXPECTED as error:
                log.error("the MPS daemon of %s cannot be ended: %s", group.name, error)

    def _look(self, group: _Group) -> None:
        with contained("look after MPS", group.name, nobody), group.lock:
            try:
                if self._watch(group):
                    self._settle(group)
            except _EXPECTED as error:
                if time.monotonic() >= group.due:
                    group.pause()
                log.error("MPS for %s is not as wanted: %s", group.name, error)

    def _watch(self, group: _Group) -> bool:
        """Check the daemon, and end it if it hangs. Returns whether the share files may be applied now: not during the
        pause after the end of a daemon.
        """
        by = group.by
        if by is None:
            return True
        if by.runs(group.name):
            with suppress(OSError):  # a container may hinder this; it only hides the sockets from itself
                by.publish(group.name)
            problem = self._problem(group, by) if time.monotonic() >= group.checks.due else None
            if problem is None:
                return True
            log.error("the MPS daemon of %s does not answer and is ended: %s", group.name, problem)
            by.end(group.name)
        elif group.started is None:
            return True
        seconds = group.pause_before_restart()
        log.error("the MPS daemon of %s has ended; starting it again in %.1f s", group.name, seconds)
        if seconds:
            group.note(f"the MPS control daemon has ended, and is started again in {seconds:.1f} s")
        return not seconds

    def _problem(self, group: _Group, by: Server) -> str | None:
        """Why the daemon is to be ended, if it is."""
        began = time.monotonic()
        try:
            by.answers(group.name, group.checks.limit)
        except ServerGoneError as error:
            return str(error)
        except (MpsError, ProgramError) as error:
            pid = by.pid(group.name)
            if pid is not None and group.checks.failed(began, time.monotonic(), activity_of(pid)):
                return str(error)
            log.warning("the MPS daemon of %s is asked again, because it did not answer: %s", group.name, error)
        else:
            group.checks.answered(time.monotonic())
        return None

    def _settle(self, group: _Group) -> None:
        server = group.name
        shares, wanted = self._files.of(server), self._files.names(server)
        try:
            if shares:
                self._serve(group, shares)
            elif not wanted or group.by is not None:
                self._end(group, discard=not wanted)
        except _EXPECTED as error:
            group.pause()
            group.note(str(error))
            raise
        group.due = 0.0

    def _serve(self, group: _Group, shares: dict[str, MpsShare]) -> None:
        server, before = group.name, group.by
        numbers = {share.protocol for share in shares.values()}
        by = self._protocols.get(min(numbers))
        if len(numbers) > 1 or by is None:
            raise MpsError(f"the shares of {server} need MPS protocols {', '.join(map(str, sorted(numbers)))}")
        problem = bool(group.status and group.status.problem)
        if before is not None and before is not by:
            before.end(server)
        if by.serves(server, shares):
            if problem:
                group.note()
            return
        ran = by.runs(server)
        died = before is by and not ran
        group.by = by
        by.serve(server, shares)
        if not ran:
            group.started = time.monotonic()
        group.checks = Checks(self._patience, time.monotonic() + self._patience.interval)
        if not ran or problem or group.status is None:
            group.note(restarts=int(died or problem))
        log.info("MPS serves %s", server, extra={"shares": len(shares), "restarts": group.restarts})

    def _end(self, group: _Group, *, discard: bool) -> None:
        for by in [group.by] if group.by is not None else self._protocols.values():
            by.end(group.name)
            if discard:
                by.discard(group.name)
        if discard:
            self._files.discard(group.name)
        group.forget()
        log.info("MPS ended for %s", group.name)

    def _served(self) -> list[str]:
        with self._guard:
            return [name for name, group in self._groups.items() if group.by is not None]

    def _group(self, server: str) -> _Group:
        with self._guard:
            if server not in self._groups:
                self._groups[server] = _Group(server, self._patience)
            return self._groups[server]
