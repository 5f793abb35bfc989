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
from typing import Any, Final, TypeVar

from ..errors import NotAFileError
from ..process.files import make_folder, names_in, open_lock, read_file, remove_file, try_lock, write_file

log = logging.getLogger(__name__)

T = TypeVar("T")

_MARK, _ERROR, _MANAGER, _LOCK = ".json", ".error", "manager.json", "lock"
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
    """An activation that failed because of an NVLink error, for these GPUs (as in a mark). `since` is in seconds of
    the epoch.
    """

    gpus: tuple[str, ...]
    since: float


@dataclass(frozen=True, slots=True)
class SeenManager:
    """The Fabric Manager that was last seen, and the IDs of the partitions that were active there."""

    identity: str
    active: tuple[int, ...]


class FabricMarks:
    """The files in `folder`, which is created with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, mark: FabricMark) -> None:
        """Write or replace the mark of a partition. Raises OSError."""
        self._write(f"{mark.partition}{_MARK}", asdict(mark))

    def get(self, partition: int) -> FabricMark | None:
        """The mark of a partition, or None."""
        return self._read(f"{partition}{_MARK}", _mark)

    def has(self, partition: int) -> bool:
        """Whether the partition has a mark, also if the mark cannot be read."""
        return os.path.lexists(self._folder / f"{partition}{_MARK}")

    def all(self) -> tuple[FabricMark, ...]:
        """All marks, in the order of partitions."""
        numbers = sorted(int(stem) for stem, suffix in self._names() if suffix == _MARK and stem.isdecimal())
        marks = (self.get(number) for number in numbers)
        return tuple(mark for mark in marks if mark is not None)

    def module_of(self, gpu: str) -> int | None:
        """The module ID of a GPU in a partition with a mark, or None."""
        pairs = (pair for mark in self.all() for pair in zip(mark.gpus, mark.modules, strict=True))
        return next((module for uuid, module in pairs if uuid == gpu), None)

    def clear(self, partition: int) -> None:
        """Remove the mark, because the partition is as it was before."""
        remove_file(self._folder / f"{partition}{_MARK}")

    def seen(self) -> SeenManager | None:
        """The Fabric Manager that was last seen, or None."""
        return self._read(_MANAGER, lambda value: SeenManager(value["identity"], tuple(value["active"])))

    def see(self, manager: SeenManager) -> None:
        """Note the Fabric Manager. Raises OSError."""
        if self.seen() != manager:
            self._write(_MANAGER, asdict(manager))

    def fail(self, mark: FabricMark) -> None:
        """Report that the NVLinks of a partition could not be trained. Raises OSError."""
        self._write(f"{mark.partition}{_ERROR}", {"gpus": mark.gpus, "since": time.time()})

    def recover(self, partition: int) -> None:
        """Withdraw the report, because the partition was activated."""
        remove_file(self._folder / f"{partition}{_ERROR}")

    def troubles(self, not_before: float = 0.0) -> tuple[FabricTrouble, ...]:
        """The reports that are not older (seconds of the epoch)."""
        names = sorted(f"{stem}{suffix}" for stem, suffix in self._names() if suffix == _ERROR)
        found = (self._read(name, lambda one: FabricTrouble(tuple(one["gpus"]), one["since"])) for name in names)
        return tuple(one for one in found if one is not None and one.since >= not_before)

    def forget(self) -> None:
        """Remove everything, because it is of an earlier boot."""
        for stem, suffix in self._names():
            if suffix in (_MARK, _ERROR):
                remove_file(self._folder / f"{stem}{suffix}")

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

    def _names(self) -> list[tuple[str, str]]:
        return [os.path.splitext(name) for name in names_in(self._folder)]  # noqa: PTH122 - only names are needed

    def _write(self, name: str, value: object) -> None:
        make_folder(self._folder)
        file = self._folder / name
        write_file(file, json.dumps(value).encode(), file.with_name(f"{name}.new"))

    def _read(self, name: str, decode: Callable[[Any], T]) -> T | None:
        try:
            return decode(json.loads(read_file(self._folder / name)))
        except FileNotFoundError:
            return None
        except (OSError, NotAFileError, ValueError, LookupError, TypeError) as error:
            log.error("the file %s about NVSwitch partitions cannot be read: %r", self._folder / name, error)
            return None


def _mark(value: Any) -> FabricMark:
    return FabricMark(value["partition"], tuple(value["modules"]), tuple(value["gpus"]), value["found"])
