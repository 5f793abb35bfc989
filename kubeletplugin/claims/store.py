# SPDX-License-Identifier: Apache-2.0
"""What a driver has on disk for its claims: records and CDI specs, and the lock of each claim."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from .call import KUBELET_SECONDS, Call
from .changes import fields_of
from .locks import Held, KeyedLocks
from .model import JSON, ClaimRef, Record, State
from .records import Records
from .specs import ClaimSpecs

log = logging.getLogger(__name__)


class ClaimStore:
    """Records and specs of claims. `boot_id` is that of the current boot. One thread of one process at a time holds the
    lock of a claim, and only this one changes the claim.
    """

    def __init__(self, records: Records, specs: ClaimSpecs, locks: KeyedLocks, boot_id: str) -> None:
        self.records = records
        self.specs = specs
        self.boot_id = boot_id
        self._locks = locks

    def hold(self, ref: ClaimRef, call: Call) -> AbstractContextManager[Held]:
        """A context with the lock of a claim. Raises StoppedError if others hold it for too long."""
        return self._locks.hold(ref.uid, call=call.within(KUBELET_SECONDS, f"claim {ref}"))

    def try_hold(self, uid: str) -> AbstractContextManager[bool]:
        """A context with the lock of a claim, if it is free. Yields whether it was."""
        return self._locks.try_hold(uid)

    def current(self, uid: str) -> Record | None:
        """The claim's record. A record from before the last boot is removed, because the claim has nothing left. Raises
        RecordError if the claim must not be touched.
        """
        record = self.records.get(uid)
        if record is None or record.boot_id == self.boot_id:
            return record
        log.info("removing the record of a claim from before the last boot", extra=fields_of(record.plan))
        self.specs.remove(uid)
        self.records.close(uid)
        return None

    def write_spec_and_record(self, record: Record, found: Mapping[str, JSON]) -> Record:
        """Write the spec of a claim whose steps have `found` this, and then record it as prepared, so that every claim
        with such a record has its spec. Returns the record.
        """
        prepared = replace(record, state=State.PREPARED, found=found)
        self.specs.write(prepared)
        if prepared != record:
            self.records.save(prepared)
        return prepared

    def close(self, record: Record) -> None:
        """Remove the record of a claim that has nothing left on the node, not even its spec."""
        self.records.close(record.plan.claim.uid)
        log.info("unprepared", extra=fields_of(record.plan))

    def known(self) -> set[str]:
        """The UIDs of all claims. Records are read first: a record that is damaged in between is readable or
        unreadable.
        """
        recorded = {record.plan.claim.uid for record in self.records.all()}
        return recorded | self.records.unreadable()
