# SPDX-License-Identifier: Apache-2.0
"""The state of a running nvidia-imex, which nvidia-imex-ctl asks its command service for.

`-q` prints the state of the own daemon as one line. `-N -j` prints the nodes of the domain as JSON. Of these, only the
connections of the own node are used: those of peers that do not answer come from the list of nodes. The domain's own
state is not used either, because it also counts free slots.

Output: https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/cmdservice.html
"""

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import ProgramError
from ...process.containment import Count, nobody
from ...process.programs import run_program
from ...process.worker import Worker
from .times import DaemonTimes

READY: Final = "READY"
_STATES: Final = frozenset(
    {
        "INITIALIZING",
        "STARTING_AUTH_SERVER",
        "WAITING_FOR_PEERS",
        "WAITING_FOR_RECOVERY",
        "INIT_GPU",
        READY,
        "SHUTTING_DOWN",
        "UNAVAILABLE",
    }
)
_PREFIX: Final = re.compile(r"^(?:\[[^\]]*\]\s*)+")
_CONNECTED: Final = ("C", "CONNECTED")
_STATE_SECONDS: Final = 5.0
_FIRST_SECONDS: Final = 0.3
_NOT_READY_SECONDS: Final = 1.0
_SHARE: Final = 0.2
"""Of the time that the domain has not changed, how long the pause before the next question is."""


def plain(line: str) -> str:
    """A line of the log without its time, level and thread."""
    return _PREFIX.sub("", line).strip()


def state_of(output: str) -> str:
    """The state in the output of `-q`: the last line that is the name of a state. Empty if there is none."""
    lines = [line.strip() for line in output.splitlines()]
    return next((line for line in reversed(lines) if line in _STATES), "")


def connected_peers(output: str, index: int) -> frozenset[int] | None:
    """The node IDs that the node `index` is connected to, in the output of `-N -j`. None if it cannot be read."""
    try:
        value = json.loads(output[output.index("{") : output.rindex("}") + 1])
        links = value["nodes"][str(index)]["connections"]
        return frozenset(int(peer) for peer, link in links.items() if str(link["status"]).upper() in _CONNECTED)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class ImexStatus:
    """The status of nvidia-imex. `state` is empty if it is unknown, and `problem` tells why. `connected` are node IDs,
    or None if they are unknown.
    """

    state: str = ""
    connected: frozenset[int] | None = None
    problem: str = "it has not answered yet"


class Monitor:
    """Asks nvidia-imex for its status on a thread of its own, from the start until `stop`. `index` is its node ID.

    `changed` is called after each change. Questions are frequent after the start, a change of the status and `hurry`,
    and become rare while nothing happens: each one starts two programs.
    """

    def __init__(
        self,
        program: str,
        config: Path,
        index: int,
        changed: Callable[[], None],
        times: DaemonTimes,
        count: Count = nobody,
    ) -> None:
        self.status = ImexStatus()
        self._program = program
        self._config = config
        self._index = index
        self._changed = changed
        self._times = times
        self._changed_at = time.monotonic()
        self._worker = Worker("ask for the status", self._look, interval=times.look, count=count)
        self._worker.start()

    def hurry(self) -> None:
        """Ask frequently for a while, because the domain changes."""
        self._changed_at = time.monotonic()
        self._worker.wake()

    def stop(self) -> None:
        """End soon."""
        self._worker.stop()

    def _look(self) -> float:
        status = self._ask()
        if status != self.status:
            self.status = status
            self._changed_at = time.monotonic()
            self._changed()
        longest = self._times.look if self.status.state == READY else _NOT_READY_SECONDS
        return min(max(_FIRST_SECONDS, _SHARE * (time.monotonic() - self._changed_at)), longest)

    def _ask(self) -> ImexStatus:
        try:
            output = self._query(_STATE_SECONDS, "-q")
            state = state_of(output)
            if state != READY:
                return ImexStatus(state, None, "" if state else " ".join(map(plain, output.splitlines())))
            return ImexStatus(state, connected_peers(self._query(self._times.nodes, "-N", "-j"), self._index), "")
        except ProgramError as error:
            return ImexStatus(problem=str(error))

    def _query(self, seconds: float, *arguments: str) -> str:
        path = shutil.which(self._program)
        if path is None:
            raise ProgramError(f"there is no {self._program} in this container")
        return run_program([path, "-c", str(self._config), *arguments], seconds).output
