# SPDX-License-Identifier: Apache-2.0
"""The node's files, which this process may see below another folder (`--host-root`).

All paths are paths on the host. Links are followed as on the host: below /host, /var/run must lead to /host/run and
not to the container's own /run.
"""

import fnmatch
import os
import posixpath
from dataclasses import dataclass
from pathlib import Path

from dra_driver.cdi import Root

_LARGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file or folder that is there and cannot be read."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} cannot be read: {self.reason}"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the host. `problem` says why a file cannot be made in it, empty when one can; None: not to be seen
    from here, because this process has the host's tree read-only.
    """

    path: str
    exists: bool
    problem: str | None = ""


class Host:
    """The host's tree, seen at `root`."""

    def __init__(self, root: Path) -> None:
        self._root = Root(root.absolute())
        self.is_own = root.absolute() == Path("/")

    def here(self, path: str) -> Path:
        """`path` of the host as this process opens it, links followed; where it would be when it is missing."""
        return self._root.here(self.canonical(path))

    def canonical(self, path: str) -> str:
        """`path` without links on the way to whatever part of it exists: /run/cdi for /var/run/cdi."""
        head, missing = "/" + posixpath.normpath(path).lstrip("/"), ""
        while head != "/":
            try:
                resolved = self._root.resolve(head)
            except OSError:  # a folder that may not be looked into
                resolved = None
            if resolved is not None:
                return posixpath.normpath(posixpath.join(resolved, missing))
            head, name = posixpath.split(head)
            missing = posixpath.join(name, missing) if missing else name
        return f"/{missing}"

    def read(self, path: str) -> str | Unreadable | None:
        """The text of a file, None when there is none."""
        try:
            with self.here(path).open("rb") as stream:
                data = stream.read(_LARGEST + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return Unreadable(path, error.strerror or str(error))
        if len(data) > _LARGEST:
            return Unreadable(path, f"larger than {_LARGEST >> 20} MiB")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            return Unreadable(path, f"not UTF-8 at byte {error.start}")

    def matches(self, pattern: str) -> list[str] | Unreadable:
        """The paths that a pattern with `*` in its last part stands for, sorted."""
        folder, name = posixpath.split(pattern)
        entries = self.entries(folder)
        if isinstance(entries, Unreadable):
            return entries
        return [path for path in entries if fnmatch.fnmatchcase(posixpath.basename(path), name)]

    def entries(self, folder: str) -> list[str] | Unreadable:
        """The paths of what is directly in `folder`, sorted; empty when it is missing."""
        try:
            return [posixpath.join(folder, name) for name in sorted(os.listdir(self.here(folder)))]  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            return Unreadable(folder, error.strerror or str(error))

    def exists(self, path: str) -> bool:
        """Whether there is anything at `path`."""
        return os.path.lexists(self.here(path))

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder at `path`, and no link to one."""
        parent, name = posixpath.split(path)
        here = self.here(parent) / name
        return here.is_dir() and not here.is_symlink()

    def folder(self, path: str) -> Folder:
        """What is known of a folder."""
        here = self.here(path)
        try:
            if not here.is_dir():
                return Folder(path, exists=False, problem="not a folder" if here.exists() else "")
            if os.statvfs(here).f_flag & os.ST_RDONLY and not self.is_own:
                return Folder(path, exists=True, problem=None)
        except OSError as error:
            return Folder(path, exists=False, problem=error.strerror or str(error))
        if not os.access(here, os.W_OK | os.X_OK):
            return Folder(path, exists=True, problem="not writable for this process")
        return Folder(path, exists=True)
