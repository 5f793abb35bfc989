# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims and their templates, DeviceClasses, and allocations.

`unread` of an object are paths of fields that a server has stored and that are not known here.

`tolerates` follows k8s.io/dynamic-resource-allocation/resourceclaim.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from .device import DeviceTaint, DeviceToleration
from .meta import NodeSelector, ObjectMeta, empty
from .quantity import Quantity

EXTENDED_CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
"""The annotation, with the value `true`, of a claim that the scheduler made for the extended resources of a pod."""

CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
"""With the name of a DeviceClass, the extended resource that the class serves in addition to the one it names."""

EXACT_COUNT = "ExactCount"
ALL = "All"


@dataclass(frozen=True, slots=True)
class OpaqueConfiguration:
    """Parameters for one driver: a JSON object that Kubernetes does not read."""

    driver: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A class of devices. All of its `selectors` (CEL) must match a device. `config` applies to all of its devices."""

    metadata: ObjectMeta
    selectors: tuple[str, ...] = ()
    config: tuple[OpaqueConfiguration, ...] = ()
    extended_resource_name: str = ""
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DerivedAttribute:
    """An attribute that a CEL expression computes from each device, for the constraints of the claim."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class DeviceRequirements:
    """The requirements of an exact request, or of one alternative of a prioritized list."""

    device_class_name: str
    selectors: tuple[str, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: int = 1  # 0 with ALL
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity_requests: Mapping[str, Quantity] = field(default_factory=empty)
    admin_access: bool = False  # exact requests only
    derived_attributes: tuple[DerivedAttribute, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceSubRequest:
    """One alternative of a prioritized list. Other objects refer to it as `<request>/<name>`."""

    name: str
    requirements: DeviceRequirements


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request for `exactly` these devices, or for the first possible alternative of `first_available`."""

    name: str
    exactly: DeviceRequirements | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """The devices of the named requests must have the same value, or different values, of one attribute.

    Without names, the constraint applies to all requests.
    """

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimConfiguration:
    """Configuration for the devices of the named requests, or of all requests if none is named."""

    requests: tuple[str, ...]
    opaque: OpaqueConfiguration


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """The spec of a claim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[ClaimConfiguration, ...] = ()

    @property
    def requirements(self) -> Iterator[tuple[str, DeviceRequirements]]:
        """The requirements of each request by its name, and of each alternative by `<request>/<name>`."""
        for request in self.requests:
            if request.exactly is not None:
                yield request.name, request.exactly
            for alternative in request.first_available:
                yield f"{request.name}/{alternative.name}", alternative.requirements

    def with_requirements(self, change: Callable[[str, DeviceRequirements], DeviceRequirements]) -> "DeviceClaim":
        """A copy of the claim in which `change` has replaced each of the `requirements`."""
        requests = tuple(
            replace(
                request,
                exactly=change(request.name, request.exactly) if request.exactly is not None else None,
                first_available=tuple(
                    replace(
                        alternative, requirements=change(f"{request.name}/{alternative.name}", alternative.requirements)
                    )
                    for alternative in request.first_available
                ),
            )
            for request in self.requests
        )
        return replace(self, requests=requests)


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One entry of `status.allocation.devices.results`. `request` is `request` or `request/subrequest`."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = None
    consumed_capacity: Mapping[str, Quantity] = field(default_factory=empty)
    skip_node_operations: tuple[str, ...] = ()

    @property
    def base_request(self) -> str:
        """The name of the request without the alternative."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class AllocatedConfiguration:
    """Configuration that the scheduler copied. `source` is FromClass or FromClaim. Entries of classes come first."""

    source: str
    requests: tuple[str, ...]
    opaque: OpaqueConfiguration


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """The allocation of a claim. Without a `node_selector`, the devices can be used on every node."""

    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[AllocatedConfiguration, ...] = ()
    node_selector: NodeSelector | None = None


@dataclass(frozen=True, slots=True)
class ConsumerReference:
    """An object that may use the claim, normally a pod. `resource` is the lower case plural of its kind."""

    resource: str
    name: str
    uid: str
    api_group: str = ""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """An entry of `status.devices`, as a driver reports it. `conditions` are those that are true."""

    driver: str
    pool: str
    device: str
    conditions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim. `allocation` is None until devices are allocated."""

    metadata: ObjectMeta
    spec: DeviceClaim
    allocation: AllocationResult | None = None
    reserved_for: tuple[ConsumerReference, ...] = ()
    device_statuses: tuple[DeviceStatus, ...] = ()
    """None are read if no allocated device has binding conditions."""
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceClaimTemplate:
    """A template from which each pod gets a claim of its own."""

    metadata: ObjectMeta
    spec: DeviceClaim
    labels: Mapping[str, str] = field(default_factory=empty)
    annotations: Mapping[str, str] = field(default_factory=empty)
    unread: tuple[str, ...] = ()


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether a claim with this toleration tolerates the taint. `toleration_seconds` does not matter for allocation."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return toleration.value == taint.value
        case _:
            return False
