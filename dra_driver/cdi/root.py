# SPDX-License-Identifier: Apache-2.0
"""Where things are: the same tree has one path for this process, one for the container runtime, one in a container.

A node plugin runs in a container of its own. It sees the driver's files at `/driver-root`, the runtime sees them at
`/` or `/run/nvidia/driver`, and a CUDA program must find them at `/`. A path without its root is what a container
sees, and what functions here take and return.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DriverError

_LONGEST_CHAIN = 40
"""Symbolic links that Linux follows before it gives up."""


class DriverFilesError(DriverError):
    """Something of the NVIDIA driver that a container cannot do without is not where it should be."""


@dataclass(frozen=True, slots=True)
class Root:
    """A tree laid out like a root file system: at `path` for this process, at `host_path` for the runtime."""

    path: Path
    host_path: str = "/"

    def here(self, path: str) -> Path:
        """`path` of the tree, as this process opens it."""
        return self.path / path.lstrip("/")

    def on_host(self, path: str) -> str:
        """`path` of the tree, as the container runtime opens it."""
        return f"{self.host_path.rstrip('/')}/{path.lstrip('/')}"

    def resolve(self, path: str) -> str | None:
        """What `path` is when every symbolic link on the way is followed, None when nothing is there.

        Absolute links lead into the tree, as they do for a program that runs in it. Opening `here(path)` would
        follow them out of the tree instead.
        """
        base = str(self.path)  # a Path for every step would take most of the time
        found: list[str] = []
        ahead = _parts(path)
        links = 0
        while ahead:
            part = ahead.pop()
            if part == "..":
                del found[-1:]
                continue
            try:
                target = os.readlink("/".join([base, *found, part]))  # noqa: PTH115
            except OSError as error:
                if error.errno == errno.EINVAL:  # there, and no link
                    found.append(part)
                    continue
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    return None
                raise
            links += 1
            if links > _LONGEST_CHAIN:
                return None
            if target.startswith("/"):
                found.clear()
            ahead.extend(_parts(target))
        return "/" + "/".join(found)

    def entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        """What is in `folder`, which has no links on the way, sorted by name; nothing when it is missing."""
        try:
            with os.scandir(self.here(folder)) as entries:
                yield from sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """Where a node's NVIDIA driver shows itself: files, device nodes below `/dev`, and what the kernel tells."""

    files: Root
    dev: Root
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    @classmethod
    def at(cls, path: Path, host_path: str = "/") -> "DriverRoot":
        """A driver installed at `host_path` of the host and seen here at `path`, on the kernel of this process.

        Device nodes are taken from the same tree when it has a `/dev`, else from this process's own.
        """
        files = Root(path, host_path)
        return cls(files, files if files.here("/dev").is_dir() else Root(Path("/")))

    @classmethod
    def of_node(cls, path: Path, host_path: str = "/") -> "DriverRoot":
        """A whole node's root file system, `/proc` and `/sys` included, seen here at `path`."""
        root = Root(path, host_path)
        return cls(root, root, root.here("/proc"), root.here("/sys"))


def _parts(path: str) -> list[str]:
    """The steps of `path`, last one first, so that the next one to take is popped."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
