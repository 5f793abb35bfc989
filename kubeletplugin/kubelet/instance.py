# SPDX-License-Identifier: Apache-2.0
"""The plugin processes of one node: the names of their sockets, and which may run at the same time.

Without an instance UID only one process can run, with fixed socket names. A process with an instance UID (the UID of
its pod) has its own sockets, so that during a rolling update the new process registers before the old one stops.
kubelet 1.33 and later then calls the newest. Claims are protected by other locks (see `claims.locks`).
"""

import base64
import contextlib
import fcntl
import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.names import DRIVER_NAME
from dra_driver.process.files import make_folder, open_lock

from ..errors import AnotherInstanceError
from .sockets import LONGEST_PATH, is_served

log = logging.getLogger(__name__)

_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
_SINGLE_LOCK = "lock"
_EVERYONE_LOCK = "instances.lock"


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """The paths of the sockets of an instance."""

    registration: Path
    service: Path


def is_instance_uid(uid: str) -> bool:
    """Whether `uid` can be part of a socket's name."""
    return _UID.fullmatch(uid) is not None


def socket_paths(folder: Path, registry: Path, uid: str = "", driver: str = DRIVER_NAME) -> SocketPaths:
    """The sockets of `driver` for the instance `uid`, or for the only one, in the driver's folder and in kubelet's
    registry.

    A UID that makes a path too long for a socket is replaced by its hash.
    """
    if not uid:
        return SocketPaths(registry / f"{driver}-reg.sock", folder / "dra.sock")
    return SocketPaths(
        _fitting(registry, driver + "-{}-reg.sock", uid),
        _fitting(folder, "dra-{}.sock", uid),
    )


def _fitting(folder: Path, name: str, uid: str) -> Path:
    path = folder / name.format(uid)
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return path
    digest = hashlib.sha256(uid.encode()).digest()[:8]
    return folder / name.format(base64.urlsafe_b64encode(digest).decode().rstrip("="))


@contextlib.contextmanager
def running(folder: Path, uid: str = "") -> Iterator[None]:
    """Run as the instance `uid`, or as the only one, during this context. Creates `folder` if it is missing.

    The kernel releases the locks when the process ends. Raises AnotherInstanceError or OSError.
    """
    make_folder(folder)
    with contextlib.ExitStack() as locks:
        if not uid:
            single = folder / _SINGLE_LOCK
            problem = f"another dra-kubeletplugin runs on this node: it holds {single}"
            locks.enter_context(_held(single, fcntl.LOCK_EX, problem))
        problem = "dra-kubeletplugin cleanup runs on this node: start again when it is done"
        locks.enter_context(_held(folder / _EVERYONE_LOCK, fcntl.LOCK_SH, problem))
        yield


@contextlib.contextmanager
def nobody_running(folder: Path) -> Iterator[None]:
    """Ensure that no instance runs or starts during this context. Raises AnotherInstanceError or OSError."""
    problem = f"a dra-kubeletplugin runs on this node with {folder}"
    with _held(folder / _EVERYONE_LOCK, fcntl.LOCK_EX, problem):
        yield


def sweep_sockets(folder: Path, registry: Path, driver: str = DRIVER_NAME) -> None:
    """Remove the sockets of processes that were killed. Living processes listen before the socket has its name."""
    for path in sockets_of_all(folder, registry, driver):
        try:
            if stat.S_ISSOCK(path.lstat().st_mode) and not is_served(path):
                path.unlink()
                log.info("removed the socket of a process that was killed", extra={"socket": str(path)})
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("the socket of a process that was killed stays: %s", error)


def sockets_of_all(folder: Path, registry: Path, driver: str = DRIVER_NAME) -> list[Path]:
    """The sockets of all instances, running or not, registration before service."""
    return registrations_of_all(registry, driver) + sorted([*folder.glob("dra.sock"), *folder.glob("dra-*.sock")])


def registrations_of_all(registry: Path, driver: str = DRIVER_NAME) -> list[Path]:
    """The registration sockets among them."""
    return sorted([*registry.glob(f"{driver}-reg.sock"), *registry.glob(f"{driver}-*-reg.sock")])


def another_serves(registry: Path, own: Path) -> bool:
    """Whether kubelet can call an instance other than the one with this registration socket."""
    return any(is_served(path) for path in registrations_of_all(registry) if path != own)


@contextlib.contextmanager
def _held(file: Path, how: int, problem: str) -> Iterator[None]:
    """Hold the lock of `file`. Raises AnotherInstanceError with `problem` if another process holds it."""
    descriptor = open_lock(file)
    try:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnotherInstanceError(problem) from None
        yield
    finally:
        os.close(descriptor)
