# SPDX-License-Identifier: Apache-2.0
"""What Kueue charges for the pods of a workload: their requests, and their devices by its mapping of DeviceClasses.

Follows `pkg/dra` of Kueue (commit ff69552, after 0.19) and its page on DRA. A device of a class without sources counts
as 1. With sources, each device is charged the largest amount of the counter or capacity among all devices of complete
pools that the source, the class and the request select, whether they are free or not.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...kube.resource import Device, DeviceRequirements, Quantity, ResourceClaim, ResourceSlice
from ...kube.resource.claim import EXACT_COUNT
from ...scheduler.allocator import Cluster, Features
from ...scheduler.allocator.capacity import CapacityRefusal, amounts_for
from ...scheduler.allocator.selectors import compile_cel
from ...scheduler.cel import CelError
from ...scheduler.pods import Pod
from ...scheduler.pods.objects import served
from ..queueverdict import QueueCharge
from ..workload import Demand
from .objects import CAPACITY_GATE, ChargeSource, ClassMapping, Kueue


class NotAdmittedError(Exception):
    """Kueue does not admit the workload, whatever its quota is. The text says why."""


@dataclass(frozen=True)
class Accountant:
    """Computes charges. `cluster` has the devices and the DeviceClasses."""

    kueue: Kueue
    cluster: Cluster
    features: Features

    def charges(self, pods: Iterable[tuple[Demand, Pod]]) -> list[QueueCharge]:
        """The charges for the pods of a workload, each resource and reason once. Raises NotAdmittedError."""
        found: dict[tuple[str, str], Quantity] = {}
        for demand, pod in pods:
            for charge in self._of_pod(demand, pod):
                key = charge.resource, charge.reason
                found[key] = found[key] + charge.amount if key in found else charge.amount
        return [QueueCharge(resource, amount, reason) for (resource, reason), amount in found.items()]

    def _of_pod(self, demand: Demand, pod: Pod) -> Iterator[QueueCharge]:
        serving = served(self.cluster.classes) if self.features.extended_resources else {}
        for name, amount in pod.requests.items():
            device_class = serving.get(name)
            is_named = device_class is not None and device_class.extended_resource_name == name
            mapping = self.kueue.mapping_of(device_class.metadata.name) if is_named and device_class else None
            if mapping is not None and mapping.sources:
                raise NotAdmittedError(
                    f"the mapping of the DeviceClass for the extended resource {name} has sources: use a"
                    " ResourceClaimTemplate"
                )
            if mapping is not None:
                yield QueueCharge(mapping.resource, amount, f"{name}, by the mapping of its class")
            else:
                yield QueueCharge(name, amount)
        yield QueueCharge("pods", Quantity.of(1))
        for claim in demand.claims:
            if claim.metadata.name not in demand.own_claims:
                raise NotAdmittedError(f"claim {claim.metadata} is used by its name: Kueue admits only templates")
            yield from self._of_claim(claim)

    def _of_claim(self, claim: ResourceClaim) -> Iterator[QueueCharge]:
        for request in claim.spec.requests:
            required = request.exactly
            if required is None:
                raise NotAdmittedError(f"request {request.name} has alternatives (firstAvailable)")
            if required.admin_access:
                continue
            if required.allocation_mode != EXACT_COUNT:
                raise NotAdmittedError(f"request {request.name} has the allocation mode {required.allocation_mode}")
            name = required.device_class_name
            mapping = self.kueue.mapping_of(name)
            if mapping is None:
                raise NotAdmittedError(f"DeviceClass {name} is not in deviceClassMappings of Kueue's configuration")
            yield from self._of_request(request.name, required, mapping)

    def _of_request(self, name: str, required: DeviceRequirements, mapping: ClassMapping) -> Iterator[QueueCharge]:
        count = required.count
        if not mapping.sources:
            yield QueueCharge(mapping.resource, Quantity.of(count), f"count of devices of {required.device_class_name}")
        for source in mapping.sources:
            if not source.is_counter and not self.kueue.gates.get(CAPACITY_GATE, False):
                raise NotAdmittedError(f"the mapping of {mapping.resource} has a capacity, which needs {CAPACITY_GATE}")
            devices = self._matching(source, required)
            if len(devices) < count:
                raise NotAdmittedError(
                    f"request {name}: {len(devices)} devices match the mapping of {mapping.resource}, and"
                    f" {count} are requested"
                )
            amount = _counter(source, devices) if source.is_counter else _capacity(source, devices, required)
            kind = "counter" if source.is_counter else "capacity"
            if amount is None:
                raise NotAdmittedError(f"request {name}: no device that matches has the {kind} {source.name}")
            most = f"the largest {kind} {source.name} of {len(devices)} devices that match"
            times = f"{count} x " if count > 1 else ""
            yield QueueCharge(
                mapping.resource, Quantity(amount.nanos * count, amount.format), f"{times}{amount}: {most}"
            )

    def _matching(self, source: ChargeSource, required: DeviceRequirements) -> list[Device]:
        """The devices of complete pools that the source, the class and the request select. Raises NotAdmittedError."""
        device_class = self.cluster.class_by_name.get(required.device_class_name)
        if device_class is None:
            raise NotAdmittedError(f"DeviceClass {required.device_class_name} does not exist")
        expressions = (source.selector, *device_class.selectors, *required.selectors)
        try:
            predicates = [compile_cel(expression, self.features) for expression in expressions]
            return [
                device
                for device in _devices(self.cluster.slices, source.driver)
                if all(predicate.matches(source.driver, device) for predicate in predicates)
            ]
        except CelError as error:
            raise NotAdmittedError(f"an expression fails: {error}") from None


def _devices(slices: Sequence[ResourceSlice], driver: str) -> Iterator[Device]:
    """The devices of a driver in complete pools. Only the newest generation of a pool counts."""
    pools: dict[str, list[ResourceSlice]] = {}
    for slice_ in slices:
        if slice_.driver == driver:
            pools.setdefault(slice_.pool.name, []).append(slice_)
    for members in pools.values():
        newest = max(slice_.pool.generation for slice_ in members)
        current = [slice_ for slice_ in members if slice_.pool.generation == newest]
        if len(current) == current[0].pool.resource_slice_count:
            yield from (device for slice_ in current for device in slice_.devices)


def _counter(source: ChargeSource, devices: Sequence[Device]) -> Quantity | None:
    """The largest amount of a counter that one of the devices consumes."""
    amounts = [
        consumption.counters[source.name]
        for device in devices
        for consumption in device.consumes_counters
        if source.name in consumption.counters
    ]
    return max(amounts, default=None)


def _capacity(source: ChargeSource, devices: Sequence[Device], required: DeviceRequirements) -> Quantity | None:
    """The largest amount of a capacity that the request takes of one of the devices, by their request policies. Raises
    NotAdmittedError if no policy allows it.
    """
    requested: Mapping[str, Quantity] = {
        name: amount for name, amount in required.capacity_requests.items() if name == source.name
    }
    having = [device for device in devices if source.name in device.capacity]
    found = []
    for device in having:
        amounts = amounts_for({source.name: device.capacity[source.name]}, requested)
        if not isinstance(amounts, CapacityRefusal):
            found.append(amounts[source.name])
    if having and not found:
        raise NotAdmittedError(f"no device that matches allows the requested amount of {source.name}")
    return max(found, default=None)
