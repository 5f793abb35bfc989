# SPDX-License-Identifier: Apache-2.0
"""Paths of the driver's files, which differ for this process, for the container runtime, and in a container.

A node plugin runs in its own container. It sees the driver's files at `/driver-root`, the runtime sees them at `/` or
`/run/nvidia/driver`, and a CUDA program must find them at `/`. The functions here take and return paths without a root,
as they are in a container.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LONGEST_CHAIN = 40
"""The number of symbolic links that Linux follows before it gives up."""


Links = dict[str, str | None]
"""By path for this process: where the symbolic link leads, empty for what is no link, None for what does not exist."""


@dataclass(frozen=True, slots=True)
class Root:
    """A file system tree: at `path` for this process, at `host_path` for the runtime."""

    path: Path
    host_path: str = "/"

    def here(self, path: str) -> Path:
        """The path of `path` for this process."""
        return Path(self.name_here(path))

    def name_here(self, path: str) -> str:
        """The path of `path` for this process, as text."""
        return f"{self.path}/{path.lstrip('/')}"

    def on_host(self, path: str) -> str:
        """The path of `path` for the container runtime."""
        return f"{self.host_path.rstrip('/')}/{path.lstrip('/')}"

    def resolve(self, path: str, links: Links | None = None) -> str | None:
        """`path` with all symbolic links followed, or None if it does not exist.

        Absolute links stay in the tree, as for a program that runs in it. Opening `here(path)` would follow them out of
        the tree. `links` keeps what was read, for callers that resolve many paths of the same few folders at a time.
        """
        known = {} if links is None else links
        base = str(self.path)  # operations on Path objects would take most of the time
        found: list[str] = []
        ahead = _parts(path)
        followed = 0
        while ahead:
            part = ahead.pop()
            if part == "..":
                del found[-1:]
                continue
            name = "/".join([base, *found, part])
            if name not in known:
                known[name] = _target(name)
            target = known[name]
            if target is None:
                return None
            if not target:
                found.append(part)
                continue
            followed += 1
            if followed > _LONGEST_CHAIN:
                return None
            if target.startswith("/"):
                found.clear()
            ahead.extend(_parts(target))
        return "/" + "/".join(found)

    def entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        """The entries of `folder`, sorted by name. Empty if it is missing. The path must not contain links."""
        try:
            with os.scandir(self.here(folder)) as entries:
                yield from sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """The places of a node's NVIDIA driver: its files, device nodes below `/dev`, and the kernel's /proc and /sys.
    `machine` is the node itself, whose `/dev` has the nodes of VFIO also if the driver is installed elsewhere.
    `library_folders` are folders with libraries in `files`, in addition to the detected folders.
    """

    files: Root
    dev: Root
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    machine: Root = Root(Path("/"))
    library_folders: tuple[str, ...] = ()


def _target(path: str) -> str | None:
    """The value of Links for this path."""
    try:
        return os.readlink(path)  # noqa: PTH115 - a Path would take most of the time
    except OSError as error:
        if error.errno == errno.EINVAL:  # it exists and is not a link
            return ""
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def _parts(path: str) -> list[str]:
    """The parts of `path` in reverse order, so that `pop` returns the next one."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
