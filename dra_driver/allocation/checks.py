# SPDX-License-Identifier: Apache-2.0
"""The checks of a candidate device that do not depend on the devices that the search has picked; and device taints.

A check returns the refusal, or None if the device passes. Which taints keep a device from a request follows
k8s.io/dynamic-resource-allocation/resourceclaim.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..cel import CompileError
from ..resource import Device, DeviceTaint, DeviceToleration, TaintEffect
from ..resource.claim import tolerates
from .capacity import CapacityRefusal, Share, amounts_for, shortage
from .features import Features
from .nodes import NodeSelectorError, is_at
from .observer import Check, Refusal
from .option import Option
from .outcome import AllocationError, ErrorKind
from .pools import PoolView
from .selectors import Unmet, Verdict
from .survey import NodeView
from .usage import PoolUsage

_BLOCKING = frozenset({TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE})


def blocking_taint(taints: Iterable[DeviceTaint], tolerations: Iterable[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that is not tolerated and does block; effects that are unknown, and None, do not."""
    tolerations = tuple(tolerations)
    for taint in taints:
        if taint.effect in _BLOCKING and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


@dataclass(slots=True)
class Candidate:
    """A device for an option: `index` in the NodeView, `local` in its pool; what the selectors say of it."""

    option: Option
    index: int
    pool: PoolView
    local: int
    verdict: Verdict
    usage: PoolUsage

    @property
    def device(self) -> Device:
        return self.pool.devices[self.local]


class Checks:
    """The checks on one node."""

    def __init__(self, view: NodeView, features: Features) -> None:
        self._view = view
        self._features = features

    def in_use(self, candidate: Candidate) -> Refusal | None:
        """Another claim has the device as a whole. Does not matter to admin access."""
        name = candidate.device.name
        if candidate.option.requirements.admin_access or name not in candidate.usage.whole:
            return None
        return Refusal(candidate.option.slot, candidate.index, Check.IN_USE, candidate.usage.holders(name))

    def selected(self, candidate: Candidate) -> Refusal | None:
        """Selectors and place. AllocationError when an expression or a node selector is broken."""
        option, index = candidate.option, candidate.index
        if candidate.device.binding_conditions and not self._features.binding:
            return Refusal(option.slot, index, Check.BINDING_CONDITIONS)
        if candidate.verdict is not None:
            if candidate.verdict.error is not None:
                raise _broken_expression(option, candidate.verdict, self._view.name(index))
            return Refusal(option.slot, index, Check.SELECTOR, candidate.verdict)
        try:
            here = is_at(candidate.pool.places.get(candidate.local, True), self._view.node)
        except NodeSelectorError as error:
            text = f"device {self._view.name(index)} has a node selector that cannot be used: {error}"
            raise AllocationError(ErrorKind.NODE_SELECTOR, text) from error
        return None if here else Refusal(option.slot, index, Check.NODE)

    def capacity(self, candidate: Candidate) -> Refusal | None:
        """What is requested of the device's capacity, with what is in use. Notes the share of a shared device."""
        if not self._features.consumable_capacity:
            return None
        option, device, requested = candidate.option, candidate.device, candidate.option.requirements.capacity_requests
        amounts = amounts_for(device.capacity, requested)
        lacking: CapacityRefusal | None
        if isinstance(amounts, CapacityRefusal):
            lacking, amounts = amounts, {}
        else:
            lacking = shortage(device.capacity, amounts, candidate.usage.consumed.get(device.name, {}))
        changes = option.growing is not None and not option.wants_all and requested.keys() <= device.capacity.keys()
        if lacking is not None and not changes:
            return Refusal(option.slot, candidate.index, Check.CAPACITY, lacking)
        if option.growing is not None:
            option.growing.capacities[candidate.index] = device.capacity
        if device.allow_multiple_allocations:
            option.shares[candidate.index] = Share(amounts, device.capacity)
        return None

    def gates(self, candidate: Candidate) -> Refusal | None:
        """Devices with counters are only had while partitionable devices are on."""
        if self._features.partitionable_devices or not candidate.device.consumes_counters:
            return None
        return Refusal(candidate.option.slot, candidate.index, Check.COUNTERS_GATE)

    def taints(self, candidate: Candidate) -> Refusal | None:
        """A taint that the request does not tolerate."""
        if not candidate.device.taints or not self._features.device_taints:
            return None
        taint = blocking_taint(candidate.device.taints, candidate.option.requirements.tolerations)
        return None if taint is None else Refusal(candidate.option.slot, candidate.index, Check.TAINT, taint)


def _broken_expression(option: Option, unmet: Unmet, device: str) -> AllocationError:
    where = f"DeviceClass {option.device_class.metadata.name}" if unmet.of_class else f"request {option.slot.request}"
    assert unmet.error is not None
    if isinstance(unmet.error, CompileError):
        kind, what = ErrorKind.CEL_COMPILE, "does not compile"
    else:
        kind, what = ErrorKind.CEL_RUNTIME, f"fails on device {device}"
    owner = f"class {option.device_class.metadata.name}" if unmet.of_class else f"claim {option.claim.metadata}"
    step = "compile" if kind is ErrorKind.CEL_COMPILE else "runtime"
    return AllocationError(
        kind,
        f"claim {option.claim.metadata}: selector {unmet.index} of {where} {what}: {unmet.error}",
        reason=f"{owner}: selector #{unmet.index}: CEL {step} error: {unmet.error.message}",
    )
