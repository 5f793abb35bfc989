# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains and ComputeDomainCliques as values, read from the JSON objects of the API server.

The fields are those of NVIDIA's CRDs. In addition, a ComputeDomain has `status.conditions`, and a member of a clique
has `state`, `domainState` and `message`. An API server that has NVIDIA's CRDs drops these.

The cluster controller writes cliques. A daemon changes only the fields of `DaemonReport` in the row of its own node.
"""

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..config import API_VERSION
from ..kube.api import Kind
from ..kube.api.client import JSON
from ..kube.resource.codec import DecodeError, Fields
from ..kube.resource.meta import empty
from .names import CLIQUE_LABEL, DOMAIN_LABEL

COMPUTE_DOMAINS: Final = Kind(API_VERSION, "computedomains", namespaced=True)
CLIQUES: Final = Kind(API_VERSION, "computedomaincliques", namespaced=True)
"""The objects with the members of a domain, one for each clique. They are in the driver's namespace."""

INDICES_ANNOTATION: Final = "resource.nvidia.com/computeDomain.indices"
"""On cliques: the index of each node that is or was a member, as JSON. A node keeps its index while it is away."""
SLOTS_ANNOTATION: Final = "resource.nvidia.com/computeDomain.slots"
"""On cliques: how many members there can be. All daemons must list the same number of host names, from the start on."""
READY: Final = "Ready"
NOT_READY: Final = "NotReady"
MOST_SLOTS: Final = 1024
"""The largest number of members of a domain in one clique. An NVLink partition has at most 576 GPUs. A user can set
`spec.numNodes` to any number, and each slot is a line in files of the nodes and a name in a certificate.
"""
LONGEST: Final = {"state": 64, "domain_state": 64, "message": 1024}
"""The number of characters of the texts of a `DaemonReport`. The CustomResourceDefinition has the same limits, so that
a broken-in node cannot fill the object, which has the rows of other nodes, too.
"""
OUTSIDE_FABRIC: Final = -1
"""The index of a node of a domain that has no clique, and therefore no daemon."""


@dataclass(frozen=True, slots=True)
class ComputeDomain:
    """A ComputeDomain. `status` is as stored."""

    namespace: str
    name: str
    uid: str
    template: str
    all_channels: bool = False
    num_nodes: int = 0
    generation: int = 1
    is_deleted: bool = False
    finalizers: tuple[str, ...] = ()
    status: JSON = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def _short(text: str, most: int) -> str:
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in cut)


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """What a daemon reports of itself. `state` is that of its nvidia-imex (such as `READY`, empty while it does not
    run), `domain_state` is `UP`, `DEGRADED` or `DOWN` as seen from this node, and `message` tells why it is not ready.

    A container may have written the texts. They are shortened to `LONGEST`, and have only printable characters.
    """

    ready: bool = False
    state: str = ""
    domain_state: str = ""
    message: str = ""

    def __post_init__(self) -> None:
        for name, most in LONGEST.items():
            object.__setattr__(self, name, _short(getattr(self, name), most))


@dataclass(frozen=True, slots=True)
class Member:
    """The row of a node in a clique."""

    node: str
    address: str
    clique: str
    index: int
    report: DaemonReport = DaemonReport()


@dataclass(frozen=True, slots=True)
class Clique:
    """The members of a domain in one clique. `members` are in the order of the object's rows."""

    name: str
    namespace: str
    domain_uid: str
    clique: str
    slots: int
    members: tuple[Member, ...] = ()
    indices: Mapping[str, int] = field(default_factory=empty)
    uid: str = ""
    resource_version: str = ""

    def row(self, node: str) -> int | None:
        """The position of a node's row, or None."""
        return next((position for position, member in enumerate(self.members) if member.node == node), None)


def decode_domain(value: JSON, *, strict: bool = False) -> ComputeDomain:
    """A ComputeDomain. Raises DecodeError. With `strict`, unknown fields of the spec are errors, as in a manifest."""
    meta = value.get("metadata") or {}
    spec = Fields(value, strict=strict).required_object("spec")
    channel = spec.required_object("channel")
    template = channel.required_object("resourceClaimTemplate")
    mode = channel.text("allocationMode") or "Single"
    if mode not in ("Single", "All"):
        raise channel.error("allocationMode", f"must be Single or All, not {mode!r}")
    number = spec.integer("numNodes") or 0
    if number < 0:
        raise spec.error("numNodes", "must not be negative")
    domain = ComputeDomain(
        meta.get("namespace") or "",
        meta.get("name") or "",
        meta.get("uid") or "",
        template.required_text("name"),
        mode == "All",
        number,
        meta.get("generation") or 1,
        bool(meta.get("deletionTimestamp")),
        tuple(meta.get("finalizers") or ()),
        value.get("status") or {},
    )
    for fields in (template, channel, spec):
        fields.finish()
    return domain


def decode_clique(value: JSON) -> Clique:
    """A ComputeDomainClique. Raises DecodeError, also for the annotations."""
    meta = value["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    members = Fields(value, strict=False).objects("daemons", _member)
    try:
        indices = json.loads(notes.get(INDICES_ANNOTATION) or "{}")
        slots = min(int(notes.get(SLOTS_ANNOTATION) or 0), MOST_SLOTS)
        if not isinstance(indices, dict) or not all(type(index) is int for index in indices.values()):
            raise ValueError("indices must be integers")
    except (ValueError, RecursionError) as error:
        raise DecodeError("metadata.annotations", str(error)) from None
    return Clique(
        meta["name"],
        meta.get("namespace") or "",
        labels.get(DOMAIN_LABEL) or "",
        labels.get(CLIQUE_LABEL) or "",
        slots,
        members,
        indices,
        meta.get("uid") or "",
        meta.get("resourceVersion") or "",
    )


def _member(fields: Fields) -> Member:
    report = DaemonReport(
        fields.text("status") == READY, fields.text("state"), fields.text("domainState"), fields.text("message")
    )
    index, address = fields.required_integer("index"), _address(fields.text("ipAddress"))
    return Member(fields.required_text("nodeName"), address, fields.text("cliqueID"), index, report)


def _address(text: str) -> str:
    """The IP address, or nothing for any other text: daemons write it into the hosts file of their pod. An address with
    a zone is refused, because ipaddress accepts any text as the zone, also one with line breaks.
    """
    try:
        return "" if "%" in text else str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def encode_member(member: Member) -> JSON:
    """The row of a member."""
    return {
        "nodeName": member.node,
        "ipAddress": member.address,
        "cliqueID": member.clique,
        "index": member.index,
        **encode_report(member.report),
    }


def encode_report(report: DaemonReport) -> JSON:
    """The fields of a row that its daemon writes."""
    return {
        "status": READY if report.ready else NOT_READY,
        "state": report.state,
        "domainState": report.domain_state,
        "message": report.message,
    }
