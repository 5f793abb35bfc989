# SPDX-License-Identifier: Apache-2.0
"""The records of all claims, in memory and on disk, and whose each device is."""

import threading

from .plan import PrepareError
from .records import Record, Records, State


class Ledger:
    """Keeps `records` and answers from memory. Safe between threads that work on different claims."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._lock = threading.Lock()
        self._by_uid = records.load()

    def get(self, uid: str) -> Record | None:
        """The claim's record. Raises RecordError when the claim must be left alone."""
        self._records.check(uid)
        with self._lock:
            return self._by_uid.get(uid)

    def all(self) -> list[Record]:
        """Every record."""
        with self._lock:
            return list(self._by_uid.values())

    def unreadable(self) -> set[str]:
        """The UIDs of claims whose record exists and cannot be read."""
        return self._records.unreadable()

    def open(self, record: Record) -> None:
        """Record a new claim, unless a device that it wants to itself is another claim's: then PrepareError."""
        uid = record.plan.claim.uid
        wanted = record.plan.exclusive()
        with self._lock:
            for other in self._by_uid.values():
                shared = sorted(wanted & other.plan.exclusive())
                if shared and other.plan.claim.uid != uid:
                    state = "is still being taken from" if other.state is State.UNPREPARING else "is in use by"
                    raise PrepareError(
                        f"device {shared[0]} {state} claim {other.plan.claim} (UID {other.plan.claim.uid});"
                        " kubelet will try again once that one is unprepared"
                    )
            self._by_uid[uid] = record
        try:
            self._records.save(record)
        except OSError:
            with self._lock:
                del self._by_uid[uid]
            raise

    def update(self, record: Record) -> Record:
        """Record how far a claim is now; returns the record."""
        self._records.save(record)
        with self._lock:
            self._by_uid[record.plan.claim.uid] = record
        return record

    def close(self, uid: str) -> None:
        """Forget a claim: nothing of it is left on the node."""
        self._records.remove(uid)
        with self._lock:
            self._by_uid.pop(uid, None)
