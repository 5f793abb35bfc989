# SPDX-License-Identifier: Apache-2.0
"""Short ways to write clusters and claims in tests, and to read answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.kube.resource import (
    ALL,
    EXACT_COUNT,
    AllocatedDevice,
    AllocationResult,
    AttributeValue,
    ClaimConfiguration,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequirements,
    DeviceSubRequest,
    Node,
    ObjectMeta,
    OpaqueConfiguration,
    Quantity,
    RequestPolicy,
    ResourceClaim,
    ResourcePool,
    ResourceSlice,
)
from dra_driver.scheduler.allocator import Cluster, Features, NodeOutcome, allocate

DRIVER = "gpu.example.com"
NODE = Node(ObjectMeta(name="node-a", labels={"zone": "east", "rank": "7"}))
OTHER_NODE = Node(ObjectMeta(name="node-b", labels={"zone": "west"}))
ANY_CLASS = DeviceClass(ObjectMeta(name="any"))


def quantities(amounts: Mapping[str, str | int]) -> dict[str, Quantity]:
    return {name: Quantity.parse(str(amount)) for name, amount in amounts.items()}


def gpu(name: str, /, **fields: Any) -> Device:
    """A device; `capacity` maps to amounts or DeviceCapacity, `takes` is {counter set: {counter: amount}}."""
    attributes: Mapping[str, AttributeValue] = fields.pop("attributes", {})
    capacity = {
        key: value if isinstance(value, DeviceCapacity) else DeviceCapacity(Quantity.parse(str(value)))
        for key, value in fields.pop("capacity", {}).items()
    }
    takes = tuple(CounterConsumption(name, quantities(counters)) for name, counters in fields.pop("takes", {}).items())
    return Device(name, attributes, capacity, takes, **fields)


def shared(name: str, *, policy: RequestPolicy | None = None, memory: int = 10, **fields: Any) -> Device:
    """A device with `memory` that allows several allocations."""
    capacity = {"memory": DeviceCapacity(Quantity.of(memory), policy)}
    return gpu(name, capacity=capacity, allow_multiple_allocations=True, **fields)


Requests = dict[str, Any]
"""Keyword arguments of `claim`: names of requests and their requirements, or a list of alternatives."""


def slice_of(
    *devices: Device,
    name: str = "slice",
    pool: str = "pool",
    driver: str = DRIVER,
    count: int = 1,
    generation: int = 1,
    counters: Mapping[str, Mapping[str, str | int]] | None = None,
    **place: Any,
) -> ResourceSlice:
    """A slice of node-a, unless `place` says otherwise."""
    return ResourceSlice(
        ObjectMeta(name=name),
        driver,
        ResourcePool(pool, generation, count),
        devices=devices,
        shared_counters=tuple(CounterSet(key, quantities(value)) for key, value in (counters or {}).items()),
        **(place or {"node_name": NODE.name}),
    )


def wants(count: int = 1, *selectors: str, device_class: str = "any", **fields: Any) -> DeviceRequirements:
    return DeviceRequirements(device_class, selectors, EXACT_COUNT, count, **fields)


def wants_all(*selectors: str, **fields: Any) -> DeviceRequirements:
    return DeviceRequirements("any", selectors, ALL, 0, **fields)


def claim(
    *constraints: DeviceConstraint,
    name: str = "claim",
    config: Sequence[ClaimConfiguration] = (),
    **requests: DeviceRequirements | Sequence[DeviceRequirements],
) -> ResourceClaim:
    """A pending claim. A request with several requirements has them as alternatives named a, b, c, ..."""
    made = []
    for request, required in requests.items():
        if isinstance(required, DeviceRequirements):
            made.append(DeviceRequest(request, required))
        else:
            alternatives = tuple(map(DeviceSubRequest, "abcdefgh", required))
            made.append(DeviceRequest(request, None, alternatives))
    spec = DeviceClaim(tuple(made), constraints, tuple(config))
    return ResourceClaim(ObjectMeta(name=name, namespace="default"), spec)


def holding(*results: AllocatedDevice, name: str = "holder") -> ResourceClaim:
    """A claim that has been allocated."""
    return ResourceClaim(ObjectMeta(name=name, namespace="default"), DeviceClaim(), AllocationResult(results))


def held(device: str, *, pool: str = "pool", driver: str = DRIVER, **fields: Any) -> AllocatedDevice:
    consumed = quantities(fields.pop("consumed", {}))
    return AllocatedDevice("r", driver, pool, device, consumed_capacity=consumed, **fields)


def match(attribute: str, *requests: str) -> DeviceConstraint:
    return DeviceConstraint(requests, match_attribute=f"{DRIVER}/{attribute}")


def distinct(attribute: str, *requests: str) -> DeviceConstraint:
    return DeviceConstraint(requests, distinct_attribute=f"{DRIVER}/{attribute}")


def opaque(value: str) -> OpaqueConfiguration:
    return OpaqueConfiguration(DRIVER, {"value": value})


def cluster(*objects: object) -> Cluster:
    """A cluster of node-a and class `any`, unless others are given, and these objects."""
    every = list(objects)
    if not any(isinstance(item, Node) for item in every):
        every.append(NODE)
    if not any(isinstance(item, DeviceClass) for item in every):
        every.append(ANY_CLASS)
    return Cluster.of(every)


def ask(
    where: Cluster | ResourceSlice | Sequence[object], *claims: ResourceClaim, features: Features | None = None
) -> NodeOutcome:
    """The answer of node-a."""
    if not isinstance(where, Cluster):
        where = cluster(*([where] if isinstance(where, ResourceSlice) else where))
    return allocate(where, claims, NODE.name, features)


def picked(outcome: NodeOutcome) -> str:
    """`request=device ...` of every claim, claims separated by `|`; the error's kind; or `unavailable`."""
    if outcome.kind != "allocated":
        return str(outcome.error_kind or outcome.kind)
    return " | ".join(
        " ".join(f"{result.request}={result.device}" for result in allocation.results)
        for allocation in outcome.allocations
    )
