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
from .libraries import HOOK_FOLDERS, HOOK_NAMES, library_folders, more_folders
from .root import DriverRoot, Links, Root

_PROGRAMS = tuple(f"{folder}/{name}" for folder in PROGRAM_FOLDERS for name in PROGRAMS)
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
    firmware = firmware_folders(root.sys, driver_version, kernel_release)
    libraries = library_folders(root.files, root.library_folders)
    links: Links = {}
    return (
        driver_version,
        [_folder(root.files, path, links) for path in (*libraries, *more_folders(libraries), *firmware)],
        [_file(root.files, path, links) for path in _files(machine)],
        [_file(hook_root, path, links) for hook_root in hook_roots for path in _HOOKS],
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


def _folder(root: Root, path: str, links: Links) -> tuple[str, int, int] | None:
    """The folder at `path` without links, its inode and modification time. None if it is missing."""
    found = _status(root, path, links)
    return None if found is None else (found[0], found[1].st_ino, found[1].st_mtime_ns)


def _file(root: Root, path: str, links: Links) -> tuple[str, int] | None:
    """The file at `path` without links, its type, and who may execute it. None if there is nothing."""
    found = _status(root, path, links)
    return None if found is None else (found[0], stat.S_IFMT(found[1].st_mode) | found[1].st_mode & 0o111)


def _status(root: Root, path: str, links: Links) -> tuple[str, os.stat_result] | None:
    source = root.resolve(path, links)
    try:
        return None if source is None else (source, os.lstat(f"{root.path}{source}"))
    except (FileNotFoundError, NotADirectoryError):  # removed a moment ago
        return None
