# SPDX-License-Identifier: Apache-2.0
"""Decides when a control daemon that does not answer is ended, and when one that has ended is started again.

A daemon that is ended takes its clients with it. On a busy node, a healthy daemon may answer late, and so may the
program that asks it. So a daemon is ended only after several failed checks over a longer time, with growing limits.
A daemon that the kernel reports as working, or as ready to work, gets more time than one that only sleeps.

A container can end its daemon whenever it wants. So the pauses between restarts grow, whatever ended the daemon, until
it has run for a while.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.process.backoff import Backoff

_STOPPED: Final = "Tt"
"""States in which a process does not work until another one lets it (see proc_pid_stat(5))."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Times in seconds. A daemon is checked every `interval`, and every `retry` after a failed check. The time limit of
    a check doubles with each failed one, from `first_limit` to `longest_limit`. The daemon is ended after `failures`
    failed checks over `idle`, or over `working` if it works. The pauses between restarts grow from `first_pause` to
    `longest_pause`, until it has run for `healthy`.
    """

    interval: float = 10.0
    retry: float = 5.0
    first_limit: float = 3.0
    longest_limit: float = 12.0
    failures: int = 4
    idle: float = 30.0
    working: float = 180.0
    first_pause: float = 0.5
    longest_pause: float = 30.0
    healthy: float = 60.0

    def backoff(self) -> Backoff:
        """The pauses between restarts."""
        return Backoff(self.first_pause, self.longest_pause)


@dataclass(frozen=True, slots=True)
class Activity:
    """What the kernel reports of a process: its state as in proc_pid_stat(5), and its CPU time in clock ticks."""

    state: str
    ticks: int


def activity_of(pid: int) -> Activity | None:
    """The activity of a process. None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    return Activity(fields[0].decode("ascii"), int(fields[11]) + int(fields[12]))


@dataclass(slots=True)
class Checks:
    """The checks of one daemon since it last answered: their number, the time of the first one, and the daemon's
    activity then.
    """

    patience: Patience
    due: float
    failures: int = 0
    since: float = 0.0
    before: Activity | None = None

    @property
    def limit(self) -> float:
        """The time limit of the next check."""
        return min(self.patience.first_limit * float(1 << self.failures), self.patience.longest_limit)

    def answered(self, now: float) -> None:
        """Note a check that went well."""
        self.failures, self.due = 0, now + self.patience.interval

    def failed(self, began: float, now: float, activity: Activity | None) -> bool:
        """Note a failed check. Returns whether the daemon hangs, and is to be ended."""
        if not self.failures:
            self.since, self.before = began, activity
        self.failures += 1
        self.due = now + self.patience.retry
        if self.failures < self.patience.failures:
            return False
        return now - self.since >= (self.patience.working if self._works(activity) else self.patience.idle)

    def _works(self, activity: Activity | None) -> bool:
        if activity is None or activity.state in _STOPPED:
            return False
        return activity.state == "R" or (self.before is not None and activity.ticks > self.before.ticks)
