# SPDX-License-Identifier: Apache-2.0
"""The record files: one small file for each claim, which survives the process.

A record is written before any of its steps is done, and deleted after all of them are undone. The work on one claim
never touches the file of another. A file that cannot be read is set aside. A file of a newer plugin stays, and this
plugin does not touch its claim. An old plugin and its successor may use the same folder: a process that writes or
deletes a file holds the lock of the claim (see `locks`), and `stamps` shows changes by the other process.

There is no fsync. If a process is killed, the kernel keeps what it wrote. If power is lost, everything that the records
describe is lost too, and records of another boot are deleted in any case.
"""

import contextlib
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from dra_driver.errors import NotAFileError
from dra_driver.kube.resource.names import is_subdomain
from dra_driver.process.files import make_folder, put_file, read_file, remove_file, write_file

from ..errors import NewerVersionError, RecordError
from .model import ClaimRef

log = logging.getLogger(__name__)

R = TypeVar("R")

_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
_SUFFIX = ".json"
_DAMAGED = ".damaged"
_TEMPORARY = ".new"


@dataclass(frozen=True, slots=True)
class Stamp:
    """A value that changes with every write of a record, because each version is a new file."""

    inode: int
    changed_ns: int
    size: int


@dataclass(frozen=True, slots=True)
class RecordFormat(Generic[R]):
    """The format of one driver's records. `decode` raises NewerVersionError or ValueError, and `claim_of` returns the
    claim of a record.
    """

    encode: Callable[[R], bytes]
    decode: Callable[[bytes], R]
    claim_of: Callable[[R], ClaimRef]


