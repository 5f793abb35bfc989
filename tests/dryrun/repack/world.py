# SPDX-License-Identifier: Apache-2.0
"""A cluster of JSON objects whose pods have claims made from templates, and demands for it."""

from typing import Any

import yaml

from tests.dryrun.drain.world import device_class, nodes

JSON = dict[str, Any]

DRIVER = "gpu.nvidia.com"
H100 = "new-h100x8-mig-{}"
DEVICES = {
    "1g.10gb": "gpu-{}-mig-1g10gb-19-{}",
    "2g.20gb": "gpu-{}-mig-2g20gb-14-{}",
    "3g.40gb": "gpu-{}-mig-3g40gb-9-{}",
    "7g.80gb": "gpu-{}-mig-7g80gb-0-{}",
}


def device(profile: str, gpu: int, first: int) -> str:
    """The MIG device of an H100 that begins at a memory slice."""
    return DEVICES[profile].format(gpu, first)


def hopper(count: int) -> list[JSON]:
    """Nodes with 8 H100 in MIG mode, and the classes."""
    return [*nodes("h100x8-mig", count), device_class(), device_class("mig.nvidia.com", "mig")]


def requests(profile: str) -> JSON:
    """The spec of a claim for one MIG device."""
    expression = f"device.attributes['{DRIVER}'].profile == '{profile}'"
    exactly = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": expression}}]}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def template(profile: str) -> JSON:
    """A template, named after the profile."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": profile.replace(".", "-"), "namespace": "team"},
        "spec": {"spec": requests(profile)},
    }


def pod(name: str, profile: str, *, owner: str = "ReplicaSet", **spec: Any) -> JSON:
    """A pod with a claim from the template of the profile. Without `owner`, no controller makes it again."""
    references = [{"apiVersion": "apps/v1", "kind": owner, "name": name, "uid": f"o-{name}", "controller": True}]
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "gpu"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "labels": {"app": name},
            **({"ownerReferences": references} if owner else {}),
        },
        "spec": {
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": profile.replace(".", "-")}],
            **spec,
        },
    }


def running(name: str, node: str, profile: str, gpu: int, first: int, **more: Any) -> list[JSON]:
    """A pod on a node, and its claim."""
    made = pod(name, profile, nodeName=node, **more)
    made["status"] = {
        "phase": "Running",
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}],
    }
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": device(profile, gpu, first)}
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True}]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"{name}-gpu", "namespace": "team", "uid": f"uid-{name}-gpu", "ownerReferences": owners},
        "spec": requests(profile),
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
        },
    }
    return [made, claim]


def crowded() -> list[JSON]:
    """Two nodes. Each GPU of the first has a small pod, but on GPU 3 there are only a few slices in use; those of the
    second are full, except one.
    """
    found = [*hopper(2)]
    for gpu in range(8):
        found += running(f"a{gpu}", H100.format(1), "3g.40gb" if gpu != 3 else "1g.10gb", gpu, 4)
        found += running(f"b{gpu}", H100.format(2), "3g.40gb", gpu, 0)
    return found


def large_pod() -> str:
    """A manifest: a pod that needs a whole GPU in MIG mode, with its template."""
    documents = [template("7g.80gb"), pod("train", "7g.80gb", owner="")]
    for document in documents:
        document["metadata"].pop("uid", None)
    return yaml.dump_all(documents, Dumper=yaml.CSafeDumper)


def sharing(name: str, gpu: int, memory: int, node: str = "new-l40sx4-shares-1") -> list[JSON]:
    """A pod on a node, which has a share of a GPU with so many GiB."""
    made, claim = running(name, node, "1g.10gb", 0, 0)
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": node,
        "device": f"gpu-{gpu}",
        "shareID": f"00000000-0000-4000-8000-{gpu:06}{memory:06}",
        "consumedCapacity": {"memory": f"{memory}Gi"},
    }
    claim["spec"] = share_of(memory)
    claim["status"]["allocation"]["devices"]["results"] = [result]
    return [made, claim]


def share_of(memory: int) -> JSON:
    """The spec of a claim for a share."""
    exactly = {"deviceClassName": "gpu.nvidia.com", "capacity": {"requests": {"memory": f"{memory}Gi"}}}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
