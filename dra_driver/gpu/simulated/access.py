# SPDX-License-Identifier: Apache-2.0
"""Access of the simulated NVML to the hardware, and waiting for changes of a file.

As with the real library, an initialization lists the GPUs that the driver has at that time. GPUs that are plugged in
later are not in the list, and GPUs that were removed or found again since then are lost. Waiting for events uses
inotify(7), so that nothing polls.
"""

import contextlib
import ctypes
import os
import select
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..fabric import FabricCode
from ..nvml import NvmlError, Return
from .board import Board
from .description import NodeDescription
from .faults import Fault
from .state import BoardState
from .store import StateFolder, SystemState, parse_board, parse_system

_CLEARED_SECONDS = 0.05

_MODIFY, _ATTRIB = 0x2, 0x4
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Initialization:
    """The state at the initialization. `probes` is by position of the GPUs in the description, in the order of NVML's
    indexes.
    """

    description: NodeDescription
    identity: str
    driver_loads: int
    probes: Mapping[int, int]


class Access:
    """The hardware in a store, for one NVML interface."""

    def __init__(self, store: StateFolder) -> None:
        self._store = store
        self._initialized: _Initialization | None = None
        self._system = b"", SystemState()  # the last state of the driver, and its text before it
        self._states: dict[int, tuple[bytes, BoardState]] = {}  # the last state of each board, and its text

    def initialize(self) -> None:
        """nvmlInitWithFlags."""
        call = "nvmlInitWithFlags"
        if self._initialized is not None:
            raise NvmlError(Return.ALREADY_INITIALIZED, call, "this object is initialized")
        description = self._store.read_description()
        if description is None:
            raise NvmlError(Return.LIBRARY_NOT_FOUND, call, f"no simulated node in {self._store.folder}")
        system = self._read_system()
        if system.absent is not None:
            raise NvmlError(system.absent, call)
        self._strike(call, None, system)
        slots = {position: self._store.read_board(position).slot for position in range(len(description.gpus))}
        probes = {position: slot.probes for position, slot in slots.items() if slot.is_nvidias}
        self._initialized = _Initialization(description, system.identity, system.driver_loads, probes)

    def shutdown(self) -> None:
        """nvmlShutdown. From then on every call raises UNINITIALIZED, also if this call raises an error."""
        try:
            self.enter("nvmlShutdown")
        finally:
            self._initialized = None
            self._store.forget()

    @property
    def description(self) -> NodeDescription:
        """The description of the node."""
        return self._require("description").description

    @property
    def enumerated(self) -> tuple[int, ...]:
        """The positions of the GPUs that this initialization found, in the order of their NVML indexes."""
        return () if self._initialized is None else tuple(self._initialized.probes)

    @property
    def identity(self) -> str:
        """The text from which the UUIDs of this node are derived."""
        return self._require("identity").identity

    @property
    def driver_version(self) -> str:
        """The version of the loaded driver."""
        return self._read_system().driver_version or self.description.driver_version

    def enter(self, call: str, position: int | None = None) -> None:
        """The beginning of every call: raises NvmlError without a driver, or because of an injected fault."""
        initialized = self._require(call)
        system = self._read_system()
        if system.absent is not None:
            raise NvmlError(system.absent, call, "the driver was unloaded")
        if system.driver_loads != initialized.driver_loads:
            raise NvmlError(Return.UNKNOWN, call, "the driver was loaded anew after this initialization")
        self._strike(call, position, system)

    def board(self, call: str, position: int) -> Board:
        """A board, for reading only. The state of a board that has not changed is the same object."""
        self.enter(call, position)
        return self._board(call, position, self._read(position))

    def pass_by(self, call: str, position: int) -> None:
        """Let a call that searches all GPUs pass one of them. A fault of that GPU may let it hang, but not fail."""
        faults = self._read_system().faults
        fault = next((fault for fault in faults if fault.hits(call, position) and fault.code is None), None)
        if fault is not None and fault.gpu == position and not fault.times:
            self._linger(fault)

    @contextlib.contextmanager
    def changing(self, call: str, position: int) -> Iterator[Board]:
        """A board, for changing. If an error is raised, no change is stored."""
        self.enter(call, position)
        with self._store.lock(f"gpu-{position}"):
            board = self._board(call, position, self._store.read_board(position))
            yield board
            self._store.write_board(position, board.state)

    def _require(self, call: str) -> _Initialization:
        initialized = self._initialized
        if initialized is None:
            raise NvmlError(Return.UNINITIALIZED, call)
        return initialized

    def _read(self, position: int) -> BoardState:
        text = self._store.read_board_text(position)
        before, state = self._states.get(position) or (b"", None)
        if state is None or text != before or state.processes:  # a process may have ended
            state = parse_board(text)
            self._states[position] = text, state
        return state

    def _board(self, call: str, position: int, state: BoardState) -> Board:
        initialized = self._require(call)
        if state.lost or not state.slot.is_nvidias or initialized.probes.get(position) != state.slot.probes:
            raise NvmlError(Return.GPU_IS_LOST, call)
        gpu = initialized.description.gpus[position]
        return Board(gpu.board, state, vgpu=gpu.vgpu)

    def fault(self, call: str) -> Return | FabricCode | None:
        """The code that a call of another library fails with, or None. Waits as long as an injected fault requires."""
        return self._injected(call, None, self._read_system())

    def _strike(self, call: str, position: int | None, system: SystemState) -> None:
        code = self._injected(call, position, system)
        if isinstance(code, Return):
            raise NvmlError(code, call, "injected fault")

    def _injected(self, call: str, position: int | None, system: SystemState) -> Return | FabricCode | None:
        fault = next((fault for fault in system.faults if fault.hits(call, position)), None)
        if fault is not None and fault.times:
            fault = self._use_up(call, position)
        if fault is None:
            return None
        self._linger(fault)
        return fault.code

    def _linger(self, fault: Fault) -> None:
        """Wait as long as the fault requires. A call that hangs returns when its fault is cleared."""
        end = time.monotonic() + fault.seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _CLEARED_SECONDS))
            if not fault.times and fault not in self._read_system().faults:
                break

    def _use_up(self, call: str, position: int | None) -> Fault | None:
        """Count down the fault of this call. None if another process has used up the fault."""
        with self._store.lock("system"):
            system = self._store.read_system()
            for index, fault in enumerate(system.faults):
                if fault.hits(call, position):
                    if fault.times:
                        left = [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
                        system.faults[index : index + 1] = left
                        self._store.write_system(system)
                    return fault
        return None

    def _read_system(self) -> SystemState:
        """The state of the driver at this moment. What other threads have read may be older."""
        text = self._store.read_system_text()
        before, state = self._system
        if text != before:
            state = parse_system(text)
            self._system = text, state
        return state


class FileWatch:
    """Waits until a file was written to or touched since the last time. Used by one thread.

    The number of inotify watches of a user is limited. Without a watch, the file is polled.
    """

    def __init__(self, path: str) -> None:
        libc = ctypes.CDLL(None)
        self._descriptor = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._poll = select.poll()
        if self._descriptor >= 0:
            weakref.finalize(self, os.close, self._descriptor)
            if libc.inotify_add_watch(self._descriptor, path.encode(), _MODIFY | _ATTRIB) >= 0:
                self._poll.register(self._descriptor, select.POLLIN)
                return
        self._descriptor = -1

    def wait(self, seconds: float) -> None:
        """Return when the file was changed, or after `seconds`."""
        if self._descriptor < 0:
            time.sleep(min(seconds, _POLL_SECONDS))
        elif self._poll.poll(seconds * 1000):
            os.read(self._descriptor, 1 << 16)
