# SPDX-License-Identifier: Apache-2.0
"""The small core kinds: Namespace, Node, ConfigMap, Secret, Service, ServiceAccount, Event.

Event is that of the core group. events.k8s.io, which has other names for the same fields, is not served.
"""

import base64
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from .. import field_errors as errors
from .. import names
from ..field_errors import FieldError
from ..kinds import Column, Context, Strategy, text_at
from ..objects import Object, pick, timestamp
from . import columns
from .columns import AGE, NAME, NONE

NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
_DATA_BYTES: Final = 1024 * 1024
_SERVICE_NETWORK: Final = "10.96"

Problems = Iterator[FieldError]


def set_namespace_defaults(obj: Object, context: Context) -> None:
    """The label that selectors find a namespace by."""
    meta = obj["metadata"]
    if meta.get("name"):
        meta.setdefault("labels", {})[NAMESPACE_LABEL] = meta["name"]


def prepare_namespace(new: Object, old: Object | None, context: Context) -> None:
    """A namespace goes only after its content: that is what its own finalizer is for."""
    if old is None:
        new["spec"] = {"finalizers": ["kubernetes"]}
        new["status"] = {"phase": "Active"}
    else:
        new["spec"] = {**new.get("spec", {}), "finalizers": old.get("spec", {}).get("finalizers", [])}


def begin_namespace_deletion(obj: Object, now: datetime) -> None:
    """A namespace that goes says so, and takes no new objects."""
    obj["metadata"]["deletionTimestamp"] = timestamp(now)
    obj["status"] = {**obj.get("status", {}), "phase": "Terminating"}


def namespace_is_held(obj: Object) -> bool:
    """Whether the namespace's content has not been removed yet."""
    return bool(pick(obj, "spec", "finalizers"))


def prepare_node(new: Object, old: Object | None, context: Context) -> None:
    """A node registers with its status; afterwards that has its own endpoint."""
    new.setdefault("spec", {})


