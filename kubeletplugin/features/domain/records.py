# SPDX-License-Identifier: Apache-2.0
"""The records of claims with channels and daemons: one file for each claim, as for claims with GPUs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_driver.domains.names import CHANNEL_TYPE, DAEMON_TYPE
from dra_driver.kube.resource.codec import Fields

from ...claims.files import RecordFiles, RecordFormat
from ...claims.model import ClaimRef, State
from ...errors import NewerVersionError
from .plan import DomainDevice, DomainPlan

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


FORMAT: Final = RecordFormat(encode, decode, lambda record: record.plan.claim)


def read_domain_records(folder: Path) -> tuple[list[DomainRecord], dict[str, str]]:
    """The readable records, sorted by claim, and why others cannot be read. Changes nothing."""
    return RecordFiles(folder, FORMAT).readable()
