# SPDX-License-Identifier: Apache-2.0
"""Small files that a process keeps.

A file is written under a temporary name and then renamed. So a reader finds a complete file or none, even if the writer
is killed. If something else has the name of the file (a directory, a pipe, a broken link), it is renamed to a hidden
name in the same folder. It is not deleted, so that an administrator can look at it.
"""

import contextlib
import fcntl
import logging
import os
import stat
from pathlib import Path

from ..errors import NotAFileError

log = logging.getLogger(__name__)


def read_file(path: Path) -> bytes:
    """The content of a regular file. Raises NotAFileError, FileNotFoundError, or another OSError."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read()
    except OSError:
        if not is_in_the_way(path):
            raise
    raise NotAFileError(f"{path} is not a regular file")


def names_in(folder: Path) -> list[str]:
    """The names in a folder, none if the folder does not exist. Raises OSError if the folder cannot be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - only names are needed
    except FileNotFoundError:  # even if somebody makes the folder at this moment
        return []
    except OSError:
        if folder.is_dir():
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


def is_in_the_way(path: Path) -> bool:
    """Whether the path exists, but is not a regular file."""
    return os.path.lexists(path) and not path.is_file()


def write_file(path: Path, data: bytes, temporary: Path, mode: int | None = None) -> None:
    """Write or replace a file. Raises OSError.

    The data is first written to `temporary`, which must be in the same folder. If the process is killed, this file may
    remain. `mode` is set independently of the umask.
    """
    if is_in_the_way(temporary):
        set_aside(temporary)
    temporary.write_bytes(data)
    if mode is not None:
        temporary.chmod(mode)
    put_file(temporary, path)


def put_file(temporary: Path, path: Path) -> None:
    """Rename a complete temporary file to its path, and replace what is there. Raises OSError."""
    try:
        temporary.replace(path)
    except OSError:
        if not (path.is_dir() or temporary.is_dir()):
            raise
        set_aside(path)
        temporary.replace(path)


def remove_file(path: Path) -> bool:
    """Remove a file, or set aside a directory with its name. False if nothing is there. Raises OSError."""
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):  # NotADirectoryError if the folder is not a directory
        return False
    except OSError:
        if path.is_symlink() or not path.is_dir():
            raise
        set_aside(path)
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