def validate_node(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a node."""
    for index, taint in enumerate(new.get("spec", {}).get("taints", ())):
        for problem in names.label_key_problems(taint.get("key", "")):
            yield errors.invalid(f"spec.taints[{index}].key", taint.get("key", ""), problem)
    before = pick(old, "spec", "providerID") if old else None
    if before and pick(new, "spec", "providerID") != before:
        yield errors.forbidden("spec.providerID", 'node updates may not change providerID except from "" to valid')


def set_secret_defaults(obj: Object, context: Context) -> None:
    """`stringData` is written as `data`."""
    obj["type"] = obj.get("type") or "Opaque"
    texts = obj.pop("stringData", None)
    if texts:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in texts.items()}
        obj["data"] = {**obj.get("data", {}), **encoded}


def validate_secret(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a secret, or with its change."""
    if old is not None and new.get("type") != old.get("type"):
        yield errors.invalid("type", new.get("type"), "field is immutable")
    yield from _data_problems(new, old, ("data",))


def validate_config_map(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a config map, or with its change."""
    yield from _data_problems(new, old, ("data", "binaryData"))


def _data_problems(new: Object, old: Object | None, fields: tuple[str, ...]) -> Problems:
    size = 0
    for field in fields:
        for key, value in (new.get(field) or {}).items():
            size += len(value.encode())
            if not key or len(key) > 253 or not all(letter.isalnum() or letter in "-_." for letter in key):
                text = (
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  "
                    "or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                )
                yield errors.invalid(f"{field}[{key}]", key, text)
    if size > _DATA_BYTES:
        yield errors.too_long("data", _DATA_BYTES)
    if old is not None and old.get("immutable"):
        if not new.get("immutable"):
            yield errors.forbidden("immutable", "field is immutable when `immutable` is set")
        for field in fields:
            if (new.get(field) or {}) != (old.get(field) or {}):
                yield errors.forbidden(field, "field is immutable when `immutable` is set")


def set_service_defaults(obj: Object, context: Context) -> None:
    """Type, ports and traffic policies."""
    spec = obj.setdefault("spec", {})
    for field, value in (("type", "ClusterIP"), ("sessionAffinity", "None")):
        if not spec.get(field):
            spec[field] = value
    for port in spec.get("ports", ()):
        port["protocol"] = port.get("protocol") or "TCP"
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port")
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")


def prepare_service(new: Object, old: Object | None, context: Context) -> None:
    """Gives a service an address, and lets it keep it. No traffic goes there."""
    spec = new["spec"]
    before = pick(old, "spec", "clusterIP") if old else None
    if spec["type"] == "ExternalName":
        return
    if not spec.get("clusterIP"):
        number = int(new["metadata"].get("uid", "0")[:4] or "0", 16)
        spec["clusterIP"] = before or f"{_SERVICE_NETWORK}.{number >> 8}.{number & 255}"
    spec["clusterIPs"] = [spec["clusterIP"]]
    anywhere = spec["clusterIP"] == "None" and not spec.get("selector")
    spec.setdefault("ipFamilies", ["IPv4", "IPv6"] if anywhere else ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "RequireDualStack" if anywhere else "SingleStack")


def validate_service(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a service, or with its change."""
    spec = new["spec"]
    if not spec.get("ports") and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        yield errors.required("spec.ports")
    before = pick(old, "spec", "clusterIP") if old else None
    if before and spec.get("clusterIP") != before and spec["type"] != "ExternalName":
        yield errors.invalid("spec.clusterIPs[0]", [spec.get("clusterIP")], "may not change once set")


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


def _kernel(node: Object) -> str:
    info = pick(node, "status", "nodeInfo") or {}
    version, architecture = info.get("kernelVersion", ""), info.get("architecture", "")
    if not version:
        return columns.UNKNOWN
    return f"{version} ({architecture})" if architecture else version


def _address(kind: str) -> Any:
    def find(node: Object) -> str:
        addresses = pick(node, "status", "addresses") or ()
        return next((item.get("address", NONE) for item in addresses if item.get("type") == kind), NONE)

    return find


def _ports(service: Object) -> str:
    ports = pick(service, "spec", "ports") or ()
    texts = []
    for port in ports:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        texts.append(f"{port.get('port')}{node}/{port.get('protocol')}")
    return ",".join(texts) or NONE


def _external_ip(service: Object) -> str:
    match pick(service, "spec", "type"):
        case "ExternalName":
            return pick(service, "spec", "externalName") or NONE
        case "LoadBalancer":
            return "<pending>"
    return ",".join(pick(service, "spec", "externalIPs") or ()) or NONE


NAMESPACE: Final = Strategy(
    default=set_namespace_defaults,
    prepare=prepare_namespace,
    name_problems=names.label_name,
    status_keeps_metadata=True,
    returns_deleted=True,
    collects_garbage=False,
    begin_deletion=begin_namespace_deletion,
    held=namespace_is_held,
)
NODE: Final = Strategy(prepare=prepare_node, validate=validate_node, status_keeps_metadata=True)
SECRET: Final = Strategy(default=set_secret_defaults, validate=validate_secret)
CONFIG_MAP: Final = Strategy(validate=validate_config_map)
SERVICE_ACCOUNT: Final = Strategy(returns_deleted=True)
SERVICE: Final = Strategy(
    default=set_service_defaults,
    prepare=prepare_service,
    validate=validate_service,
    name_problems=names.label_name,
    first_status={"loadBalancer": {}},
    status_keeps_metadata=True,
    returns_deleted=True,
)

NAMESPACE_COLUMNS: Final = (NAME, columns.text("Status", "status", "phase"), AGE)
NODE_COLUMNS: Final = (
    NAME,
    columns.made("Status", _node_status),
    columns.made("Roles", _node_roles),
    AGE,
    columns.text("Version", "status", "nodeInfo", "kubeletVersion"),
    columns.made("Internal-IP", _address("InternalIP"), wide=True),
    columns.made("External-IP", _address("ExternalIP"), wide=True),
    columns.text("OS-Image", "status", "nodeInfo", "osImage", wide=True, absent=columns.UNKNOWN),
    columns.made("Kernel-Version", _kernel, wide=True),
    columns.text(
        "Container-Runtime", "status", "nodeInfo", "containerRuntimeVersion", wide=True, absent=columns.UNKNOWN
    ),
)
SECRET_COLUMNS: Final = (NAME, columns.text("Type", "type"), columns.count("Data", "data"), AGE)
CONFIG_MAP_COLUMNS: Final = (
    NAME,
    columns.made("Data", lambda obj: len(obj.get("data") or ()) + len(obj.get("binaryData") or ())),
    AGE,
)
SERVICE_COLUMNS: Final = (
    NAME,
    columns.text("Type", "spec", "type"),
    columns.text("Cluster-IP", "spec", "clusterIP", absent=NONE),
    columns.made("External-IP", _external_ip),
    columns.made("Port(s)", _ports),
    AGE,
    columns.made("Selector", lambda obj: columns.labels(pick(obj, "spec", "selector")), wide=True),
)


def event_from_stored(obj: Object, version: str) -> Object:
    """A stored event, which always says who reports."""
    return {"reportingComponent": "", "reportingInstance": "", **obj}


def set_event_defaults(obj: Object, context: Context) -> None:
    """Fields that clients and columns count on."""
    obj.setdefault("involvedObject", {})
    obj.setdefault("source", {})


def validate_event(new: Object, old: Object | None, context: Context) -> Iterator[FieldError]:
    """What is wrong with an event of the core group."""
    involved = pick(new, "involvedObject", "namespace") or ""
    namespace = new["metadata"].get("namespace", "")
    if involved != namespace and not (not involved and namespace in ("default", "kube-system")):
        yield errors.invalid("involvedObject.namespace", involved, "does not match event.namespace")


def _last_seen(event: Object, now: datetime) -> Any:
    series = pick(event, "series", "lastObservedTime")
    return columns.since(series or event.get("lastTimestamp") or event.get("eventTime"), now)


def _first_seen(event: Object, now: datetime) -> Any:
    return columns.since(event.get("firstTimestamp") or event.get("eventTime"), now)


def _object(event: Object) -> str:
    involved = event.get("involvedObject") or {}
    name = involved.get("name", "")
    return f"{involved.get('kind', '').lower()}/{name}" if name else involved.get("kind", "").lower()


def _source(event: Object) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent", "")
    host = source.get("host") or event.get("reportingInstance", "")
    return f"{component}, {host}" if host else component


EVENT_COLUMNS: Final[tuple[Column, ...]] = (
    Column("Last Seen", _last_seen),
    columns.text("Type", "type"),
    columns.text("Reason", "reason"),
    columns.made("Object", _object),
    columns.text("Subobject", "involvedObject", "fieldPath", wide=True),
    columns.made("Source", _source, wide=True),
    columns.made("Message", lambda event: str(event.get("message", "")).strip()),
    Column("First Seen", _first_seen, priority=1),
    columns.made("Count", lambda event: pick(event, "series", "count") or event.get("count") or 1, wide=True),
    Column("Name", NAME.cell, priority=1, format="name"),
)
EVENT_SELECTORS: Final = {
    **{
        f"involvedObject.{field}": text_at("involvedObject", field)
        for field in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": text_at("reason"),
    "reportingComponent": text_at("reportingComponent"),
    "source": text_at("source", "component"),
    "type": text_at("type"),
}
EVENT: Final = Strategy(default=set_event_defaults, validate=validate_event)


RBAC_GROUP: Final = "rbac.authorization.k8s.io"
_SUBJECTS: Final = ("ServiceAccount", "User", "Group")


def set_binding_defaults(obj: Object, context: Context) -> None:
    """The API groups of a binding's role and subjects."""
    role = obj.get("roleRef")
    if isinstance(role, dict) and not role.get("apiGroup"):
        role["apiGroup"] = RBAC_GROUP
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = RBAC_GROUP


def validate_role(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a Role or ClusterRole."""
    namespaced = bool(new["metadata"].get("namespace"))
    for index, rule in enumerate(new.get("rules") or ()):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            yield errors.required(f"{path}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            if namespaced:
                text = "namespaced rules cannot apply to non-resource URLs"
                yield errors.invalid(f"{path}.nonResourceURLs", rule["nonResourceURLs"], text)
            continue
        if not rule.get("apiGroups"):
            yield errors.required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            yield errors.required(f"{path}.resources", "resource rules must supply at least one resource")


def validate_binding(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a RoleBinding or ClusterRoleBinding, or with its change."""
    role = new.get("roleRef") or {}
    kinds = ("Role", "ClusterRole") if new["metadata"].get("namespace") else ("ClusterRole",)
    if role.get("kind") not in kinds:
        yield errors.not_supported("roleRef.kind", role.get("kind", ""), kinds)
    if not role.get("name"):
        yield errors.required("roleRef.name")
    for index, subject in enumerate(new.get("subjects") or ()):
        path = f"subjects[{index}]"
        if not subject.get("name"):
            yield errors.required(f"{path}.name")
        if subject.get("kind") not in _SUBJECTS:
            yield errors.not_supported(f"{path}.kind", subject.get("kind", ""), _SUBJECTS)
    if old is not None and role != old.get("roleRef"):
        yield errors.invalid("roleRef", role, "cannot change roleRef")


def validate_lease(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a lease."""
    spec = new.get("spec") or {}
    for field in ("leaseDurationSeconds", "leaseTransitions"):
        value = spec.get(field)
        least = 1 if field == "leaseDurationSeconds" else 0
        if value is not None and value < least:
            text = "must be greater than 0" if least else "must be greater than or equal to 0"
            yield errors.invalid(f"spec.{field}", value, text)


def _role(binding: Object) -> str:
    role = binding.get("roleRef") or {}
    return f"{role.get('kind', '')}/{role.get('name', '')}"


def _subjects(kind: str) -> Any:
    def find(binding: Object) -> str:
        found = (subject for subject in binding.get("subjects") or () if subject.get("kind") == kind)
        return ", ".join(
            f"{subject.get('namespace', '')}/{subject['name']}" if kind == "ServiceAccount" else subject["name"]
            for subject in found
        )

    return find


ROLE: Final = Strategy(validate=validate_role, name_problems=names.path_segment_problems)
BINDING: Final = Strategy(
    default=set_binding_defaults,
    validate=validate_binding,
    name_problems=names.path_segment_problems,
)
LEASE: Final = Strategy(validate=validate_lease, unconditional_update=False)

BINDING_COLUMNS: Final = (
    NAME,
    columns.made("Role", _role),
    AGE,
    columns.made("Users", _subjects("User"), wide=True),
    columns.made("Groups", _subjects("Group"), wide=True),
    columns.made("ServiceAccounts", _subjects("ServiceAccount"), wide=True),
)
LEASE_COLUMNS: Final = (NAME, columns.text("Holder", "spec", "holderIdentity"), AGE)
