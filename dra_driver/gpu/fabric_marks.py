# SPDX-License-Identifier: Apache-2.0
"""The NVSwitch partitions that claims need, as files that all processes of the node read.

A mark is written before a partition is activated, and removed after it was deactivated. A partition that was active
before has a mark that says so, and stays active. `manager.json` has the identity of the Fabric Manager that was last
seen, with the partitions that were active there. A Fabric Manager that was restarted is told these. A reboot ends all
of it. An `.error` file reports a partition whose NVLinks could not be trained, from which the controller makes taints.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import NotAFileError
from ..process.files import make_folder, open_lock, read_file, remove_file, try_lock, write_file
from .marks import ValueMarks

log = logging.getLogger(__name__)

_MANAGER, _LOCK = "manager.json", "lock"
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class FabricMark:
    """A partition that is active for claims. `modules` are the module IDs of its GPUs, and `gpus` their UUIDs in the
    same order (PCI addresses where they are unknown). `found` tells that it was active before.
    """

    partition: int
    modules: tuple[int, ...]
    gpus: tuple[str, ...]
    found: bool = False


@dataclass(frozen=True, slots=True)
class FabricTrouble:
    """An activation that failed because of an NVLink error: the partition, and its GPUs (as in a mark). `since` is in
    seconds of the epoch.
    """

    partition: int
    gpus: tuple[str, ...]
    since: float


@dataclass(frozen=True, slots=True)
class SeenManager:
    """The Fabric Manager that was last seen, and the IDs of the partitions that were active there."""

    identity: str
    active: tuple[int, ...]


class FabricTroubles(ValueMarks[int, FabricTrouble]):
    """The reports of activations that failed, in the folder of the marks, by partition."""

    SUFFIX = ".error"

    def recent(self, not_before: float) -> tuple[FabricTrouble, ...]:
        """The reports that are not older (seconds of the epoch)."""
        return tuple(trouble for trouble in self.all() if trouble.since >= not_before)

    def _key(self, mark: FabricTrouble) -> int:
        return mark.partition

    def _parse(self, stem: str) -> int | None:
        return _partition(stem)

    def _encode(self, mark: FabricTrouble) -> object:
        return {"gpus": mark.gpus, "since": mark.since}

    def _decode(self, key: int, value: Any) -> FabricTrouble:
        return FabricTrouble(key, tuple(value["gpus"]), value["since"])


class FabricMarks(ValueMarks[int, FabricMark]):
    """The marks of partitions in `folder`, by partition, and Fabric Manager's state. `troubles` are the reports."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.troubles = FabricTroubles(folder)

    def module_of(self, gpu: str) -> int | None:
        """The module ID of a GPU in a partition with a mark, or None."""
        pairs = (pair for mark in self.all() for pair in zip(mark.gpus, mark.modules, strict=True))
        return next((module for uuid, module in pairs if uuid == gpu), None)

    def seen(self) -> SeenManager | None:
        """The Fabric Manager that was last seen, or None."""
        file = self._folder / _MANAGER
        try:
            value = json.loads(read_file(file))
            return SeenManager(value["identity"], tuple(value["active"]))
        except FileNotFoundError:
            return None
        except (OSError, NotAFileError, ValueError, LookupError, TypeError) as error:
            log.error("the file %s about Fabric Manager cannot be read: %r", file, error)
            return None

    def see(self, manager: SeenManager) -> None:
        """Note the Fabric Manager. Raises OSError."""
        if self.seen() != manager:
            make_folder(self._folder)
            file = self._folder / _MANAGER
            write_file(file, json.dumps(asdict(manager)).encode(), file.with_name(f"{_MANAGER}.new"))

    def forget(self) -> None:
        """Remove everything, because it is of an earlier boot. Raises OSError."""
        super().forget()
        self.troubles.forget()
        remove_file(self._folder / _MANAGER)

    @contextlib.contextmanager
    def locked(self, going_on: Callable[[], None]) -> Iterator[None]:
        """Only one thread of one process is inside at a time. `going_on` is called while this waits."""
        make_folder(self._folder)
        descriptor = open_lock(self._folder / _LOCK)
        try:
            while not try_lock(descriptor):
                going_on()
                time.sleep(_LOOK_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _key(self, mark: FabricMark) -> int:
        return mark.partition

    def _parse(self, stem: str) -> int | None:
        return _partition(stem)

    def _encode(self, mark: FabricMark) -> object:
        return asdict(mark)

    def _decode(self, key: int, value: Any) -> FabricMark:
        return FabricMark(value["partition"], tuple(value["modules"]), tuple(value["gpus"]), value["found"])


def _partition(stem: str) -> int | None:
    """The partition in a file's name."""
    return int(stem) if stem.isdecimal() and str(int(stem)) == stem else None
