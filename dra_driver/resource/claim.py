# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims, and what they refer to: DeviceClasses, and tolerations of device taints.

Which taints a toleration covers follows k8s.io/dynamic-resource-allocation/resourceclaim.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from .device import DeviceTaint, DeviceToleration
from .meta import NodeSelector, ObjectMeta, empty
from .quantity import Quantity


@dataclass(frozen=True, slots=True)
class OpaqueConfiguration:
    """Parameters for one driver, opaque to Kubernetes: a JSON object."""

    driver: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Selectors that every device of the class meets (CEL), and configuration that goes with it."""

    metadata: ObjectMeta
    selectors: tuple[str, ...] = ()
    config: tuple[OpaqueConfiguration, ...] = ()
    extended_resource_name: str = ""


EXACT_COUNT = "ExactCount"
ALL = "All"


@dataclass(frozen=True, slots=True)
class DeviceRequirements:
    """What a device must be, in an exact request and in each alternative of a prioritised one alike."""

    device_class_name: str
    selectors: tuple[str, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: int = 1  # 0 with ALL
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity_requests: Mapping[str, Quantity] = field(default_factory=empty)
    admin_access: bool = False  # exact requests only


@dataclass(frozen=True, slots=True)
class DeviceSubRequest:
    """One alternative of a prioritised list. Elsewhere it is named `<request>/<name>`."""

    name: str
    requirements: DeviceRequirements


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """`exactly`, or else the first of `first_available` that can be had."""

    name: str
    exactly: DeviceRequirements | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """Devices of the named requests (all, when none is named) must agree, or differ, in one attribute."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimConfiguration:
    """Configuration for the devices of the named requests (all, when none is named)."""

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
        """What every request asks for, by its name, and every alternative, by `<request>/<name>`."""
        for request in self.requests:
            if request.exactly is not None:
                yield request.name, request.exactly
            for one in request.first_available:
                yield f"{request.name}/{one.name}", one.requirements

    def with_requirements(self, change: Callable[[str, DeviceRequirements], DeviceRequirements]) -> "DeviceClaim":
        """The same with `change` applied to each of `requirements`."""
        requests = tuple(
            replace(
                request,
                exactly=change(request.name, request.exactly) if request.exactly is not None else None,
                first_available=tuple(
                    replace(one, requirements=change(f"{request.name}/{one.name}", one.requirements))
                    for one in request.first_available
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

    @property
    def base_request(self) -> str:
        """The request's name without the alternative that was chosen."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class AllocatedConfiguration:
    """Configuration as copied at allocation. `source` is FromClass or FromClaim; class entries come first."""

    source: str
    requests: tuple[str, ...]
    opaque: OpaqueConfiguration


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """What the scheduler allocated. `node_selector` None means usable on every node."""

    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[AllocatedConfiguration, ...] = ()
    node_selector: NodeSelector | None = None


@dataclass(frozen=True, slots=True)
class ConsumerReference:
    """Who may use the claim now, normally a pod (`resource` is its plural, lower case)."""

    resource: str
    name: str
    uid: str
    api_group: str = ""


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim. `allocation` is None while it is pending."""

    metadata: ObjectMeta
    spec: DeviceClaim
    allocation: AllocationResult | None = None
    reserved_for: tuple[ConsumerReference, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceClaimTemplate:
    """What each pod's own claim is made from."""

    metadata: ObjectMeta
    spec: DeviceClaim
    labels: Mapping[str, str] = field(default_factory=empty)
    annotations: Mapping[str, str] = field(default_factory=empty)


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether the toleration covers the taint. For how long does not matter to allocation."""
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
