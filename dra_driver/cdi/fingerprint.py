# SPDX-License-Identifier: Apache-2.0
"""A fingerprint of the files from which the node's own spec is made, which shows cheaply whether they have changed.

`common_edits` reads folders with thousands of files. The fingerprint contains only what its result depends on: the
places where programs, configuration files, daemons and hook programs may be, the modification times of the folders with
libraries and firmware, the control nodes, and the driver's names in /proc/devices. It does not use NVML, so a plugin
can compare fingerprints every few seconds. Take the fingerprint before the spec is made: then the next one shows
changes in between.
"""

import functools
import itertools
import os
import stat
from collections.abc import Sequence

from .edits import CONTROL_NODES
from .files import DAEMON_PLACES, PROGRAM_FOLDERS, PROGRAMS, character_majors, config_places, firmware_folders
from .libraries import HOOK_FOLDERS, HOOK_NAMES, LIBRARY_FOLDERS, more_folders
from .root import DriverRoot, Root

_PROGRAMS = tuple(f"{folder}/{name}" for folder in PROGRAM_FOLDERS for name in PROGRAMS)
_LIBRARIES = (*LIBRARY_FOLDERS, *more_folders(LIBRARY_FOLDERS))
_HOOKS = tuple(f"{folder}/{name}" for folder in HOOK_FOLDERS for name in HOOK_NAMES)

Fingerprint = tuple[object, ...]
"""Only compare fingerprints for equality. Their content has no other meaning."""


def fingerprint(
    root: DriverRoot,
    driver_version: str,
    hook_roots: Sequence[Root] = (),
    *,
    machine: str = os.uname().machine,
    kernel_release: str = os.uname().release,
) -> Fingerprint:
    """The state of all files that `common_edits` with the same arguments and `find_hook_tool` of `hook_roots` depend
    on.

    Leave out `hook_roots` if no hook program is searched. The file of the spec itself is not included.
    """
    tree = _Tree(root.files)
    firmware = firmware_folders(root.sys, driver_version, kernel_release)
    return (
        driver_version,
        [tree.folder(path) for path in (*_LIBRARIES, *firmware)],
        [tree.file(path) for path in _files(machine)],
        [hooks.file(path) for hooks in map(_Tree, hook_roots) for path in _HOOKS],
        _control_nodes(root),
    )


@functools.cache
def _files(machine: str) -> tuple[str, ...]:
    """The places where programs, configuration files and daemons may be."""
    places = (*config_places(machine).values(), *DAEMON_PLACES)
    return (*_PROGRAMS, *itertools.chain.from_iterable(places))


def _control_nodes(root: DriverRoot) -> list[object]:
    majors = character_majors(root.proc)
    found: list[object] = []
    for path, registered, _, _ in CONTROL_NODES:
        try:
            status = root.dev.here(path).stat()
        except FileNotFoundError:
            node = None
        else:
            node = (status.st_mode, status.st_rdev, status.st_gid)
        found.append((node, [majors.get(name) for name in registered]))
    return found


class _Tree:
    """A root of which many files are read at one moment. The links of each folder are followed only once.

    Paths are strings, without a slash for the root itself, because there are some two hundred of them.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._base = str(root.path).rstrip("/")
        self._resolved: dict[str, str | None] = {"": ""}

    def file(self, path: str) -> tuple[str, int] | None:
        """The file at `path` without links, its type, and who may execute it. None if there is nothing."""
        source = self._resolve(path)
        if source is None or (status := self._status(source)) is None:
            return None
        return source, stat.S_IFMT(status.st_mode) | status.st_mode & 0o111

    def folder(self, path: str) -> tuple[str, int, int] | None:
        """The folder at `path` without links, its inode and modification time. None if it is missing."""
        source = self._resolve(path)
        if source is None or (status := self._status(source)) is None:
            return None
        return source, status.st_ino, status.st_mtime_ns

    def _resolve(self, path: str) -> str | None:
        if path not in self._resolved:
            parent, _, name = path.rpartition("/")
            folder = self._resolve(parent)
            self._resolved[path] = None if folder is None else self._follow(f"{folder}/{name}")
        return self._resolved[path]

    def _follow(self, path: str) -> str | None:
        """`path` without links. The folder of `path` has no links."""
        status = self._status(path)
        if status is None:
            return None
        return self._root.resolve(path) if stat.S_ISLNK(status.st_mode) else path

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return os.lstat(self._base + path)
        except (FileNotFoundError, NotADirectoryError):
            return None
