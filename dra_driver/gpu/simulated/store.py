# SPDX-License-Identifier: Apache-2.0
"""The stored state of a simulated node: one folder, shared by all processes.

description.json     the description of the node
gpu-<index>.json     the state of one board, replaced as a whole under gpu-<index>.lock
system.json          whether the driver is loaded, and injected faults, under system.lock
changes              how often each of the files with states was changed, as 64-bit numbers
events.jsonl         NVML events, appended
"""

import contextlib
import fcntl
import functools
import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...kube.resource.codec import Fields
from ..nvml import Return
from .description import NodeDescription, decode_description, encode_description
from .faults import Fault, decode_fault, encode_fault
from .state import BoardState, fields_of

_CHUNK = 1 << 13
_CHANGES_BYTES = mmap.PAGESIZE
"""The size of the file `changes`: its first number is that of system.json, the others are those of the boards."""


@dataclass(slots=True)
class SystemState:
    """The state of the driver as a whole. `absent` is the code with which initialization fails, or None if the driver
    is loaded. `driver_loads` counts how often it was loaded again. `driver_version` is empty for the described version.
    `identity` makes the UUIDs of two nodes with the same description different.
    """

    identity: str = ""
    absent: Return | None = None
    driver_loads: int = 0
    driver_version: str = ""
    faults: list[Fault] = field(default_factory=list)


class StateFolder:
    """The folder. Reading needs no lock, because files are replaced as a whole. A change needs the lock of the file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._prefix = f"{folder}/"
        self._counters: memoryview[int] | None = None
        self._known: dict[int, tuple[int, bytes]] = {}  # the counter before a file was read, and its text

    def read_description(self) -> NodeDescription | None:
        """The description, or None if the node was not created yet."""
        try:
            return _parse_description(_read(f"{self._prefix}description.json"))
        except FileNotFoundError:
            return None

    def write_description(self, description: NodeDescription) -> None:
        """Write the description. From then on the node exists."""
        _replace(f"{self._prefix}description.json", encode_description(description))

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Exclude other processes and threads during a change."""
        descriptor = os.open(f"{self._prefix}{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def read_board(self, index: int) -> BoardState:
        """The state of GPU `index`, without processes that have ended, because a driver cleans up after them."""
        return parse_board(self.read_board_text(index))

    def read_board_text(self, index: int) -> bytes:
        """The stored JSON of the state of GPU `index`."""
        return self._text(index + 1, f"gpu-{index}.json")

    def write_board(self, index: int, state: BoardState) -> None:
        """Replace the state of GPU `index`. The caller holds its lock."""
        self._change(index + 1, f"gpu-{index}.json", state)

    def read_system(self) -> SystemState:
        """The state of the driver."""
        return parse_system(self.read_system_text())

    def read_system_text(self) -> bytes:
        """The stored text, to find out cheaply whether it has changed."""
        return self._text(0, "system.json")

    def write_system(self, state: SystemState) -> None:
        """Replace the state of the driver, and wake the waiting event sets. The caller holds its lock."""
        faults = [encode_fault(fault) for fault in state.faults]
        self._change(0, "system.json", {**fields_of(state), "faults": faults})
        os.utime(self.events)

    @property
    def events(self) -> str:
        """The file to which events are appended, one JSON object on each line."""
        return f"{self._prefix}events.jsonl"

    def create(self) -> None:
        """Create the files that are never replaced."""
        Path(self.events).touch()
        with open(f"{self._prefix}changes", "ab") as file:  # noqa: PTH123 - see below
            file.truncate(_CHANGES_BYTES)

    def forget(self) -> None:
        """Forget what was read, and close the file `changes`."""
        self._counters, self._known = None, {}

    def _text(self, at: int, name: str) -> bytes:
        """The text of a file. A file that has not changed is not read again.

        Comparing numbers in memory needs no system call, during which other threads would get the interpreter's lock.
        """
        counter = self._changes()[at]
        known = self._known.get(at)
        if known is None or known[0] != counter or counter % 2:
            known = self._known[at] = counter, _read(f"{self._prefix}{name}")
        return known[1]

    def _change(self, at: int, name: str, value: object) -> None:
        """Replace a file. Its counter is odd meanwhile, and stays odd if this process is killed."""
        counters = self._changes()
        counters[at] |= 1
        _replace(f"{self._prefix}{name}", value)
        counters[at] += 1

    def _changes(self) -> "memoryview[int]":
        counters = self._counters
        if counters is None:
            with open(f"{self._prefix}changes", "r+b", buffering=0) as file:  # noqa: PTH123 - see below
                counters = self._counters = memoryview(mmap.mmap(file.fileno(), _CHANGES_BYTES)).cast("Q")
        return counters


@functools.lru_cache(maxsize=32)
def _parse_description(text: bytes) -> NodeDescription:
    """The description of a node from its stored text, which every initialization of NVML reads."""
    return decode_description(json.loads(text))


def parse_system(text: bytes) -> SystemState:
    """The state of the driver, from the text of `StateFolder.read_system_text`."""
    value: dict[str, Any] = json.loads(text)
    faults = [_parse_fault(tuple(row.items())) for row in value["faults"]]
    absent = None if value["absent"] is None else Return(value["absent"])
    return SystemState(**{**value, "absent": absent, "faults": faults})


@functools.lru_cache(maxsize=1024)
def _parse_fault(fields: tuple[tuple[str, Any], ...]) -> Fault:
    """A fault from its stored form. Most faults stay when the state of the driver changes."""
    return decode_fault(Fields(dict(fields)))


def parse_board(text: bytes) -> BoardState:
    """The state of a GPU, from the text of `StateFolder.read_board_text`."""
    state = BoardState.from_json(json.loads(text))
    state.processes = [process for process in state.processes if _runs(process.pid)]
    return state


def _runs(pid: int) -> bool:
    try:
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Every NVML call uses these functions several times. They avoid pathlib, which would take most of the time.


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read_all(descriptor)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    found = more = os.read(descriptor, _CHUNK)
    while len(more) == _CHUNK:  # less is the rest of a file
        more = os.read(descriptor, _CHUNK)
        found += more
    return found


def _replace(path: str, value: object) -> None:
    temporary = f"{path}.{os.getpid()}.new"
    with open(temporary, "wb") as file:  # noqa: PTH123 - see above
        file.write(json.dumps(value, default=fields_of).encode())
    os.rename(temporary, path)  # noqa: PTH104 - see above
