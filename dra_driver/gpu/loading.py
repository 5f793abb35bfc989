# SPDX-License-Identifier: Apache-2.0
"""Loading the NVML library, and letting go of it.

The library is taken from the driver root when one is given, because in a container the driver's files are somewhere
else than the loader looks. After a driver upgrade a process still has the old library, which the new kernel module
refuses. So the library is unloaded when the last gateway of the process is shut down, and the next one to be
initialized loads what is installed then.

pynvml never lets go of a library: it keeps it in `nvmlLib`, and the functions that it has looked up in
`_nvmlGetFunctionPointer_cache`. Both are module globals without a way to reset them, so they are set here.
"""

import _ctypes
import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from .nvml import NvmlError, Return

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    ".",
)
"""Where the driver installs its libraries, below the driver root."""

_INIT_WITHOUT_GPUS = 1  # NVML_INIT_FLAG_NO_GPUS

T = TypeVar("T")

_process = threading.Lock()
_users = 0  # gateways of this process that are initialized, or about to be; under _process


def find_library(driver_root: Path) -> Path | None:
    """The NVML library below `driver_root`."""
    candidates = (driver_root / directory / LIBRARY for directory in LIBRARY_DIRECTORIES)
    return next((path for path in candidates if path.exists()), None)


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Call a pynvml function, its errors turned into the gateway's."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        code = Return.of(error.value)
        detail = f"code {error.value}" if code is Return.UNKNOWN else ""
        raise NvmlError(code, function.__name__, detail) from None


class Gate:
    """One gateway's way to the library: calls pass while it is open, and closing waits for those under way.

    Without it a call could run into a library that is being unloaded, or take a handle of an earlier initialization
    to a GPU that has another place in NVML's list since.
    """

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._is_open = False
        self._passing = 0

    def open(self, driver_root: Path | None) -> None:
        """Load the library, if no other gateway has, and initialize it. Raises NvmlError."""
        with self._state:
            if self._is_open:
                raise NvmlError(Return.ALREADY_INITIALIZED, "nvmlInitWithFlags", "this gateway is")
            _start(driver_root)
            self._is_open = True

    def close(self) -> None:
        """Let no call in any more, wait for those inside, shut down. Closed it is also when that raises NvmlError."""
        with self._state:
            if not self._is_open:
                raise NvmlError(Return.UNINITIALIZED, "nvmlShutdown")
            self._is_open = False
            self._state.wait_for(lambda: not self._passing)
        _stop()

    @contextlib.contextmanager
    def passing(self, name: str) -> Iterator[None]:
        """While a call runs. Raises NvmlError with UNINITIALIZED when the gate is closed."""
        with self._state:
            if not self._is_open:
                raise NvmlError(Return.UNINITIALIZED, name)
            self._passing += 1
        try:
            yield
        finally:
            with self._state:
                self._passing -= 1
                self._state.notify_all()


def _start(driver_root: Path | None) -> None:
    global _users
    with _process:
        if not _users:
            pynvml.nvmlLib = _load(driver_root)
        try:
            call(pynvml.nvmlInitWithFlags, _INIT_WITHOUT_GPUS)
        except NvmlError:
            if not _users:
                _unload()
            raise
        _users += 1


def _stop() -> None:
    global _users
    with _process:
        _users -= 1
        try:
            call(pynvml.nvmlShutdown)
        finally:
            if not _users:
                _unload()


def _load(driver_root: Path | None) -> ctypes.CDLL:
    # By path where there is one: by its name alone the loader would find a library that is loaded already.
    path = find_library(driver_root or Path("/"))
    try:
        return ctypes.CDLL(str(path or LIBRARY))
    except OSError as error:
        raise NvmlError(Return.LIBRARY_NOT_FOUND, "dlopen", str(error)) from None


def _unload() -> None:
    library, pynvml.nvmlLib = pynvml.nvmlLib, None
    pynvml._nvmlGetFunctionPointer_cache.clear()
    _ctypes.dlclose(library._handle)
