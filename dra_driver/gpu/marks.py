# SPDX-License-Identifier: Apache-2.0
"""Stores of marks. A mark is a small file that tells that this driver has changed something on the node for claims.

A mark is written before the change, and removed after the change was undone. All processes of the node read it. Each
kind of mark has a store. A mark has a key, which names the changed object (a GPU, the place of an instance, a
partition) and is part of the file's name. `NamedMarks` are empty files whose names tell everything: an empty file
either exists or not, even if its creation is interrupted. `ValueMarks` are JSON files, which are written completely or
not at all. Marks need no fsync, because a reboot undoes the changes.
"""

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from ..errors import NotAFileError
from ..process.files import folder_version, make_folder, names_in, read_file, remove_file, write_file

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

_UNREADABLE: Final = (OSError, NotAFileError, ValueError, LookupError, TypeError)


class MarkStore(ABC, Generic[K, T]):
    """The marks (T) in `folder`, by their keys (K). The folder is created with the first mark. Files with other names
    are ignored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prefix = f"{folder}/"

    @abstractmethod
    def set(self, mark: T) -> None:
        """Write a mark. Raises OSError."""

    def has(self, key: K) -> bool:
        """Whether there is a mark, also if it cannot be read. Costs one system call if the key tells the name."""
        return any(os.path.lexists(self._prefix + name) for name in self._names(key))

    def get(self, key: K) -> T | None:
        """The mark, or None if there is none, or if it cannot be read (which is logged)."""
        existing = (name for name in self._names(key) if os.path.lexists(self._prefix + name))
        name = next(existing, None)
        return None if name is None else self._read(key, name)

    def all(self) -> tuple[T, ...]:
        """All marks, in the order of their names. Marks that cannot be read are logged. Raises OSError."""
        found = [self._read(key, name) for key, name in self._listed().items()]
        return tuple(mark for mark in found if mark is not None)

    def clear(self, key: K) -> None:
        """Remove a mark, because its change was undone. Raises OSError."""
        for name in self._names(key):
            remove_file(self._prefix + name)

    def forget(self) -> None:
        """Remove all marks, including unreadable marks, because they are of an earlier boot. Raises OSError."""
        for key in self._listed():
            self.clear(key)

    def version(self) -> int:
        """A number that changes when a mark is written or removed. Costs one system call."""
        return folder_version(self._folder)

    @abstractmethod
    def _names(self, key: K) -> Sequence[str]:
        """The names that the file of the mark with this key can have. The first one that exists counts."""

    @abstractmethod
    def _key_in(self, name: str) -> K | None:
        """The key in the name of a mark's file, or None if it is the name of another file."""

    @abstractmethod
    def _load(self, key: K, name: str) -> T:
        """The mark in the file with this name. Raises one of _UNREADABLE."""

    def _listed(self) -> dict[K, str]:
        """The names of the marks that exist, by key, in their order (shorter names first, as is the order of numbers).
        Of several names of a key, the first one counts.
        """
        listed: dict[K, str] = {}
        for name in sorted(names_in(self._prefix), key=lambda name: (len(name), name)):
            key = self._key_in(name)
            if key is not None:
                listed.setdefault(key, name)
        return listed

    def _read(self, key: K, name: str) -> T | None:
        try:
            return self._load(key, name)
        except FileNotFoundError:
            return None
        except _UNREADABLE as error:
            log.error("the mark %s cannot be read: %r", self._folder / name, error)
            return None


class NamedMarks(MarkStore[K, T]):
    """Marks that are empty files, with everything in the name."""

    def set(self, mark: T) -> None:
        """Write a mark, unless there is an equal one. Raises OSError."""
        make_folder(self._folder)
        file = self._folder / self._name(mark)
        if not os.path.lexists(file):
            file.touch()

    @abstractmethod
    def _name(self, mark: T) -> str:
        """The name of a mark."""


class ValueMarks(MarkStore[K, T]):
    """Marks that are JSON files, named after their keys."""

    SUFFIX: ClassVar[str] = ".json"

    def set(self, mark: T) -> None:
        """Write or replace a mark. Raises OSError."""
        make_folder(self._folder)
        (name,) = self._names(self._key(mark))
        data = json.dumps(self._encode(mark)).encode()
        write_file(self._prefix + name, data, f"{self._prefix}{name}.new")

    @abstractmethod
    def _key(self, mark: T) -> K:
        """The key of a mark."""

    @abstractmethod
    def _parse(self, stem: str) -> K | None:
        """The key that is the name without its suffix, or None if it is no key."""

    @abstractmethod
    def _encode(self, mark: T) -> object:
        """The value of a mark, for JSON."""

    @abstractmethod
    def _decode(self, key: K, value: Any) -> T:
        """The mark with this value. Raises ValueError, LookupError or TypeError."""

    def _names(self, key: K) -> Sequence[str]:
        return (f"{key}{self.SUFFIX}",)

    def _key_in(self, name: str) -> K | None:
        return self._parse(name.removesuffix(self.SUFFIX)) if name.endswith(self.SUFFIX) else None

    def _load(self, key: K, name: str) -> T:
        mark = self._decode(key, json.loads(read_file(self._prefix + name)))
        if self._key(mark) != key:
            raise ValueError(f"its content is the mark of {self._key(mark)}")
        return mark
