# SPDX-License-Identifier: Apache-2.0
"""A stand-in for kube-controller-manager's resource claim controller.

Makes claims from templates for pods that want them, and takes allocations back when no pod uses a claim any more.
"""

import logging
from collections.abc import Sequence

from ..cluster import ApiClient, NotFoundError
from ..resource.codec import V1
from .pods import CLAIMS, FINALIZER, JSON, PODS, TEMPLATES, is_alive, is_finished

log = logging.getLogger(__name__)

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


class ClaimController:
    """One step does whatever is missing."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def step(self) -> None:
        """Look at all pods and claims. Raises ApiError."""
        pods = self._client.list(PODS).items
        self._release_claims(pods)
        for pod in pods:
            if is_alive(pod):
                try:
                    self._make_claims(pod)
                except NotFoundError as error:
                    log.warning("pod %s: %s", pod["metadata"]["name"], error)

    def _make_claims(self, pod: JSON) -> None:
        named = {one["name"]: one for one in pod.get("status", {}).get("resourceClaimStatuses") or []}
        missing = [
            one
            for one in pod["spec"].get("resourceClaims") or []
            if one.get("resourceClaimTemplateName") and one["name"] not in named
        ]
        if not missing:
            return
        for one in missing:
            named[one["name"]] = {"name": one["name"], "resourceClaimName": self._make_claim(pod, one)}
        status = {**pod.get("status", {}), "resourceClaimStatuses": list(named.values())}
        self._client.update(PODS, {**pod, "status": status}, subresource="status")

    def _make_claim(self, pod: JSON, pod_claim: JSON) -> str:
        meta = pod["metadata"]
        template = self._client.get(TEMPLATES, pod_claim["resourceClaimTemplateName"], meta["namespace"])["spec"]
        inner = template.get("metadata") or {}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
        claim = {
            "apiVersion": V1.api_version,
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": f"{meta['name']}-{pod_claim['name']}-",
                "namespace": meta["namespace"],
                "labels": inner.get("labels") or {},
                "annotations": {**(inner.get("annotations") or {}), POD_CLAIM_NAME: pod_claim["name"]},
                "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
        }
        created: str = self._client.create(CLAIMS, claim, meta["namespace"])["metadata"]["name"]
        return created

    def _release_claims(self, pods: Sequence[JSON]) -> None:
        """Take reservations of pods that are gone or finished, then unreserved allocations, then the protection."""
        alive = {pod["metadata"]["uid"] for pod in pods if is_alive(pod) or not is_finished(pod)}
        for claim in self._client.list(CLAIMS).items:
            status = claim.get("status") or {}
            reserved = status.get("reservedFor") or []
            kept = [one for one in reserved if one["uid"] in alive]
            if len(kept) != len(reserved):
                status = {key: value for key, value in status.items() if kept or key not in ("allocation", "devices")}
                status["reservedFor"] = kept
                claim = self._client.update(CLAIMS, {**claim, "status": status}, subresource="status")
            if FINALIZER in (claim["metadata"].get("finalizers") or []) and "allocation" not in claim.get("status", {}):
                finalizers = [one for one in claim["metadata"]["finalizers"] if one != FINALIZER]
                self._client.update(CLAIMS, {**claim, "metadata": {**claim["metadata"], "finalizers": finalizers}})
