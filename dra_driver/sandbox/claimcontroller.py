# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the resource claim controller of kube-controller-manager.

It creates claims from templates for pods and PodGroups, removes allocations of claims that no pod uses any more, and
deletes claims that were created for a pod when this pod has ended.
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus

from ..kube.api import ApiClient, NotFoundError, StatusError
from ..kube.api.events import EventRecorder
from ..kube.kinds import POD_GROUPS, PODS
from ..kube.resource.codec import V1
from .claimwrites import update_claim
from .loop import (
    CLAIMS,
    FINALIZER,
    JSON,
    TEMPLATES,
    controlled_by,
    is_alive,
    is_finished,
    reference,
    without_protection,
)
from .podgroups import PodGroups, group_owner

log = logging.getLogger(__name__)

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


class ClaimController:
    """Each step does what is missing for all pods and claims."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._events = EventRecorder(client, "resource_claim")

    def step(self) -> None:
        """Check all pods and claims. Raises ApiError."""
        pods = self._client.list(PODS).items
        claims = list(self._client.list(CLAIMS).items)
        groups = self._groups(pods, claims)
        self._release_claims(claims, pods, groups)
        for pod in pods:
            if is_alive(pod):
                try:
                    self._make_claims(pod, claims, groups)
                except NotFoundError as error:
                    log.debug("pod %s is tried again: %s", reference(pod), error)

    def close(self) -> None:
        """Write the Events that are still queued."""
        self._events.close()

    def _groups(self, pods: Sequence[JSON], claims: Sequence[JSON]) -> PodGroups:
        """Read the PodGroups, if a pod or a reservation names one."""
        consumers = (consumer for claim in claims for consumer in (claim.get("status") or {}).get("reservedFor") or ())
        is_named = any(pod["spec"].get("schedulingGroup") for pod in pods) or any(
            consumer["resource"] == POD_GROUPS.plural for consumer in consumers
        )
        return PodGroups.read(self._client) if is_named else PodGroups({})

    def _make_claims(self, pod: JSON, claims: list[JSON], groups: PodGroups) -> None:
        """Create the claims of a pod that are missing, and add them to `claims`."""
        named = {status["name"]: status for status in pod.get("status", {}).get("resourceClaimStatuses") or []}
        made = {
            (controlled_by(claim), claim["metadata"].get("annotations", {}).get(POD_CLAIM_NAME)): claim["metadata"][
                "name"
            ]
            for claim in claims
        }
        missing = [
            entry
            for entry in pod["spec"].get("resourceClaims") or []
            if entry.get("resourceClaimTemplateName") and entry["name"] not in named
        ]
        for entry in missing:
            group = groups.sharing(pod, entry)
            user = pod if group is None else group
            name = made.get((user["metadata"]["uid"], entry["name"]))
            if name is None:
                claim = self._make_claim(pod, group, entry)
                if claim is None:
                    return
                claims.append(claim)
                name = claim["metadata"]["name"]
            named[entry["name"]] = {"name": entry["name"], "resourceClaimName": name}
        if missing:
            status = {**pod.get("status", {}), "resourceClaimStatuses": list(named.values())}
            self._client.update(PODS, {**pod, "status": status}, subresource="status")

    def _make_claim(self, pod: JSON, group: JSON | None, pod_claim: JSON) -> JSON | None:
        """Create a claim of a pod or of its group and return it.

        If the template does not exist, or a quota refuses the claim, write an Event for the pod and return None.
        """
        meta = pod["metadata"]
        wanted = pod_claim["resourceClaimTemplateName"]
        try:
            template = self._client.get(TEMPLATES, wanted, meta["namespace"])["spec"]
        except NotFoundError:
            text = f'resource claim template "{wanted}": resourceclaimtemplate.resource.k8s.io "{wanted}" not found'
            self._report(pod, pod_claim, text)
            return None
        inner = template.get("metadata") or {}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        owner = owner if group is None else group_owner(group)
        claim = {
            "apiVersion": V1.api_version,
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": f"{owner['name']}-{pod_claim['name']}-",
                "namespace": meta["namespace"],
                "labels": inner.get("labels") or {},
                "annotations": {**(inner.get("annotations") or {}), POD_CLAIM_NAME: pod_claim["name"]},
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
        }
        try:
            created = self._client.create(CLAIMS, claim, meta["namespace"])
        except StatusError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            self._report(pod, pod_claim, f"create ResourceClaim: {error.message}")
            return None
        if group is not None:
            self._record(group, pod_claim["name"], created["metadata"]["name"])
        return created

    def _report(self, pod: JSON, pod_claim: JSON, problem: str) -> None:
        text = f"PodResourceClaim {pod_claim['name']}: {problem}"
        self._events.warning(reference(pod), "FailedResourceClaimCreation", text)

    def _record(self, group: JSON, name: str, claim: str) -> None:
        """Write the name of a claim into the status of its PodGroup."""
        meta, status = group["metadata"], group.get("status") or {}
        others = [entry for entry in status.get("resourceClaimStatuses") or [] if entry["name"] != name]
        change = {"status": {"resourceClaimStatuses": [*others, {"name": name, "resourceClaimName": claim}]}}
        self._client.patch(POD_GROUPS, meta["name"], change, namespace=meta["namespace"], subresource="status")

    def _is_new(self, consumer: JSON, claim: JSON) -> bool:
        """Whether the consumer is a pod that the list of pods, which can be older than that of claims, did not have."""
        if consumer["resource"] != PODS.plural:
            return False
        try:
            pod = self._client.get(PODS, consumer["name"], claim["metadata"]["namespace"])
        except NotFoundError:
            return False
        return bool(pod["metadata"]["uid"] == consumer["uid"])

    def _release_claims(self, claims: Sequence[JSON], pods: Sequence[JSON], groups: PodGroups) -> None:
        """Remove reservations of pods that ended and of PodGroups that are gone, then allocations without reservations,
        then the delete protection.

        Claims that were created for finished pods are deleted.
        """
        finished = {pod["metadata"]["uid"] for pod in pods if is_finished(pod)}
        using = ({pod["metadata"]["uid"] for pod in pods} - finished) | groups.uids
        for claim in claims:
            status = claim.get("status") or {}
            reserved = status.get("reservedFor") or []
            kept = [
                consumer
                for consumer in reserved
                if consumer["uid"] in using or (consumer["uid"] not in finished and self._is_new(consumer, claim))
            ]
            if len(kept) != len(reserved):
                status = {key: value for key, value in status.items() if kept or key not in ("allocation", "devices")}
                status["reservedFor"] = kept
                claim = update_claim(self._client, {**claim, "status": status}, "status")
            meta = claim["metadata"]
            if FINALIZER in (meta.get("finalizers") or []) and "allocation" not in claim.get("status", {}):
                update_claim(self._client, without_protection(claim))
            if controlled_by(claim) in finished and not meta.get("deletionTimestamp"):
                self._client.delete(CLAIMS, meta["name"], meta["namespace"], uid=meta["uid"])
