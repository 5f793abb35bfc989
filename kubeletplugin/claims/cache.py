# SPDX-License-Identifier: Apache-2.0
"""The records of all claims of a driver, in memory and on disk.

The memory is only a copy: another plugin process may write to the same folder, so a record's stamp is checked before
the copy is used. A record is read again only when its file has changed. Callers hold the lock of the claim that they
work on.
"""

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ..errors import NewerVersionError, RecordError
from .files import RecordFiles, Stamp
from .model import ClaimRef

log = logging.getLogger(__name__)

R = TypeVar("R")


class RecordCache(Generic[R]):
    """All records in `files`. Thread-safe for different claims. `on_damage(claim, text)` is called for each record that
    was set aside.
    """

    def __init__(self, files: RecordFiles[R], on_damage: Callable[[ClaimRef, str], None] = lambda *_: None) -> None:
        self._files = files
        self._on_damage = on_damage
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Stamp, R | str]] = {}  # a text: why the claim must not be touched

    def get(self, uid: str) -> R | None:
        """The claim's record. Raises RecordError if the claim must not be touched."""
        self._files.check(uid)
        record = self._look(uid, self._files.stamp(uid))
        if isinstance(record, str):
            raise RecordError(record)
        return record

    def all(self) -> list[R]:
        """Every record that this plugin can read."""
        stamps = self._files.stamps()
        with self._lock:
            for uid in self._known.keys() - stamps.keys():
                del self._known[uid]
        records = (self._look(uid, stamp) for uid, stamp in stamps.items())
        return [record for record in records if record is not None and not isinstance(record, str)]

    def known(self) -> list[R]:
        """Every record that this plugin can read, as it last saw them. Looks at no file."""
        with self._lock:
            return [record for _, record in self._known.values() if not isinstance(record, str)]

    def unreadable(self) -> set[str]:
        """The UIDs of claims whose devices are unknown to this plugin."""
        self.all()
        with self._lock:
            left_alone = {uid for uid, (_, record) in self._known.items() if isinstance(record, str)}
        return left_alone | self.damaged().keys()

    def damaged(self) -> dict[str, ClaimRef]:
        """The claims whose record was set aside and not written again since, by UID."""
        found = self._files.damaged()
        with self._lock:
            return {uid: claim for uid, claim in found.items() if uid not in self._known}

    def forget_damaged(self, uid: str) -> bool:
        """Remove the damaged record of a claim, which is kept for administrators until the claim is unprepared. Returns
        whether there was one.
        """
        return self._files.forget_damaged(uid)

    def save(self, record: R) -> R:
        """Record a claim, or its progress. Returns the record."""
        uid = self._files.claim_of(record).uid
        return self._keep(uid, self._files.save(record, replace=uid in self._known), record)

    def remember(self, record: R) -> R:
        """Keep the progress of a claim in memory, because it cannot be written. Returns the record."""
        uid = self._files.claim_of(record).uid
        stamp = self._files.stamp(uid)
        return record if stamp is None else self._keep(uid, stamp, record)

    def close(self, uid: str) -> None:
        """Delete the record of a claim that has nothing left on the node."""
        self._files.remove(uid)
        with self._lock:
            self._known.pop(uid, None)

    def _keep(self, uid: str, stamp: Stamp, record: R) -> R:
        with self._lock:
            self._known[uid] = (stamp, record)
        return record

    def _look(self, uid: str, stamp: Stamp | None) -> R | str | None:
        """The record with this stamp. It is read again if the known one has another stamp."""
        with self._lock:
            known = self._known.get(uid)
            if known is not None and known[0] == stamp:
                return known[1]
            self._known.pop(uid, None)
        if stamp is None:
            return None
        try:
            record: R | str = self._files.read(uid)
        except FileNotFoundError:
            return None
        except NewerVersionError as error:
            log.error("record %s: %s; the plugin does not touch its claim", self._files.path(uid), error)
            record = f"the record of claim {uid} was written by a newer version of this plugin; start the newer version"
        except OSError as error:
            log.error("record %s: %s; the plugin does not touch its claim", self._files.path(uid), error)
            record = f"the record of claim {uid} cannot be read: {error}"
        except ValueError as error:
            problem = self._set_aside(uid, error)
            if problem is None:
                return None
            record = problem
        with self._lock:
            self._known[uid] = (stamp, record)
        return record

    def _set_aside(self, uid: str, error: Exception) -> str | None:
        """Set a damaged record aside. If that fails, returns why its claim must not be touched."""
        path = self._files.path(uid)
        try:
            claim = self._files.set_aside(uid)
        except FileNotFoundError:  # another process set it aside
            return None
        except OSError as obstacle:
            log.error("record %s can neither be read nor set aside: %s; %s", path, error, obstacle)
            return f"the record of claim {uid} cannot be read: {error}"
        text = f"record {path} cannot be read and is set aside as {uid}.damaged: {error}"
        log.error("%s", text, extra={"claim": str(claim), "claim_uid": uid})
        self._on_damage(claim, text)
        return None
