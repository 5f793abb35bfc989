# SPDX-License-Identifier: Apache-2.0
"""The records of all claims, in memory and on disk, and the claim of each device.

The memory is only a copy: another plugin process may write to the same folder, so a record's stamp is checked before
the copy is used. Callers hold the lock of the claim that they work on, and the locks of the GPUs whose devices they
take.
"""

import logging
import threading
from collections.abc import Callable

from ..hardware.targets import ClaimRef, PrepareError
from ..plans.planning import conflicts, require_no_overlap, require_same_interval, require_same_mps
from ..steps import Step
from .store import NewerVersionError, Record, RecordError, Records, Stamp, State

log = logging.getLogger(__name__)


class Ledger:
    """All records. Thread-safe for different claims. `on_damage(claim, text)` is called for each record that was set
    aside.
    """

    def __init__(self, records: Records, on_damage: Callable[[ClaimRef, str], None] = lambda *_: None) -> None:
        self._records = records
        self._on_damage = on_damage
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Stamp, Record | str]] = {}  # a text: why the claim must not be touched
        self._settled: set[str] = set()

    def get(self, uid: str) -> Record | None:
        """The claim's record. Raises RecordError if the claim must not be touched."""
        self._records.check(uid)
        record = self._look(uid, self._records.stamp(uid))
        if isinstance(record, str):
            raise RecordError(record)
        return record

    def all(self) -> list[Record]:
        """Every record that this plugin can read."""
        stamps = self._records.stamps()
        with self._lock:
            for uid in self._known.keys() - stamps.keys():
                del self._known[uid]
        records = (self._look(uid, stamp) for uid, stamp in stamps.items())
        return [record for record in records if isinstance(record, Record)]

    def unreadable(self) -> set[str]:
        """The UIDs of claims whose devices are unknown to this plugin."""
        self.all()
        with self._lock:
            left_alone = {uid for uid, (_, record) in self._known.items() if isinstance(record, str)}
        return left_alone | self.damaged().keys()

    def damaged(self) -> dict[str, ClaimRef]:
        """The claims whose record was set aside and not settled since, by UID."""
        found = self._records.damaged()
        with self._lock:
            self._settled &= found.keys()
            return {uid: claim for uid, claim in found.items() if uid not in self._settled and uid not in self._known}

    def settled_damaged(self) -> list[ClaimRef]:
        """The claims that were settled, and whose damaged record is still kept."""
        found = self._records.damaged()
        with self._lock:
            return [claim for uid, claim in found.items() if uid in self._settled]

    def settle_damaged(self, uid: str, *, gone: bool = False) -> None:
        """Note that the content of a damaged record is known again, or irrelevant because its claim is `gone`. The file
        is kept for administrators as long as the claim exists. It is removed at once if it does not name the claim,
        because then nobody could find out later that the claim is gone.
        """
        if not self._records.is_damaged(uid):
            return
        if gone or not self._records.damaged_claim(uid).name:
            self._records.forget_damaged(uid)
            return
        with self._lock:
            self._settled.add(uid)

    def open(self, record: Record) -> None:
        """Record a new claim. Raises PrepareError if it needs a device exclusively that another claim has."""
        plan = record.plan
        require_no_overlap(plan)
        others = {one.plan.claim.uid: one for one in self.all() if one.plan.claim.uid != plan.claim.uid}
        for mine, theirs, other in conflicts(plan, (one.plan for one in others.values())):
            taken = others[other.claim.uid].state is State.UNPREPARING
            what = f"device {mine}" if mine == theirs else f"device {mine} cannot be had beside {theirs}, which"
            raise PrepareError(
                f"{what} {'is still being removed from' if taken else 'is in use by'} claim {other.claim}"
                f" (UID {other.claim.uid}); kubelet tries again within 90 s after that claim is unprepared"
            )
        sharing = [one.plan for one in others.values() if one.state is not State.UNPREPARING]
        require_same_interval(plan, sharing)
        require_same_mps(plan, sharing)
        self._save(record)

    def update(self, record: Record) -> Record:
        """Record the progress of a claim. Returns the record."""
        self._save(record)
        return record

    def remember(self, record: Record) -> Record:
        """Keep the progress of a claim in memory, because it cannot be written. Returns the record."""
        uid = record.plan.claim.uid
        stamp = self._records.stamp(uid)
        if stamp is not None:
            with self._lock:
                self._known[uid] = (stamp, record)
        return record

    def close(self, uid: str) -> None:
        """Delete the record of a claim that has nothing left on the node."""
        self._records.remove(uid)
        with self._lock:
            self._known.pop(uid, None)

    def needed_by_others(self, uid: str) -> frozenset[Step]:
        """The steps that other claims need."""
        return frozenset(
            step
            for record in self.all()
            if record.plan.claim.uid != uid and record.state is not State.UNPREPARING
            for step in record.plan.steps
        )

    def _save(self, record: Record) -> None:
        self._records.save(record)
        self.remember(record)

    def _look(self, uid: str, stamp: Stamp | None) -> Record | str | None:
        """The record with this stamp. It is read again if the known one has another stamp."""
        with self._lock:
            known = self._known.get(uid)
            if known is not None and known[0] == stamp:
                return known[1]
            self._known.pop(uid, None)
        if stamp is None:
            return None
        try:
            record: Record | str = self._records.read(uid)
        except FileNotFoundError:
            return None
        except NewerVersionError as error:
            log.error("record %s: %s; the plugin does not touch its claim", self._records.path(uid), error)
            record = f"the record of claim {uid} was written by a newer version of this plugin; start the newer version"
        except OSError as error:
            log.error("record %s: %s; the plugin does not touch its claim", self._records.path(uid), error)
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
        path = self._records.path(uid)
        try:
            claim = self._records.set_aside(uid)
        except FileNotFoundError:  # another process set it aside
            return None
        except OSError as obstacle:
            log.error("record %s can neither be read nor set aside: %s; %s", path, error, obstacle)
            return f"the record of claim {uid} cannot be read: {error}"
        with self._lock:
            self._settled.discard(uid)
        text = f"record {path} cannot be read and is set aside as {uid}.damaged: {error}"
        log.error("%s", text, extra={"claim": str(claim), "claim_uid": uid})
        self._on_damage(claim, text)
        return None
