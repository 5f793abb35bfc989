# SPDX-License-Identifier: Apache-2.0
"""Extended resources (`nvidia.com/gpu: 2`) that a DeviceClass serves, as the claim that the scheduler makes of them.

A class serves the resource that it names in extendedResourceName, and always
`deviceclass.resource.kubernetes.io/<its name>`. Of several classes the newest counts. Follows Kubernetes'
`pkg/scheduler/framework/plugins/dynamicresources/extended`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..resource import DeviceClaim, DeviceClass, DeviceRequest, DeviceRequirements, ObjectMeta, ResourceClaim

IMPLICIT_PREFIX: Final = "deviceclass.resource.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class ExtendedRequest:
    """`count` of a resource for the container `index` (init containers first).

    `request` is the name that the scheduler gives it in its claim. What a `short_lived` one (an init container that is
    no sidecar) gets, containers after it use again.
    """

    index: int
    request: str
    resource: str
    count: int
    short_lived: bool = False


def claim_for(
    requests: Iterable[ExtendedRequest], metadata: ObjectMeta, serving: Mapping[str, DeviceClass]
) -> ResourceClaim:
    """The claim that the scheduler makes for a pod, with requests in the order of their names, as text.

    `serving` is the class that serves each of the resources.
    """
    by_resource: dict[str, list[ExtendedRequest]] = {}
    for one in requests:
        by_resource.setdefault(one.resource, []).append(one)
    wanted = [
        DeviceRequest(name, exactly=DeviceRequirements(serving[resource].metadata.name, count=count))
        for resource in sorted(by_resource)
        for name, count in _device_requests(by_resource[resource])
    ]
    return ResourceClaim(metadata, DeviceClaim(requests=tuple(sorted(wanted, key=lambda request: request.name))))


def _device_requests(requests: Sequence[ExtendedRequest]) -> Iterator[tuple[str, int]]:
    """Names and counts for one resource: the most that any init container needs on top, then each other container."""
    lasting = [one for one in requests if not one.short_lived]
    passing = [
        (one.request, one.count - sum(later.count for later in lasting if later.index >= one.index))
        for one in requests
        if one.short_lived
    ]
    most = max(passing, key=lambda one: one[1], default=("", 0))
    if most[1] > 0:
        yield most
    yield from ((one.request, one.count) for one in lasting)


def served(classes: Iterable[DeviceClass]) -> dict[str, DeviceClass]:
    """The class that serves each resource: the newest, and of those equally old the first by name."""
    by_name = sorted(classes, key=lambda one: one.metadata.name, reverse=True)
    oldest_first = sorted(by_name, key=lambda one: one.metadata.creation_timestamp)
    implicit = {f"{IMPLICIT_PREFIX}{one.metadata.name}": one for one in oldest_first}
    return implicit | {one.extended_resource_name: one for one in oldest_first if one.extended_resource_name}
