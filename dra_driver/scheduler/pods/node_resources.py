# SPDX-License-Identifier: Apache-2.0
"""The resources that devices take of their node, such as cpu and memory (KEP 5517, the form of Kubernetes 1.37).

A device may be a part of a resource of its node (its mapping counts once for the claim), and its use may take
additional resources (overhead for each pod and each container). Follows 1.38.0-alpha, package
`pkg/scheduler/framework/plugins/dynamicresources`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...kube.resource import AllocatedDevice, Device, Quantity
from ...kube.resource.device import ResourceMapping
from .resources import add

Devices = Mapping[tuple[str, str, str], Device]
"""Devices that take resources, by driver, pool and name."""


class NodeResourcesError(Exception):
    """The resources that a device takes cannot be computed."""


@dataclass(frozen=True, slots=True)
class NodeResourceUse:
    """The resources that one claim takes of its node. `containers` is the number of containers that use the claim."""

    claim: str
    containers: int
    mapping: dict[str, Quantity] = field(default_factory=dict)
    per_pod: dict[str, Quantity] = field(default_factory=dict)
    per_container: dict[str, Quantity] = field(default_factory=dict)

    @property
    def total(self) -> dict[str, Quantity]:
        """The sum by resource."""
        total = dict(self.mapping)
        add(total, self.per_pod)
        add(total, {name: _times(one, self.containers) for name, one in self.per_container.items()})
        return total


def use_of(claim: str, containers: int, results: Iterable[AllocatedDevice], devices: Devices) -> NodeResourceUse | None:
    """The resources that the devices of a claim take, or None if they take none. Raises NodeResourcesError."""
    use = NodeResourceUse(claim, containers)
    for result in results:
        device = devices.get((result.driver, result.pool, result.device))
        for name, taken in device.node_allocatable_resources.items() if device is not None else ():
            if taken.mapping is not None:
                add(use.mapping, {name: _mapped(claim, taken.mapping, result)})
            if taken.overhead is not None:
                add(use.per_pod, {name: taken.overhead.per_pod or Quantity(0)})
                add(use.per_container, {name: taken.overhead.per_container or Quantity(0)})
    return use if use.mapping or use.per_pod else None


def _mapped(claim: str, mapping: ResourceMapping, result: AllocatedDevice) -> Quantity:
    if mapping.device_multiplier is not None:
        return mapping.device_multiplier
    if not result.consumed_capacity:
        raise NodeResourcesError(f"claim {claim}: device {result.device} consumes no capacity")
    consumed = result.consumed_capacity.get(mapping.capacity_key)
    if consumed is None or mapping.capacity_multiplier is None:
        return Quantity(0)
    product = consumed.nanos * mapping.capacity_multiplier.nanos
    return Quantity(-(-product // 10**9), consumed.format)


def _times(amount: Quantity, count: int) -> Quantity:
    return Quantity(amount.nanos * count, amount.format)
