# SPDX-License-Identifier: Apache-2.0
"""Small clusters and pods (JSON) for the tests of this folder."""

from typing import Any

from dra_driver.scheduler.pods import Attempt, PodDecoder, Reader

JSON = dict[str, Any]


def pod(name: str = "p", *, requests: JSON | None = None, metadata: JSON | None = None, **fields: Any) -> JSON:
    """A pod with one container. `fields` are fields of its spec; `status` and `metadata` are those of the pod."""
    status = fields.pop("status", {})
    container = {"name": "c", "image": "i", "resources": {"requests": requests or {}}}
    spec = {"containers": [container], **fields}
    meta = {"name": name, "namespace": "default", **(metadata or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def node(name: str, labels: JSON | None = None, **allocatable: str) -> JSON:
    """A node with 4 CPUs and 110 pods, and with the resources given."""
    resources = {"cpu": "4", "memory": "16Gi", "pods": "110", **allocatable}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": resources}}


def quota(hard: JSON, *, name: str = "q", status: JSON | None = None) -> JSON:
    """A ResourceQuota of the namespace `default`."""
    meta = {"name": name, "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": meta,
        "spec": {"hard": hard},
        "status": status or {},
    }


def read(*documents: JSON) -> Reader:
    """A reader that has read the documents."""
    reader = Reader()
    for document in documents:
        assert reader.add(document)
    return reader


def attempt(wanted: JSON, *documents: JSON) -> Attempt:
    """The scheduler's attempt to place a pod in the cluster of the documents."""
    return Attempt(PodDecoder().decode(wanted), read(*documents).snapshot())
