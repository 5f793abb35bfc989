# SPDX-License-Identifier: Apache-2.0
"""Fields that a server has stored and that are not evaluated here: which verdicts may depend on them.

The fields are those of a newer Kubernetes, or of alpha features (`unread` of the objects). A field of a slice concerns
the whole pool, because devices share counters, and a pool without one of its slices is not complete. A verdict does not
depend on pools of which it uses no device: the devices that it found stay a solution.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from ..kube.resource import (
    DeviceClass,
    DeviceRequirements,
    DeviceTaintRule,
    DeviceTaintSelector,
    Node,
    ResourceClaim,
    ResourceSlice,
)
from ..kube.resource.claim import CLASS_RESOURCE_PREFIX
from ..kube.resource.codec import Decoded
from ..scheduler.allocator import Features
from ..scheduler.allocator.selectors import compile_cel
from ..scheduler.allocator.taintrules import selects
from ..scheduler.cel import CelError
from .documents import Document, within
from .verdict import Verdict
from .workload import Demand, decode_document

UNREAD_ANNOTATION: Final = "dra-dryrun.gpu.nvidia.com/unread"
"""In a snapshot, the unread fields of an object, which are not in the snapshot. Blanks separate them."""
DEVICE_SELECTOR: Final = "spec.deviceSelector"

_Pool = tuple[str, str]
"""(driver, name of the pool)."""

_WITHOUT_EFFECT: Final = re.compile(
    r"metadata\b.*|spec\.partitionTypeAttribute|status\.allocation\.devices\.results\[\]\.skipNodeOperations"
    r"|status\.(?!allocation\b).*"
)
"""Fields that decide nothing: a name for reports (KEP 5677), and in results what kubelets do (KEP 5945)."""
_GROUPS: Final = "spec.devices[].consumesCounters[].compatibilityGroups"
_DERIVED: Final = "spec.devices.requests[].exactly.derivedAttributes"
_NODE_RESOURCES: Final = "spec.devices[].nodeAllocatableResources"
_EVALUATED: Final[Mapping[str, str]] = {
    _GROUPS: "DRADeviceCompatibilityGroups",
    _DERIVED: "DRADerivedAttributes",
    _NODE_RESOURCES: "DRANodeAllocatableResources",
}
"""Fields that are evaluated if it is known whether their gate is on, by the field."""
_GATES: Final[Mapping[str, re.Pattern[str]]] = {
    "DRANodeAllocatableResources": re.compile(r"spec\.devices\[\](\.basic)?\.nodeAllocatableResourceMappings"),
    "DRAOptionalNodeOperations": re.compile(r"spec\.skipNodeOperations"),
}
"""Fields that the scheduler ignores while a gate is off, by the gate."""


def decode_kept(document: Document) -> Decoded:
    """The object of a file with a cluster, with the unread fields that an annotation names. Raises InputError."""
    object_ = decode_document(document)
    written = within(document.value, "metadata", "annotations").get(UNREAD_ANNOTATION)
    if not isinstance(written, str) or isinstance(object_, Node):
        return object_
    return replace(object_, unread=(*object_.unread, *written.split()))


class UnreadFields:
    """The fields of `objects` that are not evaluated. `gates` are the feature gates whose value is known."""

    def __init__(self, objects: Sequence[Decoded], features: Features, gates: Mapping[str, bool]) -> None:
        self._features = features
        self._gates = gates
        self._slices = [object_ for object_ in objects if isinstance(object_, ResourceSlice)]
        self._classes = {object_.metadata.name: object_ for object_ in objects if isinstance(object_, DeviceClass)}
        self._pools: dict[_Pool, dict[str, None]] = defaultdict(dict)
        for object_ in objects:
            if isinstance(object_, ResourceSlice | ResourceClaim | DeviceTaintRule):
                for text, pool in self._of_pools(object_):
                    self._pools[pool][text] = None

    def about(self, verdict: Verdict, *, all_candidates: bool = False) -> tuple[str, ...]:
        """Why the verdict may be another one; empty if no field can change it. With `all_candidates`, each device that
        the demand selects counts. Otherwise, only the devices that it gets count.
        """
        demand = verdict.demand
        if verdict.state or verdict.rejects:
            return ()
        texts = [*self._of_claims(demand.claims), *self._of_classes(demand)]
        if self._pools:
            every = all_candidates or not verdict.fitting
            pools = self._candidates(demand) if every else self._used(verdict)
            texts += (text for pool in pools for text in self._pools.get(pool, ()))
        return tuple(dict.fromkeys(texts))

    def _matters(self, path: str) -> bool:
        if path in _EVALUATED:
            return _EVALUATED[path] not in self._gates
        ignored = (self._gates.get(gate) is False and pattern.fullmatch(path) for gate, pattern in _GATES.items())
        return not _WITHOUT_EFFECT.fullmatch(path) and not any(ignored)

    def _of_pools(self, object_: ResourceSlice | ResourceClaim | DeviceTaintRule) -> Iterator[tuple[str, _Pool]]:
        """The texts about a field, each with a pool that it concerns."""
        for path in filter(self._matters, _uncertain(object_)):
            text = f"the field {path} of {type(object_).__name__} {object_.metadata} is not evaluated"
            match object_:
                case ResourceSlice():
                    yield (
                        f"{text}: it may decide about the devices of pool {object_.pool.name}",
                        (object_.driver, object_.pool.name),
                    )
                case ResourceClaim() if object_.allocation is not None and path.startswith("status."):
                    for result in object_.allocation.results:
                        yield f"{text}: it may change what is left for others", (result.driver, result.pool)
                case DeviceTaintRule():
                    for each in self._slices:
                        if selects(object_.selector or DeviceTaintSelector(), each):
                            yield f"{text}: the rule may taint the device", (each.driver, each.pool.name)

    def _of_claims(self, claims: Iterable[ResourceClaim]) -> Iterator[str]:
        for claim in claims:
            for path in _uncertain(claim) if claim.allocation is None else ():
                if self._matters(path):
                    yield f"the field {path} of claim {claim.metadata} is not evaluated"

    def _of_classes(self, demand: Demand) -> Iterator[str]:
        names = {required.device_class_name for claim in demand.claims for _, required in claim.spec.requirements}
        resources = {request.resource for request in demand.extended}
        for name, class_ in self._classes.items():
            served = {class_.extended_resource_name, f"{CLASS_RESOURCE_PREFIX}{name}"} & resources
            for path in class_.unread if name in names or served else ():
                if self._matters(path):
                    yield f"the field {path} of DeviceClass {name} is not evaluated"

    def _used(self, verdict: Verdict) -> Iterator[_Pool]:
        """The pools of which the demand gets devices."""
        for placed in verdict.placed:
            pool = self._pool_of_device.get(id(placed.device))
            if pool is not None:
                yield pool

    @cached_property
    def _pool_of_device(self) -> Mapping[int, _Pool]:
        return {id(device): (slice_.driver, slice_.pool.name) for slice_ in self._slices for device in slice_.devices}

    def _candidates(self, demand: Demand) -> Iterator[_Pool]:
        """The pools with unread fields of which the demand selects a device. Extended resources may select any."""
        wanted = [required for claim in demand.claims for _, required in claim.spec.requirements]
        for slice_ in self._slices:
            pool = slice_.driver, slice_.pool.name
            if pool in self._pools and (demand.extended or any(self._selects(each, slice_) for each in wanted)):
                yield pool

    def _selects(self, required: DeviceRequirements, slice_: ResourceSlice) -> bool:
        device_class = self._classes.get(required.device_class_name)
        expressions = (*(device_class.selectors if device_class is not None else ()), *required.selectors)
        try:
            predicates = [compile_cel(expression, self._features) for expression in expressions]
            return any(all(each.matches(slice_.driver, device) for each in predicates) for device in slice_.devices)
        except CelError:
            return True


def _uncertain(object_: ResourceSlice | ResourceClaim | DeviceTaintRule) -> Iterator[str]:
    """The fields of an object that may not be evaluated: unread ones, and those whose effect may not be known.

    Nodes declare whether they can leave out calls, which is not evaluated.
    """
    yield from object_.unread
    if isinstance(object_, ResourceSlice):
        if object_.skip_node_operations:
            yield "spec.skipNodeOperations"
        if object_.has_compatibility_groups:
            yield _GROUPS
        if any(device.node_allocatable_resources for device in object_.devices):
            yield _NODE_RESOURCES
    elif isinstance(object_, ResourceClaim) and any(each.derived_attributes for _, each in object_.spec.requirements):
        yield _DERIVED
