# SPDX-License-Identifier: Apache-2.0
"""The records of claims with channels and daemons: one file for each claim, as for claims with GPUs."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_driver.computedomains import CHANNEL_TYPE, DAEMON_TYPE
from dra_driver.resource.codec import Fields

from ..hardware.targets import ClaimRef
from ..records.files import NewerVersionError, RecordError, RecordFiles, RecordFormat, Stamp, State, read_files
from .plan import DomainDevice, DomainPlan

log = logging.getLogger(__name__)

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class DomainRecord:
    """A claim's plan and its progress."""

    state: State
    boot_id: str
    plan: DomainPlan


def encode(record: DomainRecord) -> bytes:
    """The record as JSON. The claim comes first, because it is the most important part of a file that was truncated."""
    plan, claim = record.plan, record.plan.claim
    value: dict[str, Any] = {
        "version": VERSION,
        "claim": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
        "state": record.state.value,
        "bootID": record.boot_id,
        "pool": plan.pool,
        "type": plan.device_type,
        "domain": {"uid": plan.domain, "namespace": plan.domain_namespace, "name": plan.domain_name},
        "clique": plan.clique,
        "allChannels": plan.all_channels,
        "hostManaged": plan.host_managed,
        "devices": [
            {"name": one.name, "request": one.request, **({"shareID": one.share_id} if one.share_id else {})}
            for one in plan.devices
        ],
    }
    return json.dumps(value).encode()


def decode(data: bytes) -> DomainRecord:
    """Decode a record strictly. Raises NewerVersionError or ValueError."""
    fields = Fields(json.loads(data))
    version = fields.required_integer("version")
    if version > VERSION:
        raise NewerVersionError(f"it has version {version}, and this plugin supports {VERSION}")
    claim, domain = fields.required_object("claim"), fields.required_object("domain")
    kind = fields.required_text("type")
    if kind not in (CHANNEL_TYPE, DAEMON_TYPE):
        raise fields.error("type", f"{kind!r} is unknown")
    record = DomainRecord(
        State(fields.required_text("state")),
        fields.text("bootID"),
        DomainPlan(
            claim=ClaimRef(claim.text("namespace"), claim.text("name"), claim.required_text("uid")),
            pool=fields.required_text("pool"),
            domain=domain.required_text("uid"),
            devices=fields.objects("devices", _decode_device),
            is_daemon=kind == DAEMON_TYPE,
            all_channels=fields.flag("allChannels"),
            domain_namespace=domain.text("namespace"),
            domain_name=domain.text("name"),
            clique=fields.text("clique"),
            host_managed=fields.flag("hostManaged"),
        ),
    )
    for one in (claim, domain, fields):
        one.finish()
    return record


def _decode_device(fields: Fields) -> DomainDevice:
    device = DomainDevice(
        fields.required_text("name"), fields.required_text("request"), fields.optional_text("shareID")
    )
    fields.finish()
    return device


_FORMAT: Final = RecordFormat(encode, decode, lambda record: record.plan.claim)


class DomainRecords(RecordFiles[DomainRecord]):
    """The records in `folder`. `on_damage(claim, text)` is called for each record that is set aside.

    A record is read again only when its file has changed, because each waiting claim looks at its record all the time.
    """

    def __init__(self, folder: Path, on_damage: Callable[[ClaimRef, str], None] = lambda *_: None) -> None:
        super().__init__(folder, _FORMAT)
        self._on_damage = on_damage
        self._known: dict[str, tuple[Stamp, DomainRecord]] = {}

    def get(self, uid: str) -> DomainRecord | None:
        """The claim's record. A damaged one is set aside. Raises RecordError if the claim must not be touched."""
        return self._look(uid, self.stamp(uid))

    def _look(self, uid: str, stamp: Stamp | None) -> DomainRecord | None:
        """The record with this stamp."""
        known = self._known.get(uid)
        if stamp is None:
            self._known.pop(uid, None)
            return None
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            record = self.read(uid)
        except FileNotFoundError:
            return None
        except NewerVersionError:
            text = f"the record of claim {uid} was written by a newer version of this plugin; start the newer version"
            raise RecordError(text) from None
        except OSError as error:
            raise RecordError(f"the record of claim {uid} cannot be read: {error}") from error
        except ValueError as error:
            self._set_aside(uid, error)
            return None
        self._known[uid] = (stamp, record)
        return record

    def all(self) -> list[DomainRecord]:
        """Every record that this plugin can read."""
        found = []
        for uid, stamp in self.stamps().items():
            try:
                record = self._look(uid, stamp)
            except RecordError as error:
                log.debug("%s", error)
                continue
            if record is not None:
                found.append(record)
        return found

    def unknown(self) -> set[str]:
        """The UIDs of claims whose domain is unknown to this plugin."""
        recorded = {record.plan.claim.uid for record in self.all()}
        return (self.stamps().keys() | self.damaged().keys()) - recorded

    def _set_aside(self, uid: str, error: Exception) -> None:
        """Set a damaged record aside. Raises RecordError if that fails."""
        try:
            claim = self.set_aside(uid)
        except FileNotFoundError:  # another process set it aside
            return
        except OSError as obstacle:
            raise RecordError(f"the record of claim {uid} is damaged and cannot be set aside: {obstacle}") from error
        text = f"record {self.path(uid)} cannot be read and is set aside as {uid}.damaged: {error}"
        log.error("%s", text, extra={"claim": str(claim), "claim_uid": uid})
        self._on_damage(claim, text)


def read_domain_records(folder: Path) -> tuple[list[DomainRecord], dict[str, str]]:
    """The readable records, sorted by claim, and why others cannot be read. Changes nothing."""
    return read_files(DomainRecords(folder)) if folder.is_dir() else ([], {})
