# SPDX-License-Identifier: Apache-2.0
"""A cluster as JSON objects: nodes with GPUs, and pods with claims of their own that hold them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dra_driver.dryrun.nodetypes import simulated_nodes
from dra_driver.dryrun.snapshot import encoded
from dra_driver.kube.resource.codec import V1

JSON = dict[str, Any]

RENAMED = "new-{kind}-{number}"


def nodes(kind: str, count: int) -> list[JSON]:
    """Nodes `new-<kind>-<number>` with their slices. Each can take 110 pods."""
    return [
        {**value, "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}}}
        if value["kind"] == "Node"
        else value
        for value in encoded(simulated_nodes(kind, count))
    ]


def device_class(name: str = "gpu.nvidia.com", kind: str = "gpu") -> JSON:
    expression = f"device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{kind}'"
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {"apiVersion": V1.api_version, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def pod(name: str, node: str = "", *, owner: str = "serve", priority: int = 0, claim: str = "", **spec: Any) -> JSON:
    """A pod that uses the claim with its name, or `claim`. Without `owner`, no controller makes it again."""
    references = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": "o", "controller": True}]
    metadata: JSON = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    claims = [{"name": "gpu", "resourceClaimName": claim or name}]
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "gpu"}]}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, **({"ownerReferences": references} if owner else {})},
        "spec": {
            **({"nodeName": node} if node else {}),
            "priority": priority,
            "containers": containers,
            "resourceClaims": claims,
            **spec,
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


def claim(
    name: str,
    node: str = "",
    devices: Sequence[str] = (),
    *,
    users: Iterable[str] | None = None,
    device_class: str = "gpu.nvidia.com",
    count: int = 1,
    selectors: Sequence[str] = (),
    tolerations: Sequence[JSON] = (),
) -> JSON:
    """A claim, which holds `devices` of a node, and is reserved for the pod of its name or for `users`."""
    exactly: JSON = {"deviceClassName": device_class, "count": count}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in selectors]
    if tolerations:
        exactly["tolerations"] = list(tolerations)
    value: JSON = {
        "apiVersion": V1.api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-claim-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    if devices:
        more = {"tolerations": list(tolerations)} if tolerations else {}
        results = [
            {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": device, **more} for device in devices
        ]
        reserved = [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users or (name,)]
        value["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    return value


def running(name: str, node: str, *devices: str, **more: Any) -> list[JSON]:
    """A pod on a node, with the claim of its own that holds the devices."""
    tolerations = more.pop("tolerations", ())
    selectors = more.pop("selectors", ())
    held = claim(name, node, devices, count=len(devices), tolerations=tolerations, selectors=selectors)
    return [pod(name, node, **more), held]


def save(folder: Path, *objects: JSON) -> Path:
    """A file for --slices with the objects, and empty lists for kinds that the cluster does not have."""
    kinds = {value["kind"] for value in objects}
    empty = [
        {"apiVersion": version, "kind": f"{kind}List", "items": []}
        for version, kind in (("v1", "Pod"), ("v1", "Namespace"), ("v1", "ResourceQuota"))
        if kind not in kinds
    ]
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects, *empty]}), encoding="utf-8")
    return file