class RecordFiles(Generic[R]):
    """The records in `folder`, which `make` creates. Thread-safe for different claims."""

    def __init__(self, folder: Path, form: RecordFormat[R]) -> None:
        self.folder = folder
        self._prefix = f"{folder}/"
        self.claim_of = form.claim_of
        self._form = form

    def make(self) -> None:
        """Create the folder. Raises OSError."""
        make_folder(self.folder)

    # All records

    def stamps(self) -> dict[str, Stamp]:
        """The stamps of all records, by claim UID."""
        found: dict[str, Stamp] = {}
        try:
            entries = os.scandir(self.folder)
        except FileNotFoundError:
            return found
        with entries:
            for entry in entries:
                uid = entry.name.removesuffix(_SUFFIX)
                if uid != entry.name and _UID.fullmatch(uid):
                    with contextlib.suppress(FileNotFoundError):
                        found[uid] = _stamp(entry.stat(follow_symlinks=False))
        return found

    def damaged(self) -> dict[str, ClaimRef]:
        """The claims whose record was set aside, by UID."""
        found: dict[str, ClaimRef] = {}
        for path in sorted(self.folder.glob(f"*{_DAMAGED}")):
            if _UID.fullmatch(path.stem):
                found[path.stem] = _guess(path, path.stem)
        return found

    def half_written(self) -> list[str]:
        """The UIDs of claims with an incomplete record, which is being written or whose writer was killed."""
        return [path.stem for path in self.folder.glob(f"*{_TEMPORARY}")]

    def drop_unreadable(self) -> None:
        """Remove records that cannot be read. After a boot, these are results of a power loss."""
        for uid in self.stamps():
            try:
                self.read(uid)
            except ValueError as error:
                log.warning("removing record %s, which is damaged since the last boot: %s", self.path(uid), error)
                self.remove(uid)
            except (OSError, NewerVersionError) as error:
                log.debug("record %s: %s", self.path(uid), error)

    def readable(self) -> tuple[list[R], dict[str, str]]:
        """The records that can be read, sorted by claim, and why others cannot be read. Changes nothing."""
        found: list[R] = []
        unreadable: dict[str, str] = {}
        for uid in sorted(self.stamps()):
            try:
                found.append(self.read(uid))
            except FileNotFoundError:
                continue  # unprepared meanwhile
            except (OSError, ValueError, NewerVersionError) as error:
                unreadable[f"{uid}.json"] = str(error)
        for uid, claim in self.damaged().items():
            unreadable[f"{uid}.damaged"] = f"set aside as damaged, of claim {claim}"
        return sorted(found, key=self._order), unreadable

    def _order(self, record: R) -> tuple[str, str]:
        claim = self.claim_of(record)
        return str(claim), claim.uid

    # One record

    def stamp(self, uid: str) -> Stamp | None:
        """The stamp of a claim's record, or None."""
        try:
            return _stamp(os.lstat(self._name(uid)))
        except FileNotFoundError:
            return None

    def read(self, uid: str) -> R:
        """A claim's record. Raises FileNotFoundError, NewerVersionError, or ValueError for a damaged record."""
        data = read_file(self._name(uid))
        try:
            record = self._form.decode(data)
        except (NewerVersionError, ValueError):
            raise
        except Exception as error:  # such as a RecursionError; an invalid file affects only this claim
            raise ValueError(f"it is not a record: {error!r}") from error
        if (found := self.claim_of(record).uid) != uid:
            raise ValueError(f"it belongs to claim {found}")
        return record

    def save(self, record: R, *, replace: bool = False) -> Stamp:
        """Write or replace a claim's record. Returns its stamp. With `replace`, there probably is one."""
        uid = self.claim_of(record).uid
        path, temporary = self._name(uid), self._name(uid, _TEMPORARY)
        try:
            return _stamp(write_file(path, self._form.encode(record), temporary, exchange=replace))
        except OSError as error:
            self._discard(temporary)
            raise OSError(error.errno, error.strerror, path) from None

    def remove(self, uid: str) -> None:
        """Remove a claim's record."""
        remove_file(self._name(uid))

    def set_aside(self, uid: str) -> ClaimRef:
        """Rename a damaged record. Returns the claim in it, as far as it can be read."""
        path = self.path(uid)
        aside = path.with_suffix(_DAMAGED)
        put_file(path, aside)
        return _guess(aside, uid)

    def forget_damaged(self, uid: str) -> bool:
        """Remove a record that was set aside. Returns whether there was one."""
        path = self._name(uid, _DAMAGED)
        found = os.path.lexists(path)
        if found:
            remove_file(path)
        return found

    def discard_half_written(self, uid: str) -> None:
        """Remove the incomplete record of a process that was killed."""
        self._discard(self._name(uid, _TEMPORARY))

    def check(self, uid: str) -> None:
        """Raises RecordError if `uid` is not valid as a file name."""
        if not _UID.fullmatch(uid):
            raise RecordError(f"{uid!r} is not the UID of an object")

    def path(self, uid: str) -> Path:
        """The path of a claim's record. Raises RecordError."""
        return Path(self._name(uid))

    def _name(self, uid: str, suffix: str = _SUFFIX) -> str:
        """The path of a file of a claim. Raises RecordError."""
        self.check(uid)
        return f"{self._prefix}{uid}{suffix}"

    def _discard(self, temporary: str) -> None:
        try:
            remove_file(temporary)
        except OSError as error:  # the caller raises a more important error
            log.debug("%s stays: %s", temporary, error)


def _text_of(text: str, key: str) -> str:
    """The first value of `key`, if it is a valid name of an object."""
    match = re.search(rf'"{key}":\s*"([^"]*)"', text)
    return match[1] if match and is_subdomain(match[1]) else ""


def _guess(path: Path, uid: str) -> ClaimRef:
    """The claim of a damaged record, as far as the text shows it. `uid` comes from the file's name."""
    try:
        text = read_file(path).decode(errors="replace")
    except (OSError, NotAFileError):
        text = ""
    namespace, name = (_text_of(text, key) for key in ("namespace", "name"))
    return ClaimRef(namespace, name, uid) if namespace and name else ClaimRef("", "", uid)


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_ino, status.st_mtime_ns, status.st_size)
