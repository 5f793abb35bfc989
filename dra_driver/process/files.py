# SPDX-License-Identifier: Apache-2.0
"""Small files that a process keeps.

A file is written under a temporary name and then renamed. So a reader finds a complete file or none, even if the writer
is killed. If something else has the name of the file (a directory, a pipe, a broken link), it is renamed to a hidden
name in the same folder. It is not deleted, so that an administrator can look at it.
"""

import contextlib
import fcntl
import functools
import logging
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..errors import NotAFileError

log = logging.getLogger(__name__)

Name = str | Path
"""The path of a file. Paths as text are quicker where every claim needs several."""

_CHUNK: Final = 1 << 16
_HERE: Final = -100  # AT_FDCWD: relative paths begin in the working directory
_EXCHANGE: Final = 2  # RENAME_EXCHANGE


def read_file(path: Name) -> bytes:
    """The content of a regular file. Raises NotAFileError, FileNotFoundError, or another OSError."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b"".join(iter(lambda: os.read(descriptor, _CHUNK), b""))
        finally:
            os.close(descriptor)
    except OSError:
        if not is_in_the_way(path):
            raise
    raise NotAFileError(f"{path} is not a regular file")


def names_in(folder: Name) -> list[str]:
    """The names in a folder, none if the folder does not exist. Raises OSError if the folder cannot be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - only names are needed
    except FileNotFoundError:  # even if somebody makes the folder at this moment
        return []
    except OSError:
        if Path(folder).is_dir():
            raise
        return []


def folder_version(folder: Path) -> int:
    """A number that changes when a name is added to a folder or removed from it: the time of its last change, in
    nanoseconds of the epoch. 0 if the folder does not exist.
    """
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - called often
    except OSError:
        return 0


def is_in_the_way(path: Name) -> bool:
    """Whether the path exists, but is not a regular file."""
    return os.path.lexists(path) and not os.path.isfile(path)  # noqa: PTH113


def write_file(
    path: Name, data: bytes, temporary: Name, mode: int | None = None, *, sync: bool = False, exchange: bool = False
) -> os.stat_result:
    """Write or replace a file. Returns its status. Raises OSError.

    The data is first written to `temporary`, which must be in the same folder. If the process is killed, this file may
    remain. `mode` is set independently of the umask. With `sync`, the data is on the disk before the file is replaced.

    With `exchange`, the new file and the old file swap names, and the old file is then removed. That takes a fifth of
    the time on ext4, which begins to write a file to the disk when a rename replaces another one. It is for files that
    mean nothing after a loss of power. If the process is killed, the old file may remain as `temporary`.
    """
    descriptor = _create(temporary, 0o666 if mode is None else mode)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if mode is not None:
            os.fchmod(descriptor, mode)
        if sync:
            os.fsync(descriptor)
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if exchange and _exchange(temporary, path):
        remove_file(temporary)
    else:
        put_file(temporary, path)
    return status


def _exchange(first: Name, second: Name) -> bool:
    """Exchange two names as one change. False if one is missing, or the file system cannot do it."""
    sys.audit("os.rename", first, second, -1, -1)
    renameat2 = _renameat2()
    return renameat2 is not None and renameat2(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    """The function of the C library, which Python does not have."""
    import ctypes  # a process that uses NVML needs it anyway

    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), "renameat2", None)
    return function


def _create(temporary: Name, mode: int) -> int:
    """A descriptor of a new file. An existing file is removed, or set aside if it is not a regular file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(temporary, flags, mode)
    except FileExistsError:
        if is_in_the_way(temporary):
            set_aside(Path(temporary))
        else:
            os.unlink(temporary)  # noqa: PTH108
        return os.open(temporary, flags, mode)


def put_file(temporary: Name, path: Name) -> None:
    """Rename a complete temporary file to its path, and replace what is there. Raises OSError."""
    try:
        os.replace(temporary, path)  # noqa: PTH105
    except OSError:
        if not (Path(path).is_dir() or Path(temporary).is_dir()):
            raise
        set_aside(Path(path))
        os.replace(temporary, path)  # noqa: PTH105


def remove_file(path: Name) -> bool:
    """Remove a file, or set aside a directory with its name. False if nothing is there. Raises OSError."""
    try:
        os.unlink(path)  # noqa: PTH108
    except (FileNotFoundError, NotADirectoryError):  # NotADirectoryError if the folder is not a directory
        return False
    except OSError:
        other = Path(path)
        if other.is_symlink() or not other.is_dir():
            raise
        set_aside(other)
    return True


def make_folder(path: Path, mode: int = 0o750) -> None:
    """Make a folder and its parents if they do not exist. A file with its name is set aside. Raises OSError."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=mode)
    except FileExistsError:
        set_aside(path)
        path.mkdir(parents=True, exist_ok=True, mode=mode)


def open_lock(path: Path) -> int:
    """A descriptor of a lock file, which is created if it does not exist. Raises OSError.

    Something else with its name is set aside.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Without this lock, two processes could set something aside at the same time and create two lock files.
        fcntl.flock(folder, fcntl.LOCK_EX)
        if is_in_the_way(path):
            set_aside(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    finally:
        os.close(folder)


def try_lock(descriptor: int) -> bool:
    """Lock an open file until the descriptor is closed, also by processes that inherit it. False if another descriptor
    has the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def set_aside(path: Path) -> None:
    """Rename a path to a hidden name, or remove it if it is an empty directory. Raises OSError."""
    with contextlib.suppress(OSError):
        path.rmdir()
        log.warning("an empty directory at the path of a file is removed", extra={"path": str(path)})
        return
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.aside")
    path.rename(aside)
    log.warning("this path was not a regular file; it is renamed to %s", aside, extra={"path": str(path)})
