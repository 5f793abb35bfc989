# SPDX-License-Identifier: Apache-2.0
"""What claims want of MPS, as files: written by the plugin, carried out by dra-mps.

    FOLDER/SERVER/shares/GPU_KEY.json   what one claim wants of the devices of SERVER
    FOLDER/SERVER/pipe, log             the sockets and logs of the control daemon (protocol 2)
    FOLDER/protocol3/pipe, log          those of the node's daemon (protocol 3)

SERVER names a group of devices, KEY a claim's share of it. GPU is the UUID of a board of the group: who looks for
leftovers finds it without reading the file. A file stands for the wish alone; whether it is fulfilled only dra-mps
knows. Nothing is synced to disk, because no daemon survives a reboot either: files of an earlier boot wish for nothing.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ..boot import boot_id
from ..files import make_folder, names_in, read_file, remove_file, write_file
from .errors import MpsError

NODE_DAEMON: Final = "protocol3"
"""The folder of the daemon that serves all groups of devices by protocol 3."""

INSIDE: Final = "/run/nvidia-mps"
"""The folder in which daemons and containers see pipe directories. CUDA is told this path in both."""

_NAME: Final = re.compile(r"(?P<gpu>[A-Za-z0-9-]+)_(?P<key>[a-z0-9]+)\.json", re.ASCII)
_SERVER: Final = re.compile(r"s[0-9a-f]{10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Share:
    """A claim's share of MPS. `devices` are the UUIDs that CUDA knows, `memory` the limits in MiB of those that have
    one, `percentage` the limit of active threads. With `multi_user` clients of all users are served at a time.
    """

    protocol: int
    devices: tuple[str, ...]
    percentage: int | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    multi_user: bool = False
    shared_memory: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {**asdict(self), "devices": list(self.devices), "memory": dict(self.memory)}


@dataclass(frozen=True, slots=True, order=True)
class ShareName:
    """Where a share is: the group of devices, one of its boards, and the share's own key."""

    server: str
    gpu: str
    key: str


class ShareFiles:
    """The files in `folder`, which is made when the first share is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: ShareName, share: Share) -> None:
        """Write a share, or replace it. Raises OSError."""
        file = self._file(name)
        make_folder(file.parent)
        data = json.dumps({"boot": boot_id(), **share.settings}).encode()
        write_file(file, data, file.with_suffix(".new"))

    def get(self, name: ShareName) -> Share | None:
        """A share; None when there is none of this boot that can be read. Raises OSError."""
        try:
            return _decoded(read_file(self._file(name)))
        except (FileNotFoundError, ValueError):
            return None

    def has(self, name: ShareName) -> bool:
        """Whether there is such a file, whatever is in it."""
        return self._file(name).exists()

    def remove(self, name: ShareName) -> None:
        """The claim wants nothing any more. Raises OSError."""
        remove_file(self._file(name))

    def names(self, server: str) -> list[ShareName]:
        """The shares of a group of devices."""
        found = (_NAME.fullmatch(name) for name in sorted(names_in(self.folder / server / "shares")))
        return [ShareName(server, one["gpu"], one["key"]) for one in found if one is not None]

    def of(self, server: str) -> dict[str, Share]:
        """The shares of a group by their keys, without those that cannot be read and those of an earlier boot."""
        found = ((one.key, self.get(one)) for one in self.names(server))
        return {key: share for key, share in found if share is not None}

    def all(self) -> list[ShareName]:
        """Every share."""
        return [name for server in self.servers() for name in self.names(server)]

    def servers(self) -> list[str]:
        """The groups that have a folder, whether anything is wanted of them or not."""
        return [name for name in sorted(names_in(self.folder)) if _SERVER.fullmatch(name)]

    def leaves_something(self, name: ShareName) -> bool:
        """Whether there is the share, or what a group without shares left."""
        return self.has(name) or ((self.folder / name.server).is_dir() and not self.names(name.server))

    def discard(self, server: str) -> None:
        """Remove what there is of a group without shares, whose daemon has ended. Raises OSError."""
        folder = self.folder / server
        if not folder.is_dir():
            return
        if self.names(server):
            raise MpsError(f"{folder} is still wanted")
        shutil.rmtree(folder)

    def _file(self, name: ShareName) -> Path:
        return self.folder / name.server / "shares" / f"{name.gpu}_{name.key}.json"


def _decoded(data: bytes) -> Share | None:
    """The share of a file, None for one of an earlier boot. Raises ValueError."""
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    if value.pop("boot", None) != boot_id():
        return None
    try:
        return Share(**{**value, "devices": tuple(value["devices"])})
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from None
