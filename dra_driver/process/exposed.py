# SPDX-License-Identifier: Apache-2.0
"""Works in folders in which containers can write.

A container can exchange each name in such a folder at any moment: a file for a link, a directory for a link. So nothing
here uses a path through such a folder. Each name is used relative to the descriptor of its folder, and no link is
followed. A container can also make millions of names, or nest folders more deeply than the process may have open
files. So no work depends on how much a container has made: `Trash.take` renames a whole tree, and `Trash.empty` removes
a limited number of names at a time.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS: Final = 5
_SPECIAL: Final = (stat.S_ISSOCK, stat.S_ISFIFO)
_MOST_COPIED: Final = 1 << 16
_ROUND: Final = 10_000
_MOST_ROUNDS: Final = 10_000


@contextlib.contextmanager
def folder_at(name: str | Path, parent: int | None = None) -> Iterator[int]:
    """A descriptor of a folder, which must not be a link. `name` is a path that no container can change, or the name of
    an entry of the folder `parent`. Raises OSError.
    """
    descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder_in(parent: int, name: str, mode: int) -> None:
    """Make a folder in the folder `parent`, if there is none. Something else with its name is put out of the way.
    Raises OSError.
    """
    for _ in range(_ATTEMPTS):
        try:
            os.mkdir(name, mode, dir_fd=parent)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                return
            _clear(parent, name)
        else:
            return
    raise FileExistsError(f"somebody makes {name!r} again and again")


def publish(source: int, target: int, *, files: bool) -> None:
    """Show what is in the folder `source`, to which only root has access, in the folder `target`, in which a container
    can write. Raises OSError.

    A socket or a pipe gets a second name in `target` (a hard link). Containers can use it, but can exchange only this
    second name. With `files`, small regular files are copied, because a container could write to a file with two names.
    Folders of `source` are folders in `target`. Existing entries of the same names in `target` are replaced. Other
    names stay.
    """
    for name in sorted(os.listdir(source)):
        facts = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            make_folder_in(target, name, 0o755)
            with folder_at(name, source) as inner, folder_at(name, target) as shown:
                publish(inner, shown, files=files)
        elif any(is_kind(facts.st_mode) for is_kind in _SPECIAL):
            _link(source, name, target, name)
        elif files and stat.S_ISREG(facts.st_mode):
            _copy(source, name, target)


def _link(source: int, name: str, target: int, shown: str) -> None:
    for _ in range(_ATTEMPTS):
        try:
            os.link(name, shown, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        except FileExistsError:
            if _is_same(source, name, target, shown):
                return
            _clear(target, shown)
        else:
            return
    raise FileExistsError(f"somebody makes {shown!r} again and again")


def _is_same(source: int, name: str, target: int, shown: str) -> bool:
    try:
        there = os.stat(shown, dir_fd=target, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.stat(name, dir_fd=source, follow_symlinks=False), there)


def _copy(source: int, name: str, target: int) -> None:
    """Copy a file of `source`. The copy is made in `source`, where no container can exchange it, and then moved."""
    copy = f".{name}.{os.urandom(4).hex()}"
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
    try:
        content, mode = os.read(descriptor, _MOST_COPIED), stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
    made = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=source)
    try:
        os.write(made, content)
        os.fchmod(made, mode)
    finally:
        os.close(made)
    try:
        _link(source, copy, target, name)
    finally:
        os.unlink(copy, dir_fd=source)


def _clear(folder: int, name: str) -> None:
    """Remove a name. A directory gets another name instead, because removing what is in it could take long."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        aside = f".{os.urandom(8).hex()}.aside"
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)


class Trash:
    """Files and folders that containers could write, and that are to be removed. They are in `folder`, in which only
    root may create names.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, path: Path) -> None:
        """Move a file or a folder here, if it exists. It must be on the same file system, and in a folder in which only
        root can create names. Raises OSError.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            path.rename(self._folder / os.urandom(8).hex())

    def empty(self, most: int) -> bool:
        """Remove up to `most` names. Returns whether nothing is left. Raises OSError."""
        try:
            with folder_at(self._folder) as top:
                return _empty(top, most)
        except FileNotFoundError:
            return True


def remove_tree(path: Path) -> None:
    """Remove a folder with all that containers have written in it, however deep. Raises OSError, also if another
    process continues to write in it.
    """
    with folder_at(path) as top:
        for _ in range(_MOST_ROUNDS):
            if _empty(top, _ROUND):
                break
    path.rmdir()


def _empty(top: int, most: int) -> bool:
    """Remove up to `most` names below the folder `top`. The folders in a folder are first moved up to `top`, so neither
    the call stack nor the number of open files grows with the depth. Returns whether nothing is left.
    """
    while most > 0:
        with os.scandir(top) as entries:
            names = [entry.name for entry in islice(entries, most)]
        if not names:
            return True
        most -= _remove_all(top, names, most)
    return False


def _remove_all(top: int, names: list[str], most: int) -> int:
    """Remove up to `most` names in and below the folder `top`. Returns how many. Raises OSError if one cannot be
    removed, after the others were.
    """
    problem: OSError | None = None
    count = 0
    for name in names:
        if count >= most:
            break
        try:
            count += _remove(top, name, most - count)
        except FileNotFoundError:
            count += 1
        except OSError as error:
            problem = error
    if problem is not None:
        raise problem
    return count


def _remove(top: int, name: str, most: int) -> int:
    """Remove a file, or up to `most` names of a folder, and the folder if it is empty then. Returns how many."""
    try:
        os.unlink(name, dir_fd=top)
    except IsADirectoryError:
        pass
    else:
        return 1
    count = 1
    with _unlocked(name, top) as folder, os.scandir(folder) as entries:
        for entry in islice(entries, most):
            count += 1
            with contextlib.suppress(FileNotFoundError):
                try:
                    os.unlink(entry.name, dir_fd=folder)
                except IsADirectoryError:
                    with _unlocked(entry.name, folder):  # moving a folder takes the permission to write in it
                        _move(folder, entry.name, top)
    with contextlib.suppress(OSError):  # more is in it
        os.rmdir(name, dir_fd=top)
    return count


def _move(folder: int, name: str, to: int) -> None:
    os.rename(name, os.urandom(8).hex(), src_dir_fd=folder, dst_dir_fd=to)


@contextlib.contextmanager
def _unlocked(name: str, parent: int) -> Iterator[int]:
    """A descriptor of a folder, whose owner may have taken away all permissions."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)  # noqa: PTH101 - the folder itself, whatever has its name now
            folder = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            os.close(handle)
    try:
        yield folder
    finally:
        os.close(folder)
