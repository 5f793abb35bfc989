# SPDX-License-Identifier: Apache-2.0
"""What the plugin remembers of each claim, in one small file a claim that outlives the process.

A record is on the disk before anything it speaks of is done, and is removed after all of it is undone. The file of
one claim is never touched for another's sake. A file that cannot be read is set aside; one that a newer plugin wrote
stays as it is, and this plugin leaves its claim alone.
"""

import enum
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.gpu.nvml import Placement
from dra_driver.resource.codec import Fields
from dra_driver.resource.meta import empty

from .plan import ClaimRef, MigInstanceIds, MigSlot, Plan, PlannedDevice, WholeGpu

log = logging.getLogger(__name__)

VERSION = 1

_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
_SUFFIX = ".json"
_DAMAGED = ".damaged"


class RecordError(Exception):
    """A claim cannot be recorded; the text says why."""


class State(enum.StrEnum):
    """How far a claim is."""

    PREPARING = "Preparing"
    PREPARED = "Prepared"
    UNPREPARING = "Unpreparing"


@dataclass(frozen=True, slots=True)
class Record:
    """A claim's plan and how far it is. `instances` are those behind its MIG devices, by device name; while it is
    being prepared, more may exist than are noted.
    """

    state: State
    boot_id: str
    plan: Plan
    instances: Mapping[str, MigInstanceIds] = field(default_factory=empty)


class Records:
    """The records in `folder`. Methods for different claims may be called at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newer: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)

    def load(self) -> dict[str, Record]:
        """All records by claim UID. One that cannot be read is logged and hides no other."""
        records: dict[str, Record] = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                record = _decode(path.read_bytes())
            except _NewerVersionError as error:
                log.error("record %s: %s; its claim is left alone", path, error)
                self._newer.add(path.stem)
            except (OSError, ValueError) as error:
                damaged = path.with_suffix(_DAMAGED)
                log.error("record %s cannot be read and is set aside as %s: %s", path, damaged.name, error)
                path.replace(damaged)
            else:
                records[record.plan.claim.uid] = record
        for leftover in self._folder.glob("*.new"):
            leftover.unlink(missing_ok=True)
        return records

    def save(self, record: Record) -> None:
        """Write or replace a claim's record; it is on the disk when this returns."""
        path = self._path(record.plan.claim.uid)
        temporary = path.with_suffix(".new")
        try:
            with temporary.open("wb") as file:
                file.write(_encode(record))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from None
        self._sync_folder()

    def remove(self, uid: str) -> None:
        """Forget a claim."""
        self._path(uid).unlink(missing_ok=True)

    def unreadable(self) -> set[str]:
        """The UIDs of claims that have a record which this plugin cannot read."""
        return self._newer | {path.stem for path in self._folder.glob(f"*{_DAMAGED}")}

    def check(self, uid: str) -> None:
        """Raises RecordError when nothing may be recorded under `uid`."""
        if not _UID.fullmatch(uid):
            raise RecordError(f"{uid!r} is not the UID of an object")
        if uid in self._newer:
            raise RecordError(
                f"the record of claim {uid} was written by a newer version of this plugin; start that one"
            )

    def _path(self, uid: str) -> Path:
        self.check(uid)
        return self._folder / f"{uid}{_SUFFIX}"

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _NewerVersionError(Exception):
    """The record's version is one that this plugin does not know."""


def _encode(record: Record) -> bytes:
    claim = record.plan.claim
    value: dict[str, Any] = {
        "version": VERSION,
        "state": record.state.value,
        "bootID": record.boot_id,
        "claim": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
        "pool": record.plan.pool,
        "devices": [_encode_device(device) for device in record.plan.devices],
        "instances": {
            name: {"gi": ids.gpu_instance, "ci": ids.compute_instance, "uuid": ids.uuid, "made": ids.made}
            for name, ids in record.instances.items()
        },
    }
    return json.dumps(value, indent=1).encode()


def _encode_device(device: PlannedDevice) -> dict[str, Any]:
    value: dict[str, Any] = {"name": device.name, "request": device.request}
    match device.target:
        case WholeGpu(uuid, minor, pci_address):
            value["gpu"] = {"uuid": uuid, "minor": minor, "pciAddress": pci_address}
        case MigSlot() as slot:
            value["mig"] = {
                "gpuUUID": slot.gpu_uuid,
                "minor": slot.minor,
                "profile": slot.profile,
                "profileID": slot.profile_id,
                "slices": slot.slices,
                "start": slot.placement.start,
                "size": slot.placement.size,
            }
    if device.admin:
        value["admin"] = True
    if device.share_id is not None:
        value["shareID"] = device.share_id
    return value


def _decode(data: bytes) -> Record:
    fields = Fields(json.loads(data))
    version = fields.required_integer("version")
    if version > VERSION:
        raise _NewerVersionError(f"it has version {version}, this plugin knows {VERSION}")
    claim = fields.required_object("claim")
    ref = ClaimRef(claim.text("namespace"), claim.text("name"), claim.required_text("uid"))
    instances = fields.raw_object("instances") or {}
    record = Record(
        state=State(fields.required_text("state")),
        boot_id=fields.text("bootID"),
        plan=Plan(ref, fields.required_text("pool"), fields.objects("devices", _decode_device)),
        instances={name: _decode_ids(Fields(value, f"instances[{name}]", fields)) for name, value in instances.items()},
    )
    claim.finish()
    fields.finish()
    return record


def _decode_device(fields: Fields) -> PlannedDevice:
    gpu, mig = fields.object("gpu"), fields.object("mig")
    if gpu is not None:
        target: WholeGpu | MigSlot = WholeGpu(
            gpu.required_text("uuid"), gpu.required_integer("minor"), gpu.text("pciAddress")
        )
        gpu.finish()
    elif mig is not None:
        target = MigSlot(
            gpu_uuid=mig.required_text("gpuUUID"),
            minor=mig.required_integer("minor"),
            profile=mig.required_text("profile"),
            profile_id=mig.required_integer("profileID"),
            slices=mig.required_integer("slices"),
            placement=Placement(mig.required_integer("start"), mig.required_integer("size")),
        )
        mig.finish()
    else:
        raise fields.error("", "neither gpu nor mig")
    device = PlannedDevice(
        name=fields.required_text("name"),
        request=fields.required_text("request"),
        target=target,
        admin=fields.flag("admin"),
        share_id=fields.optional_text("shareID"),
    )
    fields.finish()
    return device


def _decode_ids(fields: Fields) -> MigInstanceIds:
    ids = MigInstanceIds(
        fields.required_integer("gi"), fields.required_integer("ci"), fields.required_text("uuid"), fields.flag("made")
    )
    fields.finish()
    return ids
