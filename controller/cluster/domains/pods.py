# SPDX-License-Identifier: Apache-2.0
"""The pods of daemons as facts: where they are, and why they do not run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.kube.api.client import JSON

UNSCHEDULABLE: Final = "PodUnschedulable"
IMAGE: Final = "ImagePullFailed"
FAILED: Final = "PodFailed"
"""Reasons why a pod does not run, for conditions and Events."""

_IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_STARTING = {"ContainerCreating", "PodInitializing"}
_LONGEST = 300  # characters of a message of kubelet


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of a domain's daemon. `node` is the node that it is on, or that it is for. `address` is empty while it has
    none, and when it has ended. `trouble` is a reason and a text why it does not run, or None.
    """

    uid: str
    name: str
    node: str
    domain: str
    address: str = ""
    created: str = ""
    is_deleted: bool = False
    is_finished: bool = False
    trouble: tuple[str, str] | None = None


def pod_facts(value: JSON) -> PodFacts:
    """The facts of a pod."""
    meta, status = value["metadata"], value.get("status") or {}
    finished = status.get("phase") in ("Succeeded", "Failed")
    return PodFacts(
        meta["uid"],
        meta["name"],
        _node(value.get("spec") or {}),
        (meta.get("labels") or {}).get(DOMAIN_LABEL) or "",
        "" if finished else status.get("podIP") or "",
        meta.get("creationTimestamp") or "",
        bool(meta.get("deletionTimestamp")),
        finished,
        _trouble(status),
    )


def newest_pods(pods: Iterable[PodFacts]) -> dict[str, PodFacts]:
    """The pod that counts on each node: that is not being deleted, and is the newest. Finished pods do not count."""
    found: dict[str, PodFacts] = {}
    for pod in sorted(pods, key=lambda pod: (not pod.is_deleted, pod.created, pod.name)):
        if pod.node and not pod.is_finished:
            found[pod.node] = pod
    return found


def _node(spec: JSON) -> str:
    """The node of a pod. Before it is scheduled, the DaemonSet controller names the node in the affinity."""
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or []:
        for field in term.get("matchFields") or []:
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _trouble(status: JSON) -> tuple[str, str] | None:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return UNSCHEDULABLE, str(condition.get("message") or condition.get("reason"))[:_LONGEST]
    if status.get("phase") == "Failed":
        return FAILED, f"{status.get('reason') or 'failed'}: {status.get('message') or 'no message'}"[:_LONGEST]
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason") or ""
        if reason and reason not in _STARTING:
            text = ": ".join(filter(None, (reason, waiting.get("message"))))[:_LONGEST]
            return (IMAGE if reason in _IMAGE_REASONS else FAILED), text
    return None
