# SPDX-License-Identifier: Apache-2.0
"""The kinds that the sandbox's controllers work on, and what they ask of pods and claims."""

from typing import Any

from ..cluster import Kind
from ..cluster.events import ObjectReference
from ..resource.codec import V1

JSON = dict[str, Any]

PODS = Kind("v1", "pods", namespaced=True)
CLAIMS = Kind(V1.api_version, "resourceclaims", namespaced=True)
TEMPLATES = Kind(V1.api_version, "resourceclaimtemplates", namespaced=True)
SLICES = Kind(V1.api_version, "resourceslices")
CLASSES = Kind(V1.api_version, "deviceclasses")
DEPLOYMENTS = Kind("apps/v1", "deployments", namespaced=True)
REPLICA_SETS = Kind("apps/v1", "replicasets", namespaced=True)
STATEFUL_SETS = Kind("apps/v1", "statefulsets", namespaced=True)
DAEMON_SETS = Kind("apps/v1", "daemonsets", namespaced=True)
JOBS = Kind("batch/v1", "jobs", namespaced=True)

FINALIZER = "resource.kubernetes.io/delete-protection"
"""What the scheduler puts on a claim before it allocates it."""


def is_finished(pod: JSON) -> bool:
    """Whether all of its containers have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_alive(pod: JSON) -> bool:
    """Whether it is to run, or runs."""
    return not pod["metadata"].get("deletionTimestamp") and not is_finished(pod)


def claim_names(pod: JSON) -> list[str] | None:
    """The names of the pod's claims, None while one made from a template has none yet."""
    made = {
        one["name"]: one.get("resourceClaimName") for one in pod.get("status", {}).get("resourceClaimStatuses") or []
    }
    names: list[str] = []
    for one in pod["spec"].get("resourceClaims") or []:
        name = one.get("resourceClaimName") or made.get(one["name"])
        if name is None:
            return None
        names.append(name)
    return names


def controlled_by(claim: JSON) -> str:
    """The UID of the pod that a claim was made for; empty when it was made by a user."""
    owners = claim["metadata"].get("ownerReferences") or []
    return next((one["uid"] for one in owners if one["kind"] == "Pod" and one.get("controller")), "")


def without_protection(claim: JSON) -> JSON:
    """The claim without the scheduler's finalizer."""
    meta = claim["metadata"]
    finalizers = [one for one in meta.get("finalizers") or [] if one != FINALIZER]
    return {**claim, "metadata": {**meta, "finalizers": finalizers}}


def reference(pod: JSON) -> ObjectReference:
    """The pod as Events name it."""
    meta = pod["metadata"]
    return ObjectReference("v1", "Pod", meta["name"], meta["namespace"], meta["uid"])
