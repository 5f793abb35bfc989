# SPDX-License-Identifier: Apache-2.0
"""The claims of ComputeDomains on this node, for the commands status and cleanup."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from dra_driver.domains.daemon.report import read_report

from ..claims.model import Record
from ..claims.records import read_records
from ..drivers import domain_driver
from ..features.domain.folder import DomainFolder
from ..features.domain.steps import DomainStep
from ..kinds.domain import DomainKind
from ..node.folders import NodeFolders


@dataclass(frozen=True, slots=True)
class DomainsState:
    """`domain` is the UID of the domain that the node is in, or empty. `daemons` are the states of the daemons that
    run, by the UID of their domain. `unreadable` has the reason for each record file that cannot be read.
    """

    domain: str
    claims: list[Record]
    daemons: Mapping[str, str]
    unreadable: Mapping[str, str]


def read_domains(node: NodeFolders) -> DomainsState:
    """Read the state of ComputeDomains. Raises OSError."""
    folder = DomainFolder(node.domain_folder)
    records, unreadable = read_records(folder.records, domain_driver())
    domains = {_kind(record).domain.uid for record in records}
    reports = {uid: read_report(folder.of_domain(uid)) for uid in domains}
    daemons = {
        domain: "ready" if report.ready else report.message or report.state
        for domain, report in reports.items()
        if report is not None
    }
    return DomainsState(folder.domain(), records, daemons, unreadable)


def domains_document(state: DomainsState, boot_id: str) -> dict[str, Any]:
    """The state as JSON values."""
    return {
        "domain": state.domain,
        "daemons": state.daemons,
        "claims": [_claim(record, boot_id) for record in state.claims],
        "unreadable": state.unreadable,
    }


def _kind(record: Record) -> DomainKind:
    """The kind of the devices of a claim, which are all of one kind."""
    return next(device.kind for device in record.plan.devices if isinstance(device.kind, DomainKind))


def _claim(record: Record, boot_id: str) -> dict[str, Any]:
    plan, kind = record.plan, _kind(record)
    return {
        "namespace": plan.claim.namespace,
        "name": plan.claim.name,
        "uid": plan.claim.uid,
        "state": record.state.value,
        "ofThisBoot": record.boot_id == boot_id,
        "type": kind.TAG,
        "domain": kind.domain.to_json(),
        "clique": kind.clique,
        "devices": [{"name": device.name, "request": device.request} for device in plan.devices],
    }


def domains_table(state: DomainsState, boot_id: str) -> Table:
    """The claims as a table."""
    table = Table("CLAIM", "STATE", "DEVICES", "COMPUTEDOMAIN", "DAEMON", box=None, pad_edge=False)
    for record in state.claims:
        plan, kind = record.plan, _kind(record)
        before = "" if record.boot_id == boot_id else ", before the last boot"
        devices = "\n".join(f"{device.name} ({device.request})" for device in plan.devices)
        domain = f"{kind.domain.namespace}/{kind.domain.name}\n{kind.domain.uid}"
        needs_daemon = any(isinstance(step, DomainStep) for step in plan.steps)
        daemon = state.daemons.get(kind.domain.uid, "does not run") if needs_daemon else ""
        table.add_row(f"{plan.claim}\n{plan.claim.uid}", f"{record.state.value}{before}", devices, domain, daemon)
    return table
