# SPDX-License-Identifier: Apache-2.0
"""The workloads whose controllers keep a number of pods: which pods are theirs, and how they replace them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..kube.resource.codec import Fields
from ..scheduler.pods.objects import LabelSelector, decode_label_selector

OWNERS: Final[Mapping[str, str]] = {
    "Deployment": "ReplicaSet",
    "ReplicaSet": "ReplicaSet",
    "StatefulSet": "StatefulSet",
    "DaemonSet": "DaemonSet",
    "Job": "Job",
}
"""The kind of the controller of a workload's pods."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload of which the cluster may have pods. `selector` is that of its pods, and `spec` is JSON."""

    kind: str
    name: str
    namespace: str
    selector: LabelSelector
    spec: Mapping[str, Any]


def workload_of(value: Mapping[str, Any]) -> Workload | None:
    """The workload of an object (JSON); None for other kinds."""
    kind, metadata = str(value.get("kind")), value.get("metadata") or {}
    spec = value.get("spec")
    group = str(value.get("apiVersion")).rpartition("/")[0]
    if kind not in OWNERS or group not in ("apps", "batch") or not isinstance(spec, dict) or not metadata.get("name"):
        return None
    selector = decode_label_selector(Fields(spec, "spec", strict=False).object("selector"))
    return Workload(kind, metadata["name"], metadata.get("namespace") or "default", selector, spec)
