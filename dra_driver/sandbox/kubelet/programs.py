# SPDX-License-Identifier: Apache-2.0
"""Programs in containers: start, restart with back-off, readiness by an HTTP probe, and end.

Kubelet itself knows no program. `KubeletOptions.programs` starts the programs of the sandbox. All other containers run
nothing.
"""

import http.client
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Protocol

from dra_driver.process.backoff import Backoff
from dra_driver.process.containment import nobody
from dra_driver.process.worker import Worker

from .cdi import Mount
from .model import Container, HttpProbe, KubeletPod

_log = logging.getLogger(__name__)

_PROBE_SECONDS = 1.0
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


def expand(text: str, env: Mapping[str, str]) -> str:
    """Return a text with the values of variables in place of `$(NAME)`. Unknown variables stay."""
    return _VARIABLE.sub(lambda found: env.get(found[1], found[0]), text)


@dataclass(frozen=True, slots=True)
class Launch:
    """What the program of a container starts with. `mounts` are those of CDI, and `address` is the pod's."""

    pod: KubeletPod
    container: Container
    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    address: str

    def arguments(self) -> tuple[str, ...]:
        """Return the command, with the values of variables in place of `$(NAME)`."""
        return tuple(expand(argument, self.env) for argument in self.container.command)


class RunningProgram(Protocol):
    """A program that was started. Only one thread calls `wait`."""

    def wait(self, seconds: float) -> int | None:
        """Return the exit code as soon as the program ends, or None after `seconds`."""

    def terminate(self) -> None:
        """Ask the program to end. Does nothing if it has ended."""

    def kill(self) -> None:
        """Kill the program and all processes that it has started."""


class Programs(Protocol):
    """Starts programs."""

    def runs(self, container: Container) -> bool:
        """Return whether the container has a program."""

    def start(self, launch: Launch) -> RunningProgram:
        """Start the program. Raises OSError."""

    def clean_up(self, uid: str) -> None:
        """Remove what was made for the programs of a pod, which have ended."""


@dataclass(frozen=True, slots=True)
class ProgramState:
    """The state of a container's program. `exit_code` is set while it does not run."""

    started_at: float
    ready: bool = False
    restarts: int = 0
    exit_code: int | None = None


class Supervisor:
    """Runs the program of one container until `stop`. A thread waits for its end, and probes it."""

    def __init__(
        self,
        start: Callable[[], RunningProgram],
        probe: Callable[[], bool] | None,
        period: float,
        backoff: Backoff,
        changed: Callable[[], None],
    ) -> None:
        """Start the program. Raises OSError.

        `probe` is called every `period` seconds; None: the program is ready while it runs. The first restart is
        immediate, and `backoff` has the pauses before the later ones. `changed` is called after each change of the
        state.
        """
        self._start, self._probe, self._period, self._backoff, self._changed = start, probe, period, backoff, changed
        self._program = start()
        self.state = ProgramState(time.time(), ready=probe is None)
        self._ended_before = False
        self._lock = threading.Lock()
        self._worker = Worker("run program", self._round, count=nobody)
        self._worker.start()

    def stop(self, grace: float) -> None:
        """End the program, and kill it after `grace` seconds."""
        with self._lock:
            self._worker.finish(0.0)
            if grace > 0:
                self._program.terminate()
        self._worker.finish(grace)
        self._program.kill()
        self._worker.finish(math.inf)

    def _round(self) -> float | None:
        """Wait for the end of the program for one period, or restart the program that has ended. Returns the seconds
        until the next round, or None if there is nothing left to do.
        """
        if self.state.exit_code is not None:
            return self._restart()
        code = self._program.wait(self._period)
        if code is None:
            self._update_readiness()
            return 0.0
        self._program.kill()  # what it has started ends with it, as in a container
        self.state = replace(self.state, ready=False, exit_code=code)
        return self._pause()

    def _update_readiness(self) -> None:
        ready = self._probe is None or self._probe()
        if ready != self.state.ready and not self._worker.is_finishing:
            self.state = replace(self.state, ready=ready)
            self._changed()

    def _pause(self) -> float | None:
        """Report the program's end. Returns the seconds until its restart, or None if it is to stay ended."""
        if self._worker.is_finishing:
            return None
        self._changed()
        pause = self._backoff.pause() if self._ended_before else 0.0
        self._ended_before = True
        return pause

    def _restart(self) -> float | None:
        """Start the program again, unless it is to stay ended. Returns the seconds until the next round, or None."""
        with self._lock:
            if self._worker.is_finishing:
                return None
            try:
                self._program = self._start()
            except OSError as error:
                _log.warning("a program was not started again: %s", error)
                return self._pause()
            self.state = ProgramState(time.time(), ready=self._probe is None, restarts=self.state.restarts + 1)
        self._changed()
        return 0.0


def answers(probe: HttpProbe, address: str) -> bool:
    """Return whether an HTTP probe succeeds."""
    connection = http.client.HTTPConnection(address, probe.port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", probe.path)
        return HTTPStatus.OK <= connection.getresponse().status < HTTPStatus.BAD_REQUEST
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
