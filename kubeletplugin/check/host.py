# SPDX-License-Identifier: Apache-2.0
"""The files of the node.

The host's root may be below another folder for this process (`--host-root`). All paths are paths on the host. Links are
followed as on the host: below /host, /var/run must lead to /host/run and not to the container's own /run.
"""

import contextlib
import os
import posixpath
from dataclasses import dataclass
from pathlib import Path

from dra_driver.process.exposed import folder_at
from kubeletplugin.containers.cdi import Root

_LARGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file or folder that exists and cannot be read."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} cannot be read: {self.reason}"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the host. `problem` tells why no file can be created in it, and is empty if that is possible. It is
    None if this process cannot find out, because it sees the host's files read-only.
    """

    path: str
    exists: bool
    problem: str | None = ""


class Host:
    """The files of the host, which this process sees at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._root = Root(self.root)
        self.is_own = self.root == Path("/")

    def here(self, path: str) -> Path:
        """The path with which this process opens `path` of the host, with links followed. The file need not exist."""
        return self._root.here(self.canonical(path))

    def canonical(self, path: str) -> str:
        """`path` without links, as far as it exists: /run/cdi for /var/run/cdi."""
        head, missing = "/" + posixpath.normpath(path).lstrip("/"), ""
        while head != "/":
            try:
                resolved = self._root.resolve(head)
            except OSError:  # no permission to read a folder
                resolved = None
            if resolved is not None:
                return posixpath.normpath(posixpath.join(resolved, missing))
            head, name = posixpath.split(head)
            missing = posixpath.join(name, missing) if missing else name
        return f"/{missing}"

    def read(self, path: str) -> str | Unreadable | None:
        """The text of a file, or None if it does not exist."""
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

    def descriptor(self, path: str) -> int:
        """A descriptor (O_PATH) of a file. The file itself may be a link, which is not followed. Raises OSError."""
        folder, name = posixpath.split(path)
        with contextlib.ExitStack() as stack:
            here = stack.enter_context(folder_at(self.root))
            for part in filter(None, self.canonical(folder).split("/")):
                here = stack.enter_context(folder_at(part, here))
            return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)

    def entries(self, folder: str) -> list[str] | Unreadable:
        """The sorted paths of the entries of `folder`. Empty if it does not exist."""
        try:
            return [posixpath.join(folder, name) for name in sorted(os.listdir(self.here(folder)))]  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            return Unreadable(folder, error.strerror or str(error))

    def exists(self, path: str) -> bool:
        """Whether `path` exists."""
        return os.path.lexists(self.here(path))

    def is_folder(self, path: str) -> bool:
        """Whether `path` is a folder, and not a link to one."""
        parent, name = posixpath.split(path)
        here = self.here(parent) / name
        return here.is_dir() and not here.is_symlink()

    def folder(self, path: str) -> Folder:
        """The state of a folder."""
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
