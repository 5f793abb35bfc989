# SPDX-License-Identifier: Apache-2.0
"""Extended resources of pods (`nvidia.com/gpu: 2`): what a node's device plugin gives, and what a claim is made for.

Follows kube-scheduler 1.36 (KEP-5004; plugins NodeResourcesFit and DynamicResources): a resource that is in the node's
allocatable comes from the device plugin there. All others that a DeviceClass serves come with one claim for the pod.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..resource import DeviceClass, ObjectMeta, OwnerReference, ResourceClaim
from ..resource.quantity import Quantity
from ..scheduling.extended import ExtendedRequest, claim_for, served
from .loop import JSON, controlled_by

ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
"""What tells the scheduler's claim from others that the pod controls."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a pod's extended resources come from on one node: `claimed` from a claim, the rest from device plugins.

    `lacking` are the resources of which the node has too little; `others_hold` tells that without other pods it would
    have enough.
    """

    claimed: tuple[ExtendedRequest, ...]
    lacking: tuple[str, ...]
    others_hold: bool


def requests_of(pod: JSON) -> list[ExtendedRequest]:
    """The extended resources that the pod's containers request, as stored: limits are requests already."""
    first = len(pod["spec"].get("initContainers") or [])
    return [
        ExtendedRequest(index, f"container-{index}-request-{number}", name, count, short_lived)
        for index, container in enumerate(_containers(pod))
        for short_lived in [index < first and container.get("restartPolicy") != "Always"]
        for number, (name, text) in enumerate(sorted((container.get("resources", {}).get("requests") or {}).items()))
        if "/" in name and (count := Quantity.parse(str(text)).value)
    ]


def sources(pod: JSON, node: JSON, others: Iterable[JSON], by_classes: Container[str]) -> Sources:
    """Where the pod would get its resources on the node.

    `others` are the pods bound to the node that have not ended, `by_classes` what DeviceClasses serve.
    """
    plugins = _plugins(node)
    held = Counter[str]()
    for other in others:
        held.update(_totals(requests_of(other)))
    requests = requests_of(pod)
    totals = _totals(requests)
    claimed = (one for one in requests if one.resource not in plugins and one.resource in by_classes)
    lacking = sorted(
        name
        for name, count in totals.items()
        if (count > plugins[name] - held[name] if name in plugins else name not in by_classes)
    )
    others_hold = all(totals[name] <= plugins.get(name, 0) for name in lacking)
    return Sources(tuple(claimed), tuple(lacking), others_hold)


def _plugins(node: JSON) -> dict[str, int]:
    """What the node's device plugins offer in all."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    amounts = ((name, Quantity.parse(str(text)).value) for name, text in allocatable.items() if "/" in name)
    return {name: amount for name, amount in amounts if amount}


def special_claim(pod: JSON, claimed: Sequence[ExtendedRequest], classes: Iterable[DeviceClass]) -> ResourceClaim:
    """The claim for `claimed`, not yet created."""
    meta = pod["metadata"]
    name, namespace = meta["name"], meta["namespace"]
    metadata = ObjectMeta(
        namespace=namespace,
        generate_name=f"{name}-extended-resources-",
        annotations={ANNOTATION: "true"},
        owner_references=(OwnerReference("v1", "Pod", name, meta["uid"], controller=True),),
    )
    return claim_for(claimed, metadata, served(classes))


def is_special_claim(claim: JSON, pod: JSON) -> bool:
    """Whether the scheduler made the claim for the pod."""
    annotations = claim["metadata"].get("annotations") or {}
    return annotations.get(ANNOTATION) == "true" and controlled_by(claim) == pod["metadata"]["uid"]


def claim_status(pod: JSON, name: str, claim: ResourceClaim, claimed: Sequence[ExtendedRequest]) -> JSON:
    """`status.extendedResourceClaimStatus` of a pod whose special claim got `name`."""
    containers = _containers(pod)
    made = {request.name for request in claim.spec.requests}
    mappings = [
        {"containerName": containers[one.index]["name"], "resourceName": resource, "requestName": request}
        for resource in sorted({one.resource for one in claimed})
        for one, request in _mappings([one for one in claimed if one.resource == resource], made)
    ]
    return {"resourceClaimName": name, "requestMappings": mappings}


def _mappings(requests: Sequence[ExtendedRequest], made: set[str]) -> Iterator[tuple[ExtendedRequest, str]]:
    """Which requests of the claim serve each container, for one resource.

    Init containers use what later containers hold, and the claim has one request with what the greediest needs on top.
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


def _totals(requests: Iterable[ExtendedRequest]) -> dict[str, int]:
    """How much of each resource the pod holds when it holds most."""
    by_resource: dict[str, list[ExtendedRequest]] = {}
    for one in requests:
        by_resource.setdefault(one.resource, []).append(one)
    return {resource: _most(asked) for resource, asked in by_resource.items()}


def _most(requests: Sequence[ExtendedRequest]) -> int:
    lasting = [one for one in requests if not one.short_lived]
    starting = (
        one.count + sum(sidecar.count for sidecar in lasting if sidecar.index < one.index)
        for one in requests
        if one.short_lived
    )
    return max(sum(one.count for one in lasting), max(starting, default=0))


def _containers(pod: JSON) -> list[JSON]:
    return [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
