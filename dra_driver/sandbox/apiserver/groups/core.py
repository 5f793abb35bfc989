# SPDX-License-Identifier: Apache-2.0
"""Small kinds: namespaces, nodes, config maps, secrets, services, events, roles, leases and network policies.

Events are those of the core group. The server does not serve events.k8s.io, which has other names for the same fields.
"""

import base64
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

from .. import field_errors as errors
from .. import names
from ..field_errors import FieldError
from ..kinds import Column, Context, KindStrategy
from ..objects import Object, fill, pick, timestamp
from . import columns
from .columns import AGE, NAME, NONE

NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
_SERVICE_NETWORK: Final = "10.96"

Problems = Iterator[FieldError]

NODE: Final = KindStrategy(prepare=lambda new, old, context: fill(new, spec={}), status_keeps_metadata=True)

SERVICE_ACCOUNT: Final = KindStrategy(returns_deleted=True)

NAMESPACE_COLUMNS: Final = (NAME, columns.text("Status", "status", "phase"), AGE)

SECRET_COLUMNS: Final = (NAME, columns.text("Type", "type"), columns.count("Data", "data"), AGE)
CONFIG_MAP_COLUMNS: Final = (
    NAME,
    columns.made("Data", lambda obj: len(obj.get("data") or ()) + len(obj.get("binaryData") or ())),
    AGE,
)

RBAC_GROUP: Final = "rbac.authorization.k8s.io"

ROLE: Final = KindStrategy(name_rule=names.PATH_SEGMENT)


def _amounts(limits: bool) -> Callable[[Object], str]:
    """Return a function for the cell of a quota with the used and the allowed amounts of limits, or of all else."""

    def cell(quota: Object) -> str:
        status = quota.get("status") or {}
        used, hard = status.get("used") or {}, status.get("hard") or {}
        names = sorted(name for name in hard if name.startswith("limits.") == limits)
        return ", ".join(f"{name}: {used.get(name, 0)}/{hard[name]}" for name in names)

    return cell


QUOTA_COLUMNS: Final = (
    NAME,
    columns.made("Request", _amounts(limits=False)),
    columns.made("Limit", _amounts(limits=True)),
    AGE,
)

LEASE: Final = KindStrategy(unconditional_update=False)

LEASE_COLUMNS: Final = (NAME, columns.text("Holder", "spec", "holderIdentity"), AGE)


def set_namespace_defaults(obj: Object, context: Context) -> None:
    """Set the label that namespace selectors use."""
    meta = obj["metadata"]
    if meta.get("name"):
        meta.setdefault("labels", {})[NAMESPACE_LABEL] = meta["name"]


def prepare_namespace(new: Object, old: Object | None, context: Context) -> None:
    """Set the finalizer `kubernetes`, which keeps a namespace until its content is deleted."""
    if old is None:
        new["spec"] = {"finalizers": ["kubernetes"]}
        new["status"] = {"phase": "Active"}
    else:
        new["spec"] = {**new.get("spec", {}), "finalizers": old.get("spec", {}).get("finalizers", [])}


def begin_namespace_deletion(obj: Object, now: datetime) -> None:
    """Mark a namespace as being deleted."""
    obj["metadata"]["deletionTimestamp"] = timestamp(now)
    obj["status"] = {**obj.get("status", {}), "phase": "Terminating"}


def namespace_is_held(obj: Object) -> bool:
    """Return whether the namespace still has content."""
    return bool(pick(obj, "spec", "finalizers"))


def set_secret_defaults(obj: Object, context: Context) -> None:
    """Move `stringData` into `data`, and set the type."""
    fill(obj, type="Opaque")
    texts = obj.pop("stringData", None)
    if texts:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in texts.items()}
        obj["data"] = {**obj.get("data", {}), **encoded}


def set_service_defaults(obj: Object, context: Context) -> None:
    """Set the type and the ports."""
    spec = obj.setdefault("spec", {})
    fill(spec, type="ClusterIP", sessionAffinity="None")
    for port in spec.get("ports", ()):
        fill(port, protocol="TCP", targetPort=port.get("port"))


def prepare_service(new: Object, old: Object | None, context: Context) -> None:
    """Assign an address to a new service and keep it in updates. No program listens on the address."""
    spec = new["spec"]
    if spec["type"] != "ExternalName":
        number = int(new["metadata"]["uid"][:4], 16)
        before = pick(old, "spec", "clusterIP") if old else None
        fill(spec, clusterIP=before or f"{_SERVICE_NETWORK}.{number >> 8}.{number & 255}")


