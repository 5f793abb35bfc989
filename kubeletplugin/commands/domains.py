# SPDX-License-Identifier: Apache-2.0
"""The claims of ComputeDomains on this node, for the commands status and cleanup."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from dra_driver.domains.daemon.report import read_report

from ..features.domain.folder import DomainFolder
from ..features.domain.records import DomainRecord, read_domain_records
from ..node.folders import NodeFolders


@dataclass(frozen=True, slots=True)
class DomainsState:
    """`domain` is the UID of the domain that the node is in, or empty. `daemons` are the states of the daemons that
    run, by the UID of their domain. `unreadable` has the reason for each record file that cannot be read.
    """

    domain: str
    claims: list[DomainRecord]
    daemons: Mapping[str, str]
    unreadable: Mapping[str, str]


def read_domains(node: NodeFolders) -> DomainsState:
    """Read the state of ComputeDomains. Raises OSError."""
    folder = DomainFolder(node.domain_folder)
    records, unreadable = read_domain_records(folder.records)
    reports = {one.plan.domain: read_report(folder.of_domain(one.plan.domain)) for one in records}
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


def _claim(record: DomainRecord, boot_id: str) -> dict[str, Any]:
    plan = record.plan
    return {
        "namespace": plan.claim.namespace,
        "name": plan.claim.name,
        "uid": plan.claim.uid,
        "state": record.state.value,
        "ofThisBoot": record.boot_id == boot_id,
        "type": plan.device_type,
        "domain": {"uid": plan.domain, "namespace": plan.domain_namespace, "name": plan.domain_name},
        "clique": plan.clique,
        "devices": [{"name": one.name, "request": one.request} for one in plan.devices],
    }


def domains_table(state: DomainsState, boot_id: str) -> Table:
    """The claims as a table."""
    table = Table("CLAIM", "STATE", "DEVICES", "COMPUTEDOMAIN", "DAEMON", box=None, pad_edge=False)
    for record in state.claims:
        plan = record.plan
        before = "" if record.boot_id == boot_id else ", before the last boot"
        devices = "\n".join(f"{one.name} ({one.request})" for one in plan.devices)
        domain = f"{plan.domain_namespace}/{plan.domain_name}\n{plan.domain}"
        daemon = state.daemons.get(plan.domain, "does not run") if plan.clique and not plan.host_managed else ""
        table.add_row(f"{plan.claim}\n{plan.claim.uid}", f"{record.state.value}{before}", devices, domain, daemon)
    return table
