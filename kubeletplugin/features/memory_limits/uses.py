# SPDX-License-Identifier: Apache-2.0
"""Which pod has a claim with limits, and which of its containers have which device: one file for each claim.

A use is recorded before its limit is set. So a plugin that was killed in between knows of it after its restart, and a
repeated request changes nothing. The files need no fsync, because no cgroup survives a reboot.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.process.files import make_folder, names_in, read_file, remove_file, write_file

log = logging.getLogger(__name__)

_VERSION = 1


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A limited device of a claim: its GPU, its memory in MiB, and the cgroups of the containers that have it."""

    gpu: str
    mebibytes: int
    containers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """The use of a claim by the pod with the cgroup `pod`. `devices` has the device names of the claim's CDI spec."""

    claim: str
    pod: str
    devices: dict[str, DeviceUse] = field(default_factory=dict)


class Uses:
    """The files in `folder`. The caller holds the lock of the claim while it changes its file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, claim: str) -> ClaimUse | None:
        """The use of a claim. None if it has none, or if the file is damaged: then no pod is known to have it."""
        try:
            return _decode(claim, json.loads(read_file(self._file(claim))))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("the use of a claim with limits cannot be read: %s", error, extra={"claim": claim})
            return None

    def all(self) -> Iterator[ClaimUse]:
        """The uses of all claims. Raises OSError."""
        for name in sorted(names_in(self._folder)):
            claim = name.removesuffix(".json")
            if claim != name and (use := self.read(claim)) is not None:
                yield use

    def write(self, use: ClaimUse) -> None:
        """Record a use. Raises OSError."""
        make_folder(self._folder)
        rows = {
            name: {"gpu": device.gpu, "mebibytes": device.mebibytes, "containers": sorted(device.containers)}
            for name, device in use.devices.items()
        }
        text = json.dumps({"version": _VERSION, "pod": use.pod, "devices": rows})
        write_file(self._file(use.claim), text.encode(), self._folder / f".{use.claim}.new")

    def remove(self, claim: str) -> None:
        """Forget the use of a claim. Raises OSError."""
        remove_file(self._file(claim))

    def _file(self, claim: str) -> Path:
        return self._folder / f"{claim}.json"


def _decode(claim: str, value: Any) -> ClaimUse:
    if value["version"] != _VERSION:
        raise ValueError(f"version {value['version']} is not known")
    devices = {
        str(name): DeviceUse(str(row["gpu"]), int(row["mebibytes"]), frozenset(map(str, row["containers"])))
        for name, row in value["devices"].items()
    }
    return ClaimUse(claim, str(value["pod"]), devices)
