# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains and claims in an API server, the daemon of a domain, and what claims leave on a node."""

import contextlib
import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.config import API_VERSION
from dra_driver.domains.daemon.report import ReportFile
from dra_driver.domains.names import CHANNEL_CLASS, DAEMON_CLASS, DRIVER
from dra_driver.domains.objects import COMPUTE_DOMAINS, DaemonReport
from dra_driver.gpu.simulated import SimulatedNode
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import DEFINITIONS
from dra_driver.kube.resource.codec import V1
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.containers.cdi import DOMAIN_CLAIM_KIND, SpecDirectory
from kubeletplugin.features.domain.folder import DomainFolder
from tests.support.apiserver import CLAIMS
from tests.support.listing import paths_in
from tests.support.waiting import wait_for

POOL = "node-a"
HARDWARE = "gb200x4"
CLUSTER = "9f410827-489f-46fd-8203-51266ca08eb7"
NAMESPACE = "kube-system"
"""The driver's namespace here, because it exists in every API server."""
WORKLOADS = "default"
READY = DaemonReport(ready=True, state="READY", domain_state="UP")


def serve_domains(admin: ApiClient) -> None:
    """Install the kind ComputeDomain, without its rules."""
    group, plural = API_VERSION.partition("/")[0], COMPUTE_DOMAINS.plural
    name = f"{plural}.{group}"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "ComputeDomain", "plural": plural, "singular": "computedomain", "listKind": "ComputeDomainList"}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
    value = {"apiVersion": DEFINITIONS.api_version, "kind": "CustomResourceDefinition", "metadata": {"name": name}}
    if not any(one["metadata"]["name"] == name for one in admin.list(DEFINITIONS).items):
        admin.create(DEFINITIONS, {**value, "spec": spec})

    def is_served() -> bool:
        try:
            return bool(admin.list(COMPUTE_DOMAINS).resource_version)
        except Exception:  # it is not served yet
            return False

    wait_for(is_served, "the kind ComputeDomain")


def add_domain(admin: ApiClient, namespace: str = WORKLOADS) -> str:
    """A ComputeDomain with some name; gives its UID."""
    value = {
        "apiVersion": API_VERSION,
        "kind": "ComputeDomain",
        "metadata": {"name": f"domain-{uuid.uuid4().hex[:8]}"},
        "spec": {"channel": {"resourceClaimTemplate": {"name": "channel"}}},
    }
    return str(admin.create(COMPUTE_DOMAINS, value, namespace)["metadata"]["uid"])


def config(domain: str, kind: str = "ComputeDomainChannelConfig", **fields: Any) -> dict[str, Any]:
    """An entry of an allocation with this configuration."""
    parameters = {"apiVersion": API_VERSION, "kind": kind, "domainID": domain, **fields}
    return {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}


def add_claim(
    admin: ApiClient,
    configs: Sequence[dict[str, Any]],
    devices: Sequence[str] = ("channel-0",),
    namespace: str = WORKLOADS,
) -> ClaimRef:
    """A claim that was given these devices, one for each request."""
    device_class = DAEMON_CLASS if devices[0].startswith("daemon") else CHANNEL_CLASS
    requests = [{"name": f"r{index}", "exactly": {"deviceClassName": device_class}} for index in range(len(devices))]
    name = f"claim-{uuid.uuid4().hex[:12]}"
    value = {
        "apiVersion": V1.api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests}},
    }
    stored = admin.create(CLAIMS, value, namespace)
    results = [
        {"request": f"r{index}", "driver": DRIVER, "pool": POOL, "device": one} for index, one in enumerate(devices)
    ]
    stored["status"] = {"allocation": {"devices": {"results": results, "config": list(configs)}}}
    admin.update(CLAIMS, stored, subresource="status")
    return ClaimRef(namespace, name, stored["metadata"]["uid"])


def add_channel(admin: ApiClient, domain: str, namespace: str = WORKLOADS, **fields: Any) -> ClaimRef:
    """The claim of a pod of the domain's workload."""
    return add_claim(admin, [config(domain, **fields)], namespace=namespace)


def add_daemon(admin: ApiClient, domain: str, namespace: str = NAMESPACE) -> ClaimRef:
    """The claim of the domain's daemon."""
    return add_claim(admin, [config(domain, "ComputeDomainDaemonConfig")], ["daemon-0"], namespace)


@contextlib.contextmanager
def running_daemon(folder: Path, report: DaemonReport = READY) -> Iterator[ReportFile]:
    """A daemon that has this folder and reports this. A folder that no claim has made ends with it."""
    is_own = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    file = ReportFile(folder)
    file.write(report)
    try:
        yield file
    finally:
        file.close()
        if is_own:
            shutil.rmtree(folder, ignore_errors=True)


def install_imex(node: SimulatedNode, control: str = "echo READY") -> None:
    """The node has the programs of IMEX. `control` is what nvidia-imex-ctl runs."""
    for name, script in (("nvidia-imex", "exit 1"), ("nvidia-imex-ctl", control)):
        program = node.driver_root / "usr/bin" / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)


@dataclass(frozen=True)
class Left:
    """What claims have on a node: files of records and specs, folders of domains, and the node's own domain."""

    records: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    domain: str = ""


NOTHING = Left()


def left(folder: Path, cdi: Path) -> Left:
    """What is on a node, with whatever was left half written."""
    here = DomainFolder(folder)
    specs = [path.name for path in paths_in(cdi)]
    hidden = [path.name for path in paths_in(folder, ".*") if not path.is_socket()]
    return Left(
        (*hidden, *(path.name for path in paths_in(here.records))) if here.records.is_dir() else (),
        tuple(name for name in specs if "compute-domain" in name),
        tuple(path.name for path in paths_in(here.domains)),
        here.domain(),
    )


def spec_of(cdi: Path, ref: ClaimRef) -> dict[str, Any]:
    """The edits of each CDI device of a claim, by its name without the claim's UID."""
    spec = json.loads(SpecDirectory(cdi, DOMAIN_CLAIM_KIND).file(ref.uid).read_bytes())
    assert spec["kind"] == DOMAIN_CLAIM_KIND
    return {one["name"].removeprefix(f"{ref.uid}-"): one["containerEdits"] for one in spec["devices"]}
