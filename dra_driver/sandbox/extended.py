# SPDX-License-Identifier: Apache-2.0
"""The claim that the scheduler makes for a pod's extended resources (`nvidia.com/gpu: 2`), as the pod's status has it.

Follows kube-scheduler 1.36 (KEP-5004, plugin DynamicResources). `dra_driver.scheduling.extended` makes the claim.
"""

from collections.abc import Container, Iterator, Sequence

from ..resource import ResourceClaim
from ..scheduling import ClusterNode, Pod
from ..scheduling.extended import ExtendedRequest
from .loop import JSON, controlled_by

ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of the scheduler's claim. It tells this claim from other claims that the pod controls."""


def is_special_claim(claim: JSON, pod: JSON) -> bool:
    """Return whether the scheduler made the claim for the pod."""
    annotations = claim["metadata"].get("annotations") or {}
    return annotations.get(ANNOTATION) == "true" and controlled_by(claim) == pod["metadata"]["uid"]


def claimed_on(pod: Pod, node: ClusterNode, served: Container[str]) -> list[ExtendedRequest]:
    """Return the requests that the claim serves on the node: those that no device plugin of the node offers."""
    return [one for one in pod.extended if one.resource in served and not node.allocatable.get(one.resource)]


def claim_status(pod: JSON, name: str, claim: ResourceClaim, claimed: Sequence[ExtendedRequest]) -> JSON:
    """Return `status.extendedResourceClaimStatus` of a pod whose special claim has the name `name`."""
    containers = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
    made = {request.name for request in claim.spec.requests}
    mappings = [
        {"containerName": containers[one.index]["name"], "resourceName": resource, "requestName": request}
        for resource in sorted({one.resource for one in claimed})
        for one, request in _mappings([one for one in claimed if one.resource == resource], made)
    ]
    return {"resourceClaimName": name, "requestMappings": mappings}


def _mappings(requests: Sequence[ExtendedRequest], made: set[str]) -> Iterator[tuple[ExtendedRequest, str]]:
    """Yield which requests of the claim serve each container, for one resource.

    Init containers use devices that later containers hold. If one needs more, the claim has one request for the rest.
    """
    lasting = [one for one in requests if not one.short_lived]
    passing = [one for one in requests if one.short_lived]
    yield from ((one, one.request) for one in lasting)
    on_top = [one.request for one in passing if one.request in made]
    for one in passing:
        missing = one.count
        for later in lasting:
            if later.index >= one.index and missing > 0:
                yield one, later.request
                missing -= later.count
        if missing > 0:
            yield from ((one, request) for request in on_top)
