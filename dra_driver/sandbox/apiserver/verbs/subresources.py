# SPDX-License-Identifier: Apache-2.0
"""Subresources except status: scale, binding, eviction, token, and those of containers."""

import secrets
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

from .. import field_errors as errors
from .. import status
from ..apply.managers import decode
from ..catalog import ServedCluster
from ..objects import Object, clone, now, pick, timestamp
from ..store import StoredObject
from ..users import service_account
from .delete import delete_record, parse_options
from .modify import patched
from .request import ApiCall, get_object, read_message, typed
from .write import replace

_SCALE: Final = ("autoscaling/v1", "Scale")
_TOKEN_SECONDS: Final = 3600


def get_scale(cluster: ServedCluster, call: ApiCall) -> tuple[Object, int]:
    """Return a Scale (GET)."""
    return _scale(get_object(cluster, call)), 200


def _scale(record: StoredObject) -> Object:
    obj = record.object
    meta = {
        field: obj["metadata"][field]
        for field in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if field in obj["metadata"]
    }
    state: Object = {"replicas": pick(obj, "status", "replicas") or 0}
    if labels := pick(obj, "spec", "selector", "matchLabels"):
        state["selector"] = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    replicas = pick(obj, "spec", "replicas")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": meta,
        "spec": {"replicas": replicas} if replicas else {},
        "status": state,
    }


def update_scale(cluster: ServedCluster, call: ApiCall) -> tuple[Object, int]:
    """Change the replicas of an object (PUT or PATCH of a Scale)."""
    existing = get_object(cluster, call)
    current = _scale(existing)
    if call.verb == "patch":
        node = cluster.catalog.schemas.find("autoscaling", "v1", "Scale")
        assert node is not None, "Scale is published"
        wanted = typed(cluster, patched(call, current, node), *_SCALE)
    else:
        wanted = read_message(cluster, call, *_SCALE)
    given = pick(wanted, "metadata", "resourceVersion")
    if given and given != current["metadata"]["resourceVersion"]:
        raise call.conflict(call.name, status.MODIFIED)
    replicas = pick(wanted, "spec", "replicas") or 0
    if replicas < 0:
        problem = errors.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise status.invalid("Scale", "autoscaling", call.name, [problem])
    obj: Object = clone(existing.object)
    obj["spec"]["replicas"] = replicas
    # As in kube-apiserver, scaling creates no owner of the number of replicas if there is none.
    owners = decode(existing.object["metadata"].get("managedFields", ()))
    owned = any(("f:spec", "f:replicas") in owner.paths for owner in owners.values())
    return _scale(replace(cluster, call, existing, obj, track=owned)), 200


def bind(cluster: ServedCluster, call: ApiCall) -> tuple[Object, int]:
    """Assign a pod to a node (POST of a Binding)."""
    binding = read_message(cluster, call, "v1", "Binding")
    existing = get_object(cluster, call)
    node = pick(binding, "target", "name")
    if not node:
        raise status.invalid("Binding", "", call.name, [errors.required("target.name")])
    if existing.object["metadata"].get("deletionTimestamp"):
        raise call.conflict(call.name, f"pod {call.name} is being deleted, cannot be assigned to a host")
    bound = existing.object["spec"].get("nodeName")
    if bound:
        raise status.conflict("pods/binding", "", call.name, f'pod {call.name} is already assigned to node "{bound}"')
    obj: Object = clone(existing.object)
    obj["spec"]["nodeName"] = node
    conditions = obj["status"].setdefault("conditions", [])
    conditions[:] = [item for item in conditions if item.get("type") != "PodScheduled"]
    moment = timestamp(now())
    conditions.append({"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": moment})
    cluster.store.put(call.kind.stored_in, existing.key, obj)
    return status.success(code=201), 201


def evict(cluster: ServedCluster, call: ApiCall) -> tuple[Object, int]:
    """Delete a pod (POST of an Eviction). Disruption budgets are ignored."""
    eviction = read_message(cluster, call, "policy/v1", "Eviction")
    existing = get_object(cluster, call)
    delete_record(cluster, call, existing, parse_options(eviction.get("deleteOptions") or {}, call))
    return status.success(code=201), 201


def request_token(cluster: ServedCluster, call: ApiCall) -> tuple[Object, int]:
    """Return a new token of a service account (POST of a TokenRequest). It can be bound to a pod. It never expires."""
    request = read_message(cluster, call, "authentication.k8s.io/v1", "TokenRequest")
    get_object(cluster, call)
    spec = request.get("spec") or {}
    bound = spec.get("boundObjectRef") or {}
    pod = cluster.object("pods", f"{call.namespace}/{bound.get('name', '')}") if bound.get("kind") == "Pod" else None
    token = secrets.token_urlsafe(32)
    cluster.users[token] = service_account(call.namespace, call.name, node=pick(pod, "spec", "nodeName") or "")
    seconds = spec.get("expirationSeconds") or _TOKEN_SECONDS
    result = {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": call.name, "namespace": call.namespace, "creationTimestamp": timestamp(now())},
        "spec": {
            "audiences": spec.get("audiences") or [],
            "expirationSeconds": seconds,
            "boundObjectRef": bound or None,
        },
        "status": {"token": token, "expirationTimestamp": timestamp(now() + timedelta(seconds=seconds))},
    }
    return result, 201


def reach_container(cluster: ServedCluster, call: ApiCall) -> tuple[Object, int]:
    """Refuse a request to the program of a container: its logs, a command, its streams, a port. Raises 404 and 501."""
    get_object(cluster, call)
    raise status.RequestError(501, "NotImplemented", cluster.no_programs)


HANDLERS: Final[Mapping[tuple[str, str], Callable[[ServedCluster, ApiCall], tuple[StoredObject | Object, int]]]] = {
    ("scale", "get"): get_scale,
    ("scale", "patch"): update_scale,
    ("scale", "update"): update_scale,
    ("binding", "create"): bind,
    ("eviction", "create"): evict,
    ("token", "create"): request_token,
    ("log", "get"): reach_container,
    **{(name, verb): reach_container for name in ("attach", "exec", "portforward") for verb in ("create", "get")},
}
"""The functions by subresource and verb."""
