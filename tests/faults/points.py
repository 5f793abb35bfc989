# SPDX-License-Identifier: Apache-2.0
"""The points at which the plugin touches the node, counted as they come, and what happens at one of them.

Nothing is listed by hand: a point is a moment before or after any call of NVML, and a moment before any change of a
file or start of a program, so a step that is added later gets faults too. Files are seen through Python's audit events
(open, rename, remove, mkdir, ...; PEP 578); between the opening of a file for writing and its renaming, the thread's
calls of `write`, `flush`, `fsync` and the like, of streams and of descriptors, are seen by a profile function, because
they have no such event.
"""

import contextlib
import ctypes
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any, cast

from dra_driver.gpu.fabric import FabricManager
from dra_driver.gpu.nvml import Nvml, NvmlError, Return
from dra_driver.gpu.threads import FABRIC
from kubeletplugin.claims import changes

Fault = Callable[[str], None]
"""What happens at a point, which it is told in words: nothing, an exception, a pause, or the end."""

ACCESS = "look after GPUs"
"""The thread that brings the node and the records together at a start; what changes a GPU runs on the GPU's own."""

BACKGROUND = (
    "read hardware",
    "watch GPUs",
    "wait for GPU events",
    "report claims",
    "ask API server",
    "keep sockets",
    "bind claims",
    "write events",
    "watch MPS",
)
"""Threads (by the beginnings of their names) that only look and tell, at any moment: they are not counted."""

GPUS = "nvml-"
"""What the names of threads that call NVML begin with. They are counted while they carry out the steps of a claim."""

FABRIC_MANAGER = f"{GPUS}{FABRIC[-12:]}"
"""The thread that calls Fabric Manager. It is always counted."""
_STEPS = changes.__file__

_CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.utime", "os.truncate", "os.link"}
_LAST_OF_A_FILE = {"os.remove", "os.rename"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_OF_A_STREAM = {"write", "flush", "truncate", "__exit__"}
_OF_A_DESCRIPTOR = {os.write, os.fsync}


class Trigger(ctypes.Structure):
    """The point at which the fault occurs. It is plain memory, so that another process can share it.

    While `watching`, points are counted in `count`, and the fault occurs at the point with the number `point`; with
    `lasting`, also at all points after it. `error` is a number for the fault.
    """

    _fields_ = (
        ("watching", ctypes.c_bool),
        ("lasting", ctypes.c_bool),
        ("point", ctypes.c_int),
        ("count", ctypes.c_int),
        ("error", ctypes.c_int),
    )
    watching: bool
    lasting: bool
    point: int
    count: int
    error: int

    def arm(self, point: int = -1, *, lasting: bool = False, error: int = 0) -> None:
        """Count from 0, and let the fault occur at `point`, or nowhere without a point."""
        self.watching, self.lasting, self.point, self.count, self.error = False, lasting, point, 0, error
        self.watching = True

    def disarm(self) -> int:
        """Count no more. Returns the number of points."""
        self.watching = False
        return self.count


class Points:
    """Counts points of all threads except background threads, and lets a fault occur. The work of a start, and the care
    for the node, is counted only with `starts`; never its reading of the hardware, which has hundreds of points.
    """

    def __init__(self, trigger: Trigger, fault: Fault, *, starts: bool = False) -> None:
        self.trigger = trigger
        self.fault = fault
        self.names: list[str] = []
        self._ignored = BACKGROUND if starts else (*BACKGROUND, ACCESS)
        self._guard = threading.Lock()

    def reach(self, what: str) -> None:
        """A thread comes to a point."""
        trigger = self.trigger
        name = threading.current_thread().name
        if not trigger.watching or name.startswith(self._ignored):
            return
        if name.startswith(GPUS) and name != FABRIC_MANAGER and not _in_a_step():
            return
        with self._guard:
            index = trigger.count
            trigger.count += 1
            if index == 0:
                self.names.clear()
            self.names.append(what)
        if index == trigger.point or (trigger.lasting and 0 <= trigger.point < index):
            self.fault(what)

    def gateway(self, nvml: Nvml) -> Nvml:
        """The same NVML, with a point before and after every call."""
        methods = {name: self._method(name, getattr(nvml, name)) for name in Nvml.__abstractmethods__}
        return cast(Nvml, type("NvmlAtPoints", (Nvml,), methods)())

    def fabric(self, manager: FabricManager) -> FabricManager:
        """The same Fabric Manager, with a point before and after every call that goes to it."""
        names = FabricManager.__abstractmethods__ - {"identity"}
        methods: dict[str, Any] = {name: self._method(name, getattr(manager, name)) for name in names}
        methods["identity"] = property(lambda _: manager.identity)
        return cast(FabricManager, type("FabricAtPoints", (FabricManager,), methods)())

    def _method(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(_: Nvml, *arguments: object) -> Any:
            if threading.current_thread().name == ACCESS:
                return real(*arguments)
            self.reach(f"before {name}")
            result = real(*arguments)
            self.reach(f"after {name}")
            return result

        return call

    @contextlib.contextmanager
    def of_files(self, *folders: Path) -> Iterator[None]:
        """A point before every change of a file or folder below `folders`."""
        _install()
        watch = tuple(str(folder) for folder in folders), self.reach
        _watches.append(watch)
        try:
            yield
        finally:
            _watches.remove(watch)


def _in_a_step() -> bool:
    """Whether this thread carries out the steps of a claim, rather than read a GPU."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != _STEPS:
        frame = frame.f_back
    return frame is not None


# Faults


def kill(what: str) -> None:
    """The process ends here, without a last word of its own."""
    os.write(sys.stderr.fileno(), f"killed: {what}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60.0)


class KilledError(BaseException):
    """Stands for the end of the process. No code catches it."""


def raise_killed(what: str) -> None:
    """End the work as if the process were killed: the code on the way out only releases what the kernel would."""
    raise KilledError(what)


def nvml_fails(code: Return) -> Fault:
    """A call of NVML fails; after it has done its work, at a point after it. Changes of files go well."""

    def fault(what: str) -> None:
        if what.startswith(("before ", "after ")):
            raise NvmlError(code, what.split()[1], "it fails here")

    return fault


def disk_fails(number: int) -> Fault:
    """A change of a file, or the start of a program, fails. NVML goes well."""

    def fault(what: str) -> None:
        if not what.startswith(("before ", "after ")):
            verb, _, path = what.partition(" ")
            raise OSError(number, os.strerror(number), None if verb in _UNNAMED else path)

    return fault


_UNNAMED = {*_OF_A_STREAM, *(one.__name__ for one in _OF_A_DESCRIPTOR)}  # these do not know the name of their file


# Files

_watches: list[tuple[tuple[str, ...], Callable[[str], None]]] = []
_installed: list[bool] = []
_profile_lock = threading.RLock()


def _install() -> None:
    """Once a process: an audit hook stays."""
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        for _folders, reached in _watches:
            reached(f"run {' '.join(map(os.fsdecode, arguments[1]))}")
        return
    if not _watches or (event != "open" and event not in _CHANGES):
        return
    path = _path(arguments[0])
    reach = _watcher(path)
    if reach is None:
        return
    if event == "open":
        flags = arguments[2]
        if not flags & (_WRITING | os.O_DIRECTORY):
            return
        if flags & _WRITING:
            reach(f"open {path}")
        _set_profile(_profile)
    else:
        if event in _LAST_OF_A_FILE:
            _set_profile(None)
        reach(f"{event.removeprefix('os.')} {path}")


def _set_profile(profile: Callable[[FrameType, str, object], None] | None) -> None:
    """One thread after the other: with an audit hook, CPython lets another thread run in the middle of this call, which
    is then refused (`RuntimeError: Cannot install a profile function while another ... is being installed`).
    """
    with _profile_lock:
        sys.setprofile(profile)


def _profile(_: FrameType, event: str, function: object) -> None:
    """The calls of C functions between the opening of a file and its last change."""
    if not _watches:  # the last file that was opened was neither renamed nor removed
        _set_profile(None)
        return
    if event != "c_call" or not isinstance(function, BuiltinFunctionType):
        return
    of = function.__self__
    if function in _OF_A_DESCRIPTOR:
        for _folders, reach in _watches:
            reach(function.__name__)
    elif function.__name__ in _OF_A_STREAM and isinstance(of, io.IOBase):
        path = _path(getattr(of, "name", ""))
        watcher = _watcher(path)
        if watcher is not None:
            watcher(f"{function.__name__} {path}")


def _watcher(path: str) -> Callable[[str], None] | None:
    return next((reach for folders, reach in _watches if path.startswith(folders)), None)


def _path(name: object) -> str:
    """The path of a file by its name or its descriptor."""
    if isinstance(name, int):
        with contextlib.suppress(OSError):
            return str(Path(f"/proc/self/fd/{name}").readlink())
        return ""
    return os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else ""
