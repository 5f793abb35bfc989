# SPDX-License-Identifier: Apache-2.0
"""A claim's life on this node: prepared, asked for again, unprepared, recovered.

Every path goes record -> hardware -> record. A claim is worked on by one thread at a time and a GPU is changed by
one thread at a time; claims on different GPUs proceed side by side. Preparing a prepared claim and unpreparing an
unprepared one do nothing; a prepare that fails undoes what it did.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from dra_driver.cluster import ApiError
from dra_driver.gpu.nvml import NvmlError
from dra_driver.resource import ResourceClaim

from .claimspecs import ClaimSpecs
from .gpus import GpuAccess, Gpus, NoDriverError
from .ledger import Ledger
from .locks import KeyedLocks
from .plan import ClaimRef, MigInstanceIds, MigSlot, Plan, PrepareError, make_plan
from .records import Record, RecordError, Records, State

log = logging.getLogger(__name__)

FetchClaim = Callable[[ClaimRef], ResourceClaim]
"""Reads a claim from the API server; may raise ApiError."""

EXPECTED_ERRORS = (PrepareError, RecordError, NoDriverError, ApiError, NvmlError, OSError)
"""What `prepare` and `unprepare` raise for the caller to hand on; anything else is a bug."""


class Lifecycle:
    """Prepares and unprepares claims. `pool` is this node's pool, `boot_id` changes with every boot of the machine."""

    def __init__(
        self, *, pool: str, boot_id: str, fetch: FetchClaim, records: Records, specs: ClaimSpecs, access: GpuAccess
    ) -> None:
        self._pool = pool
        self._boot_id = boot_id
        self._fetch = fetch
        self._ledger = Ledger(records)
        self._specs = specs
        self._access = access
        self._claim_locks = KeyedLocks()
        self._gpu_locks = KeyedLocks()

    # kubelet's calls

    def prepare(self, ref: ClaimRef) -> Plan:
        """Make the claim's devices ready; the plan says which they are. Raises one of EXPECTED_ERRORS."""
        with self._claim_locks.hold(ref.uid):
            record = self._ledger.get(ref.uid)
            if record is not None and record.state is State.PREPARED:
                if not self._specs.exists(ref.uid):
                    self._specs.write(record)
                return record.plan
            gpus = self._access.current()
            claim = self._fetch(ref)
            try:
                if record is not None:  # an attempt that was broken off
                    self._undo(record, gpus)
                return self._prepare(make_plan(ref, claim, self._pool, gpus.find), gpus)
            except NvmlError as error:
                self._access.report(error)
                raise

    def unprepare(self, ref: ClaimRef) -> None:
        """Undo all of it; a claim that was never prepared is fine. Raises one of EXPECTED_ERRORS.

        This never waits for a driver. Without one there are no MIG instances either; the record stays until a
        driver is back, and then whatever came back with it is destroyed before any claim is prepared.
        """
        with self._claim_locks.hold(ref.uid):
            record = self._ledger.get(ref.uid)
            if record is None:
                self._specs.remove(ref.uid)
                return
            self._specs.remove(ref.uid)
            if not record.plan.slots():
                self._ledger.close(ref.uid)
                return
            record, noted = self._note_unpreparing(record)
            try:
                self._undo(record, self._access.current())
            except NoDriverError as error:
                if not noted:
                    raise
                log.warning("claim is unprepared except for its MIG instances: %s", error, extra=_fields(record))
            except NvmlError as error:
                self._access.report(error)
                raise

    # After a start of the plugin or of the driver

    def recover(self, gpus: Gpus) -> None:
        """Bring the node to what the records say: what was broken off is undone, prepared claims are complete."""
        for record in self._ledger.all():
            with self._claim_locks.hold(record.plan.claim.uid):
                current = self._ledger.get(record.plan.claim.uid)
                if current is None:
                    continue  # unprepared meanwhile
                try:
                    self._recover(current, gpus)
                except EXPECTED_ERRORS as error:
                    log.error("claim could not be recovered: %s", error, extra=_fields(current))
        known = {record.plan.claim.uid for record in self._ledger.all()} | self._ledger.unreadable()
        for uid in self._specs.claims():
            if uid not in known:
                log.warning("removing the CDI spec of an unknown claim", extra={"claim_uid": uid})
                self._specs.remove(uid)

    def _recover(self, record: Record, gpus: Gpus) -> None:
        if record.boot_id != self._boot_id:
            log.info("forgetting a claim of before the last reboot", extra=_fields(record))
            self._specs.remove(record.plan.claim.uid)
            self._ledger.close(record.plan.claim.uid)
        elif record.state is State.PREPARED:
            complete = self._make_instances(record, gpus)
            if complete != record:
                self._ledger.update(complete)
            self._specs.write(complete)
        else:
            log.info("undoing what was broken off", extra=_fields(record))
            self._undo(record, gpus)

    # Steps

    def _prepare(self, plan: Plan, gpus: Gpus) -> Plan:
        began = time.monotonic()
        self._finish_unprepared(plan, gpus)
        record = Record(State.PREPARING, self._boot_id, plan, self._find_instances(plan, gpus))
        self._ledger.open(record)
        try:
            record = self._make_instances(record, gpus)
            self._specs.write(record)
            self._ledger.update(replace(record, state=State.PREPARED))
        except Exception as error:
            self._undo_failed(record, gpus, error)
            raise
        log.info("prepared", extra={**_fields(record), "seconds": round(time.monotonic() - began, 4)})
        return plan

    def _find_instances(self, plan: Plan, gpus: Gpus) -> dict[str, MigInstanceIds]:
        """MIG instances that exist already where the plan wants some: an administrator made them. They are used
        as they are, and stay when the claim ends.
        """
        found: dict[str, MigInstanceIds] = {}
        for device in plan.devices:
            if not isinstance(device.target, MigSlot):
                continue
            with self._gpu_locks.hold(device.target.gpu_uuid):
                ids = gpus.mig.find(device.target)
            if ids is not None:
                found[device.name] = replace(ids, made=False)
            elif device.admin:
                raise PrepareError(f"device {device.name} does not exist at the moment: there is nothing to look at")
        return found

    def _make_instances(self, record: Record, gpus: Gpus) -> Record:
        """The record with all MIG instances of its plan, those missing made now."""
        instances = dict(record.instances)
        for name, slot in record.plan.slots():
            with self._gpu_locks.hold(slot.gpu_uuid):
                ids = gpus.mig.make(slot)
            noted = instances.get(name)
            instances[name] = ids if noted is None else replace(ids, made=noted.made)
            log.debug("MIG instance is ready", extra={**_fields(record), "device": name, "mig_uuid": ids.uuid})
        return replace(record, instances=instances)

    def _note_unpreparing(self, record: Record) -> tuple[Record, bool]:
        """The record as it is from now on, and whether that could be written. A full disk must not keep a claim: pods
        are evicted because of it. kubelet asks again for what is broken off.
        """
        try:
            return self._ledger.update(replace(record, state=State.UNPREPARING)), True
        except OSError as error:
            log.warning("unpreparing without a note of it: %s", error, extra=_fields(record))
            return record, False

    def _undo(self, record: Record, gpus: Gpus) -> None:
        """Remove everything that was done for a claim, and then its record."""
        self._specs.remove(record.plan.claim.uid)
        for name, slot in record.plan.slots():
            ids = record.instances.get(name)
            if ids is not None and not ids.made:
                continue
            with self._gpu_locks.hold(slot.gpu_uuid):
                gpus.mig.destroy(slot)
            log.debug("MIG instance is gone", extra={**_fields(record), "device": name})
        self._ledger.close(record.plan.claim.uid)
        log.info("unprepared", extra=_fields(record))

    def _undo_failed(self, record: Record, gpus: Gpus, cause: Exception) -> None:
        """Undo a prepare that failed. Should that fail too, the record stays, and kubelet's next call tries again."""
        log.warning("prepare failed, undoing it: %s", cause, extra=_fields(record))
        try:
            self._undo(record, gpus)
        except EXPECTED_ERRORS as error:
            log.error("undoing a failed prepare failed: %s", error, extra=_fields(record))

    def _finish_unprepared(self, plan: Plan, gpus: Gpus) -> None:
        """Destroy what claims that are over still have on the GPUs of this plan, as far as nothing runs there now."""
        wanted = {slot.gpu_uuid for _, slot in plan.slots()}
        for record in self._ledger.all():
            if record.state is not State.UNPREPARING or wanted.isdisjoint(
                slot.gpu_uuid for _, slot in record.plan.slots()
            ):
                continue
            with self._claim_locks.try_hold(record.plan.claim.uid) as free:
                if free and self._ledger.get(record.plan.claim.uid) is record:
                    try:
                        self._undo(record, gpus)
                    except NvmlError as error:
                        log.warning("leftovers of a claim stay for now: %s", error, extra=_fields(record))


def _fields(record: Record) -> dict[str, object]:
    """What every log line about a claim carries."""
    claim = record.plan.claim
    return {"claim": str(claim), "claim_uid": claim.uid, "devices": ",".join(one.name for one in record.plan.devices)}
