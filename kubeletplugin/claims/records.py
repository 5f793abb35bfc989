# SPDX-License-Identifier: Apache-2.0
"""The records of a driver's claims: their format, and the rules by which a new claim is recorded.

Records are JSON, so that people can read them after an error. They are decoded strictly. The claim comes first, because
it is the most important part of a file that was truncated. Kinds and steps know their own part of the format. A record
of a newer version of the format is left alone. One of an older version is read if the driver knows how. Otherwise it
counts as damaged, so that its claim is planned again.
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from dra_driver.kube.resource.codec import Fields

from ..errors import NewerVersionError, PrepareError
from .cache import RecordCache
from .files import RecordFiles, RecordFormat
from .model import JSON, ClaimRef, Device, Driver, Kind, Plan, Record, State, Step

VERSION: Final = 7

T = TypeVar("T", Kind, Step)


def record_format(driver: Driver) -> RecordFormat[Record]:
    """The format of a driver's records."""
    return RecordFormat(encode, partial(decode, driver), lambda record: record.plan.claim)


def encode(record: Record) -> bytes:
    """The record as JSON."""
    plan, claim = record.plan, record.plan.claim
    value: JSON = {
        "version": VERSION,
        "claim": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
        "state": record.state.value,
        "bootID": record.boot_id,
        "pool": plan.pool,
        "devices": [_encode_device(device) for device in plan.devices],
        "steps": [{"step": step.TAG, **step.to_json()} for step in plan.steps],
        "found": dict(record.found),
    }
    return json.dumps(value).encode()


def _encode_device(device: Device) -> JSON:
    return {
        "name": device.name,
        "request": device.request,
        "kind": device.kind.TAG,
        device.kind.TAG: device.kind.to_json(),
        **({"admin": True} if device.admin else {}),
        **({"shareID": device.share_id} if device.share_id is not None else {}),
    }


def decode(driver: Driver, data: bytes) -> Record:
    """Decode a record of the driver. Raises NewerVersionError, or ValueError for a damaged record."""
    fields = Fields(json.loads(data))
    version = fields.required_integer("version")
    if version > VERSION:
        raise NewerVersionError(f"it has version {version}, and this plugin supports {VERSION}")
    if version in driver.older:
        return driver.older[version](fields)
    if version != VERSION:
        raise fields.error("version", f"{version} is too old: this plugin supports {VERSION}")
    claim = fields.required_object("claim")
    ref = ClaimRef(claim.text("namespace"), claim.text("name"), claim.required_text("uid"))
    devices = fields.objects("devices", partial(_decode_device, driver))
    by_name = {device.name: device for device in devices}
    record = Record(
        State(fields.required_text("state")),
        fields.text("bootID"),
        Plan(
            ref,
            fields.required_text("pool"),
            devices,
            fields.objects("steps", partial(_decode_step, driver, by_name)),
        ),
        fields.raw_object("found") or {},
    )
    claim.finish()
    fields.finish()
    return record


def _decode_device(driver: Driver, fields: Fields) -> Device:
    kind = _known(fields, "kind", driver.kinds)
    own = fields.required_object(kind.TAG)
    device = Device(
        fields.required_text("name"),
        fields.required_text("request"),
        kind.from_json(own),
        fields.flag("admin"),
        fields.optional_text("shareID"),
    )
    own.finish()
    fields.finish()
    return device


def _decode_step(driver: Driver, devices: Mapping[str, Device], fields: Fields) -> Step:
    step = _known(fields, "step", driver.steps).from_json(fields, devices)
    fields.finish()
    return step


def _known(fields: Fields, field: str, classes: Iterable[type[T]]) -> type[T]:
    """The class that a field names."""
    tag = fields.required_text(field)
    found = next((class_ for class_ in classes if tag == class_.TAG), None)
    if found is None:
        raise fields.error(field, f"{tag!r} is unknown")
    return found


def read_records(folder: Path, driver: Driver) -> tuple[list[Record], dict[str, str]]:
    """The readable records, sorted by claim, and why others cannot be read. Changes nothing."""
    return RecordFiles(folder, record_format(driver)).readable()


class Records(RecordCache[Record]):
    """All records of a driver. Callers hold the lock of the claim that they work on, and the locks of the keys whose
    devices they take.
    """

    def open(self, record: Record) -> Record:
        """Record a new claim. Raises PrepareError if it cannot hold together with another claim."""
        plan = record.plan
        others = [other for other in self.all() if other.plan.claim.uid != plan.claim.uid]
        require_alone(plan)
        for other in others:
            _require_free(plan, other)
        for other in others:
            if other.state is not State.UNPREPARING:
                require_agreement(plan, other.plan)
        return self.save(record)

    def marks_of_others(self, uid: str, *, also_ending: bool = False) -> frozenset[object]:
        """The marks of the steps that other claims need. With `also_ending`, those of claims that are being unprepared
        are among them.
        """
        return frozenset(
            step.mark
            for record in self.all()
            if record.plan.claim.uid != uid and (also_ending or record.state is not State.UNPREPARING)
            for step in record.plan.steps
        )


def require_alone(plan: Plan) -> None:
    """Raises PrepareError if two devices or requests of one claim exclude each other."""
    for first, second in itertools.combinations(plan.devices, 2):
        if first.name != second.name and first.excludes(second):
            raise PrepareError(
                f"devices {first.name} and {second.name} of one claim are the same part of GPU"
                f" {', '.join(sorted(first.kind.keys & second.kind.keys))}: only one of them can be allocated"
            )
    _require_no_clash(plan, plan)


def _require_free(plan: Plan, other: Record) -> None:
    for mine, theirs in itertools.product(plan.devices, other.plan.devices):
        if mine.excludes(theirs):
            claim = other.plan.claim
            taken = "is still being removed from" if other.state is State.UNPREPARING else "is in use by"
            what = f"device {mine.name}"
            if mine.name != theirs.name:
                what += f" cannot be had beside {theirs.name}, which"
            raise PrepareError(
                f"{what} {taken} claim {claim} (UID {claim.uid}); kubelet tries again within 90 s after that claim is"
                " unprepared"
            )


def require_agreement(plan: Plan, other: Plan) -> None:
    """Raises PrepareError if the steps of two claims, or their effects on the other's devices, cannot hold together."""
    _require_no_clash(plan, other)
    _require_no_clash(other, plan)


def _require_no_clash(owner: Plan, other: Plan) -> None:
    for step in owner.steps:
        if problem := step.clash(owner, other):
            raise PrepareError(problem)
