# SPDX-License-Identifier: Apache-2.0
"""Small files that a process keeps, and what to do when something else stands in their place.

A file is written under another name and then renamed, so a reader finds it whole or not at all, whenever the writer is
killed. Something of the wrong kind (a directory, a pipe, a link that leads nowhere) is never waited for nor deleted
with what is in it: it is moved to a hidden name beside it, so that it stands in nobody's way and can be looked at.
"""

import contextlib
import fcntl
import logging
import os
import stat
from pathlib import Path

from .errors import DriverError

log = logging.getLogger(__name__)


class NotAFileError(DriverError, ValueError):
    """Something that is no regular file has the name of one; the text names it."""


def read_file(path: Path) -> bytes:
    """The content of a regular file. Raises NotAFileError, FileNotFoundError when nothing is there, or OSError."""
    try:
        # Without O_NONBLOCK a pipe would be waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read()
    except OSError:
        if not is_in_the_way(path):
            raise
    raise NotAFileError(f"{path} is no regular file")


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none when there is no such folder. Raises OSError when it cannot be looked into."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are all that is needed
    except OSError:
        if folder.is_dir():
            raise
        return []


def is_in_the_way(path: Path) -> bool:
    """Whether something that is no regular file stands at `path`."""
    return os.path.lexists(path) and not path.is_file()


def write_file(path: Path, data: bytes, temporary: Path, mode: int | None = None) -> None:
    """Write or replace a file by way of `temporary`, which must be in the same folder and may be left when the process
    is killed. `mode` is set whatever the umask. Raises OSError.
    """
    if is_in_the_way(temporary):
        set_aside(temporary)
    temporary.write_bytes(data)
    if mode is not None:
        temporary.chmod(mode)
    put_file(temporary, path)


def put_file(temporary: Path, path: Path) -> None:
    """Rename what is written whole to where it belongs, in place of whatever is there. Raises OSError."""
    try:
        temporary.replace(path)
    except OSError:
        if not (path.is_dir() or temporary.is_dir()):
            raise
        set_aside(path)
        temporary.replace(path)


def remove_file(path: Path) -> bool:
    """Remove a file, or set aside a directory in its place; False when nothing is there. Raises OSError."""
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):  # the second when not even the folder is one
        return False
    except OSError:
        if path.is_symlink() or not path.is_dir():
            raise
        set_aside(path)
    return True


def make_folder(path: Path, mode: int = 0o750) -> None:
    """Make a folder, with those above it, unless it is there. What else has its name is set aside. Raises OSError."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=mode)
    except FileExistsError:
        set_aside(path)
        path.mkdir(parents=True, exist_ok=True, mode=mode)


def open_lock(path: Path) -> int:
    """A descriptor of the lock file `path`, which is made when it is missing. What else has its name is set aside.

    Raises OSError.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # two processes that set something aside must not end with two lock files
        if is_in_the_way(path):
            set_aside(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    finally:
        os.close(folder)


def set_aside(path: Path) -> None:
    """Move what stands in the way to a hidden name; an empty directory is removed. Raises OSError."""
    with contextlib.suppress(OSError):
        path.rmdir()
        log.warning("an empty directory at the path of a file is removed", extra={"path": str(path)})
        return
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.aside")
    path.rename(aside)
    log.warning(
        "something that is no regular file was at this path and is moved to %s", aside, extra={"path": str(path)}
    )