def _node_status(node: Object) -> str:
    ready = next((item for item in pick(node, "status", "conditions") or () if item.get("type") == "Ready"), None)
    words = ["Unknown" if ready is None else ("Ready" if ready.get("status") == "True" else "NotReady")]
    if pick(node, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}
    return ",".join(sorted(filter(None, roles))) or NONE


def _internal_address(node: Object) -> str:
    addresses = pick(node, "status", "addresses") or ()
    return next((item.get("address", NONE) for item in addresses if item.get("type") == "InternalIP"), NONE)


def _ports(service: Object) -> str:
    ports = pick(service, "spec", "ports") or ()
    texts = []
    for port in ports:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        texts.append(f"{port.get('port')}{node}/{port.get('protocol')}")
    return ",".join(texts) or NONE


NAMESPACE: Final = KindStrategy(
    default=set_namespace_defaults,
    prepare=prepare_namespace,
    name_rule=names.LABEL,
    status_keeps_metadata=True,
    returns_deleted=True,
    begin_deletion=begin_namespace_deletion,
    held=namespace_is_held,
)
SECRET: Final = KindStrategy(default=set_secret_defaults)
SERVICE: Final = KindStrategy(
    default=set_service_defaults,
    prepare=prepare_service,
    name_rule=names.LABEL,
    first_status={"loadBalancer": {}},
    status_keeps_metadata=True,
    returns_deleted=True,
)

NODE_COLUMNS: Final = (
    NAME,
    columns.made("Status", _node_status),
    columns.made("Roles", _node_roles),
    AGE,
    columns.text("Version", "status", "nodeInfo", "kubeletVersion"),
    columns.made("Internal-IP", _internal_address, wide=True),
    columns.made("External-IP", lambda node: NONE, wide=True),
    columns.text("OS-Image", "status", "nodeInfo", "osImage", wide=True, absent=columns.UNKNOWN),
    columns.text("Kernel-Version", "status", "nodeInfo", "kernelVersion", wide=True, absent=columns.UNKNOWN),
    columns.text(
        "Container-Runtime", "status", "nodeInfo", "containerRuntimeVersion", wide=True, absent=columns.UNKNOWN
    ),
)
SERVICE_COLUMNS: Final = (
    NAME,
    columns.text("Type", "spec", "type"),
    columns.text("Cluster-IP", "spec", "clusterIP", absent=NONE),
    columns.text("External-IP", "spec", "externalName", absent=NONE),
    columns.made("Port(s)", _ports),
    AGE,
    columns.made("Selector", lambda obj: columns.labels(pick(obj, "spec", "selector")), wide=True),
)


def _last_seen(event: Object, now: datetime) -> Any:
    series = pick(event, "series", "lastObservedTime")
    return columns.since(series or event.get("lastTimestamp") or event.get("eventTime"), now)


def _object(event: Object) -> str:
    involved = event.get("involvedObject") or {}
    name = involved.get("name", "")
    return f"{involved.get('kind', '').lower()}/{name}" if name else involved.get("kind", "").lower()


EVENT_COLUMNS: Final[tuple[Column, ...]] = (
    Column("Last Seen", _last_seen),
    columns.text("Type", "type"),
    columns.text("Reason", "reason"),
    columns.made("Object", _object),
    columns.made("Message", lambda event: str(event.get("message", "")).strip()),
)


def set_network_policy_defaults(obj: Object, context: Context) -> None:
    """Set the types of a network policy, and the protocols of its ports."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    for rule in (*(spec.get("ingress") or ()), *(spec.get("egress") or ())):
        for port in rule.get("ports") or ():
            port.setdefault("protocol", "TCP")


def set_binding_defaults(obj: Object, context: Context) -> None:
    """Set the API groups of a binding's role and subjects."""
    fill(obj.get("roleRef", {}), apiGroup=RBAC_GROUP)
    for subject in obj.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            fill(subject, apiGroup=RBAC_GROUP)


def validate_binding(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a change of a RoleBinding or ClusterRoleBinding."""
    if old is not None and new.get("roleRef") != old.get("roleRef"):
        yield errors.invalid("roleRef", new.get("roleRef"), "cannot change roleRef")


def _role(binding: Object) -> str:
    role = binding.get("roleRef") or {}
    return f"{role.get('kind', '')}/{role.get('name', '')}"


BINDING: Final = KindStrategy(default=set_binding_defaults, validate=validate_binding, name_rule=names.PATH_SEGMENT)

BINDING_COLUMNS: Final = (NAME, columns.made("Role", _role), AGE)
