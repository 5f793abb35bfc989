# SPDX-License-Identifier: Apache-2.0
"""Processes of the driver that the sandbox starts, by name. They end with the sandbox, also if it is killed."""

import contextlib
import logging
import signal
import subprocess
from pathlib import Path
from typing import Final

from .child import Children

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 10.0
"""How long a process may take to end after SIGTERM."""


class Processes:
    """The processes of one place, which has a name. Their logs are in the folder `logs`."""

    def __init__(self, place: str, logs: Path, children: Children) -> None:
        """Raises OSError."""
        self.logs = logs
        self.children = children
        self._place = place
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """The running processes by name, such as `controller`, `mps` and `kubeletplugin`."""
        logs.mkdir(parents=True, exist_ok=True)

    def launch(self, name: str, module: str, *arguments: str) -> None:
        """Start a process."""
        self.processes[name] = self.children.start(module, arguments, self.logs / f"{name}.log")

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        self.processes[name].kill()
        self._reap(name, None)

    def terminate(self, name: str) -> int:
        """End a process with SIGTERM and return its exit code. Raises TimeoutExpired."""
        with contextlib.suppress(ProcessLookupError):
            self.processes[name].send_signal(signal.SIGTERM)
        return self._reap(name, STOP_SECONDS)

    def stop(self) -> None:
        """End all processes. Processes that do not end in time are killed."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for name in list(self.processes):
            try:
                self._reap(name, STOP_SECONDS)
            except subprocess.TimeoutExpired:
                log.warning("%s of %s did not end within %g s and is killed", name, self._place, STOP_SECONDS)
                self.kill(name)

    def log(self, name: str) -> str:
        """Return the log of a process, over all of its starts."""
        return (self.logs / f"{name}.log").read_text(encoding="utf-8")

    def ending(self, name: str) -> str:
        """Return how a process ended, and where its log is."""
        process = self.processes[name]
        code = process.wait()
        if code < 0:
            how = f"was ended by signal {-code} ({signal.strsignal(-code)})"
        else:
            last = self.log(name).strip().rpartition("\n")[2]
            how = f"ended with code {code}: {last}"
        return f"{name} of {self._place} (process {process.pid}) {how}; its log is {self.logs / name}.log"

    def _reap(self, name: str, seconds: float | None) -> int:
        """Wait for a process to end and return its exit code. Raises TimeoutExpired."""
        process = self.processes[name]
        code = process.wait(seconds)
        if process.stdin is not None:
            process.stdin.close()
        del self.processes[name]
        return code
