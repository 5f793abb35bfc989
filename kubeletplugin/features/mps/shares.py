# SPDX-License-Identifier: Apache-2.0
"""The share files, in which the plugin requests MPS for claims from dra-mps.

    FOLDER/SERVER/shares/GPU_KEY.json   the limits and devices of one claim in the group SERVER
    FOLDER/SERVER/pipe                  the sockets that containers use (protocol 2); containers can write in it
    FOLDER/SERVER/daemon, log           the pipe directory and the logs of the control daemon, only for root
    FOLDER/protocol3/pipe, daemon, log  the same for the node's daemon (protocol 3); containers can write in folders of
                                        pipe
    FOLDER/memory/dra-mps-SERVER        the /dev/shm of the group (protocol 2); containers can write in it
    FOLDER/removed                      folders of these that are being removed
    FOLDER/groups.lock                  locked while the folder of a group is created or removed

SERVER is the name of a group of devices, and KEY is the name of a claim's share of the group. GPU is the UUID of a
board of the group, so that leftovers of a board can be found without reading the files. A file is only a request;
dra-mps knows whether it is served. The files are not synced to disk, and those of an earlier boot are ignored, because
no daemon survives a reboot.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from dra_driver.errors import MpsError
from dra_driver.process.boot import boot_id
from dra_driver.process.exposed import Trash
from dra_driver.process.files import make_folder, names_in, open_lock, read_file, remove_file, try_lock, write_file
from dra_driver.process.mps import REMOVED

NODE_DAEMON: Final = "protocol3"
"""The folder of the daemon that serves all groups of devices with protocol 3."""

INSIDE: Final = "/run/nvidia-mps"
"""The folder of the pipe directories in containers and in the mount namespaces of daemons."""

_PAUSE: Final = 0.002

_NAME: Final = re.compile(r"(?P<gpu>[A-Za-z0-9-]+)_(?P<key>[a-z0-9]+)\.json", re.ASCII)
_SERVER: Final = re.compile(r"s[0-9a-f]{10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class MpsShare:
    """A claim's share of MPS. `devices` are UUIDs for CUDA, `memory` is the limit in MiB of each device that has one,
    and `percentage` is the limit of active threads. With `multi_user`, clients of several users are served at a time.
    """

    protocol: int
    devices: tuple[str, ...]
    percentage: int | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    multi_user: bool = False
    shared_memory: bool = True


@dataclass(frozen=True, slots=True, order=True)
class ShareName:
    """The name of a share: its group of devices, a board of the group, and the key of the share."""

    server: str
    gpu: str
    key: str


class ShareFiles:
    """The share files in `folder`, which is created when the first share is written. A change waits at most `patience`
    seconds for another process.
    """

    def __init__(self, folder: Path, patience: float = 5.0) -> None:
        self.folder = folder
        self._patience = patience
        self.trash = trash_in(folder)

    def put(self, name: ShareName, share: MpsShare) -> None:
        """Write a share, or replace it. Raises OSError or MpsError."""
        file = self._file(name)
        data = json.dumps({"boot": boot_id(), **asdict(share)}).encode()
        with self._alone():
            make_folder(file.parent)
            write_file(file, data, file.with_suffix(".new"))

    def get(self, name: ShareName) -> MpsShare | None:
        """A share. None if its file is missing, invalid or of an earlier boot. Raises OSError."""
        try:
            value = json.loads(read_file(self._file(name)))
            is_current = value.pop("boot", None) == boot_id()
            return MpsShare(**{**value, "devices": tuple(value["devices"])}) if is_current else None
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def has(self, name: ShareName) -> bool:
        """Whether the file of a share exists. It may be invalid."""
        return self._file(name).exists()

    def remove(self, name: ShareName) -> None:
        """Remove the file of a share. Raises OSError."""
        remove_file(self._file(name))

    def names(self, server: str) -> list[ShareName]:
        """The names of the shares of a group of devices."""
        found = (_NAME.fullmatch(name) for name in sorted(names_in(self.folder / server / "shares")))
        return [ShareName(server, match["gpu"], match["key"]) for match in found if match is not None]

    def of(self, server: str) -> dict[str, MpsShare]:
        """The shares of a group by key, without invalid ones and those of an earlier boot."""
        found = ((name.key, self.get(name)) for name in self.names(server))
        return {key: share for key, share in found if share is not None}

    def all(self) -> list[ShareName]:
        """The names of all shares."""
        return [name for server in self.servers() for name in self.names(server)]

    def servers(self) -> list[str]:
        """The groups that have a folder, also those without shares."""
        return [name for name in sorted(names_in(self.folder)) if _SERVER.fullmatch(name)]

    def leaves_something(self, name: ShareName) -> bool:
        """Whether the share exists, or its group has a folder but no shares."""
        return self.has(name) or ((self.folder / name.server).is_dir() and not self.names(name.server))

    def discard(self, server: str) -> None:
        """Remove the folder of a group whose daemon has ended. A container may have filled it, so its content is
        removed later (`trash`). Raises OSError, or MpsError if the group has shares.
        """
        folder = self.folder / server
        if not folder.is_dir():
            return
        with self._alone():
            if self.names(server):
                raise MpsError(f"{folder} is still wanted")
            self.trash.take(folder)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A context for one process at a time, because dra-mps removes the folder of a group that has no share yet.
        Raises MpsError if another process stays in it, or OSError.
        """
        make_folder(self.folder)
        descriptor = open_lock(self.folder / "groups.lock")
        try:
            deadline = time.monotonic() + self._patience
            while not try_lock(descriptor):
                if time.monotonic() > deadline:
                    seconds = f"{self._patience:g} s"
                    raise MpsError(f"another process has changed {self.folder} for {seconds}; does dra-mps hang?")
                time.sleep(_PAUSE)
            yield
        finally:
            os.close(descriptor)

    def _file(self, name: ShareName) -> Path:
        return self.folder / name.server / "shares" / f"{name.gpu}_{name.key}.json"


def trash_in(folder: Path) -> Trash:
    """The folder for files of MPS that are being removed. `folder` is the folder of MPS."""
    return Trash(folder / REMOVED)
