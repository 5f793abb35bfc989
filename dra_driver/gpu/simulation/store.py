# SPDX-License-Identifier: Apache-2.0
"""Where a simulated node keeps what hardware would keep: one folder, shared by every process.

description.json     what it was made from
gpu-<index>.json     the state of one board, replaced as a whole under gpu-<index>.lock
system.json          whether the driver is loaded, and injected faults, under system.lock
events.jsonl         NVML events, appended
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...resource.codec import Fields
from ..nvml import Return
from .description import NodeDescription, decode_description, encode_description
from .faults import Fault, decode_fault, encode_fault
from .state import BoardState


@dataclass(slots=True)
class SystemState:
    """The driver as a whole. `absent` is the code that initialization fails with, None when it is loaded;
    `driver_loads` counts how often it was loaded again, `driver_version` is empty for the described one; `identity`
    keeps the UUIDs of two nodes with one description apart.
    """

    identity: str = ""
    absent: Return | None = None
    driver_loads: int = 0
    driver_version: str = ""
    faults: list[Fault] = field(default_factory=list)


class Store:
    """The folder. Reading takes no lock, since files are replaced whole; changing takes the file's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._prefix = f"{folder}/"

    def read_description(self) -> NodeDescription | None:
        """What the node was made from; None when there is no node yet."""
        try:
            return decode_description(json.loads(_read(f"{self._prefix}description.json")))
        except FileNotFoundError:
            return None

    def write_description(self, description: NodeDescription) -> None:
        """Say what the node is; from then on it exists."""
        _replace(f"{self._prefix}description.json", encode_description(description))

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Exclude other processes and threads while one part of the state changes."""
        descriptor = os.open(f"{self._prefix}{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def read_board(self, index: int) -> BoardState:
        """The state of GPU `index`, without processes that have ended since: a driver cleans up after these."""
        return parse_board(self.read_board_text(index))

    def read_board_text(self, index: int) -> bytes:
        """The same as it is stored."""
        return _read(f"{self._prefix}gpu-{index}.json")

    def write_board(self, index: int, state: BoardState) -> None:
        """Replace the state of GPU `index`; the caller holds its lock."""
        _replace(f"{self._prefix}gpu-{index}.json", state.to_json())

    def read_system(self) -> SystemState:
        """The state of the driver."""
        return parse_system(self.read_system_text())

    def read_system_text(self) -> bytes:
        """The same as it is stored, for telling cheaply whether it has changed."""
        return _read(f"{self._prefix}system.json")

    def write_system(self, state: SystemState) -> None:
        """Replace the state of the driver, and wake those who wait for events; the caller holds its lock."""
        value = {
            "identity": state.identity,
            "absent": None if state.absent is None else state.absent.name,
            "driverLoads": state.driver_loads,
            "driverVersion": state.driver_version,
            "faults": [encode_fault(fault) for fault in state.faults],
        }
        _replace(f"{self._prefix}system.json", value)
        os.utime(self.events)

    @property
    def events(self) -> str:
        """The file that events are appended to, one JSON object a line."""
        return f"{self._prefix}events.jsonl"

    def make_events(self) -> None:
        """Begin the file."""
        Path(self.events).touch()

    def append_event(self, event: dict[str, object]) -> None:
        """Report an event to everybody who waits."""
        with open(self.events, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps(event) + "\n")


def parse_system(text: bytes) -> SystemState:
    """The state of the driver as `Store.read_system_text` gives it."""
    value: dict[str, Any] = json.loads(text)
    absent = value["absent"]
    faults = [decode_fault(Fields(row)) for row in value["faults"]]
    return SystemState(
        identity=value["identity"],
        absent=None if absent is None else Return[absent],
        driver_loads=value["driverLoads"],
        driver_version=value["driverVersion"],
        faults=faults,
    )


def parse_board(text: bytes) -> BoardState:
    """The state of a GPU as `Store.read_board_text` gives it."""
    state = BoardState.from_json(json.loads(text))
    state.processes = [one for one in state.processes if _runs(one.pid)]
    return state


def _runs(pid: int) -> bool:
    try:
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Every call of NVML comes through here several times, and pathlib would take most of its time.

_CHUNK = 1 << 13


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = more = os.read(descriptor, _CHUNK)
        while len(more) == _CHUNK:  # less is the rest of a file
            more = os.read(descriptor, _CHUNK)
            found += more
        return found
    finally:
        os.close(descriptor)


def _replace(path: str, value: object) -> None:
    temporary = f"{path}.{os.getpid()}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        left = json.dumps(value).encode()
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)
    os.rename(temporary, path)  # noqa: PTH104 - see above
