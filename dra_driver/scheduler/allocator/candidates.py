# SPDX-License-Identifier: Apache-2.0
"""The claims of a pod on one node as a search problem: for each request, the devices that may serve it.

The checks that do not depend on what the search picks are made here, in the order of Kubernetes' structured allocator.
A check returns a refusal, or None if the device passes. The search makes the others: devices picked before, counters,
capacity of shared devices, constraints. An invalid expression counts only when the search reaches the device. Which
taints keep a device from a request follows k8s.io/dynamic-resource-allocation/resourceclaim.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...errors import NodeSelectorError, UnrepresentableError
from ...kube.releases import has_rule
from ...kube.resource import (
    ALL,
    EXACT_COUNT,
    DerivedAttribute,
    Device,
    DeviceClass,
    DeviceConstraint,
    DeviceRequirements,
    DeviceTaint,
    DeviceToleration,
    ResourceClaim,
    TaintEffect,
    limits,
)
from ...kube.resource.claim import tolerates
from ..cel import CelError, CompileError, EvaluationError
from .capacity import CapacityRefusal, Share, amounts_for, as_published, shortage
from .constraints import Constraint, DistinctAttribute, Fact, MatchAttribute, fact_of, fact_of_value
from .counters import Charge, Counters
from .features import Features, Variant
from .nodes import is_at
from .observer import Check, DeviceRefusal, Recorder, Slot
from .option import BoundConstraint, Growing, Option
from .outcome import AllocationError, ErrorKind
from .pools import PoolState, PoolUsage, PoolView
from .selectors import Selectors, SelectorVerdicts, UnmetSelector, Verdict, compile_derived
from .survey import NodeView, Survey

_ADVICE: Final = (
    ". consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() "
    "for optional fields"
)
_BLOCKING = frozenset({TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE})


def blocking_taint(taints: Iterable[DeviceTaint], tolerations: Iterable[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that is not tolerated and has a blocking effect. Unknown effects and None do not block."""
    tolerations = tuple(tolerations)
    for taint in taints:
        if taint.effect in _BLOCKING and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


@dataclass(slots=True)
class Candidate:
    """A device for an option: its index in the NodeView and in the pool (`local`), and the selectors' verdict."""

    option: Option
    index: int
    pool: PoolView
    local: int
    verdict: Verdict
    usage: PoolUsage

    @property
    def device(self) -> Device:
        """The device itself."""
        return self.pool.devices[self.local]


class DeviceChecks:
    """The checks on one node."""

    def __init__(self, view: NodeView, features: Features) -> None:
        self._view = view
        self._features = features
        self._counts_shares = not features.defects.whole_beside_shares
        self._finds_by_domain = not has_rule(features.release, "capacities_by_literal_name")

    def in_use(self, candidate: Candidate) -> DeviceRefusal | None:
        """Refuses a device that another claim holds as a whole. Requests with admin access are never refused."""
        name, usage = candidate.device.name, candidate.usage
        is_whole = not candidate.device.allow_multiple_allocations
        is_taken = name in usage.whole or (is_whole and self._counts_shares and name in usage.shared)
        if candidate.option.requirements.admin_access or not is_taken:
            return None
        return DeviceRefusal(candidate.option.slot, candidate.index, Check.IN_USE, candidate.usage.holders(name))

    def selected(self, candidate: Candidate) -> DeviceRefusal | None:
        """Checks the selectors and the place of the device.

        Raises AllocationError if an expression or node selector is invalid.
        """
        option, index = candidate.option, candidate.index
        if candidate.device.binding_conditions and not self._features.binding:
            return DeviceRefusal(option.slot, index, Check.BINDING_CONDITIONS)
        if candidate.verdict is not None:
            if candidate.verdict.error is not None:
                raise _broken_expression(option, candidate.verdict, self._view.name(index), self._features)
            return DeviceRefusal(option.slot, index, Check.SELECTOR, candidate.verdict)
        try:
            here = is_at(candidate.pool.places.get(candidate.local, True), self._view.node)
        except NodeSelectorError as error:
            text = f"device {self._view.name(index)} has a node selector that cannot be used: {error}"
            raise AllocationError(ErrorKind.NODE_SELECTOR, text) from error
        return None if here else DeviceRefusal(option.slot, index, Check.NODE)

    def capacity(self, candidate: Candidate) -> DeviceRefusal | None:
        """Checks the requested capacity against what is in use, and records the share of a shared device.

        Raises AllocationError if the request cannot be rounded to the steps of the device.
        """
        if not self._features.consumable_capacity:
            return None
        option, device, requested = candidate.option, candidate.device, candidate.option.requirements.capacity_requests
        if not requested and candidate.pool.whole[candidate.local] and device.name not in candidate.usage.consumed:
            return None  # most devices of most requests
        if self._finds_by_domain:
            requested = as_published(requested, device.capacity, candidate.pool.key[0])
        try:
            amounts = amounts_for(device.capacity, requested, self._features.arithmetic)
        except UnrepresentableError as error:
            raise _unrepresentable(option, error, self._view.name(candidate.index)) from error
        lacking: CapacityRefusal | None
        if isinstance(amounts, CapacityRefusal):
            lacking, amounts = amounts, {}
        else:
            lacking = shortage(device.capacity, amounts, candidate.usage.consumed.get(device.name, {}))
        changes = option.growing is not None and not option.wants_all and requested.keys() <= device.capacity.keys()
        if lacking is not None and not changes:
            return DeviceRefusal(option.slot, candidate.index, Check.CAPACITY, lacking)
        if option.growing is not None:
            option.growing.capacities[candidate.index] = device.capacity
        if device.allow_multiple_allocations:
            option.shares[candidate.index] = Share(amounts, device.capacity)
        return None

    def gates(self, candidate: Candidate) -> DeviceRefusal | None:
        """Refuses devices with counters while the feature gate for partitionable devices is off."""
        if self._features.partitionable_devices or not candidate.device.consumes_counters:
            return None
        return DeviceRefusal(candidate.option.slot, candidate.index, Check.COUNTERS_GATE)

    def taints(self, candidate: Candidate) -> DeviceRefusal | None:
        """Refuses a device with a taint that the request does not tolerate."""
        if not candidate.device.taints or not self._features.device_taints:
            return None
        taint = blocking_taint(candidate.device.taints, candidate.option.requirements.tolerations)
        return None if taint is None else DeviceRefusal(candidate.option.slot, candidate.index, Check.TAINT, taint)


def _broken_expression(option: Option, unmet: UnmetSelector, device: str, features: Features) -> AllocationError:
    where = f"DeviceClass {option.device_class.metadata.name}" if unmet.of_class else f"request {option.slot.request}"
    assert unmet.error is not None
    if isinstance(unmet.error, CompileError):
        kind, what = ErrorKind.CEL_COMPILE, "does not compile"
    else:
        kind, what = ErrorKind.CEL_RUNTIME, f"fails on device {device}"
    owner = f"class {option.device_class.metadata.name}" if unmet.of_class else f"claim {option.claim.metadata}"
    place = f" on device {device}" if features.names_broken_devices and kind is ErrorKind.CEL_RUNTIME else ""
    return AllocationError(
        kind,
        f"claim {option.claim.metadata}: selector {unmet.index} of {where} {what}: {unmet.error}",
        reason=f"{owner}: selector #{unmet.index}{place}: {_as_kubernetes_says(unmet.error, features)}",
    )


def _unrepresentable(option: Option, error: UnrepresentableError, device: str) -> AllocationError:
    text = f"capacity request cannot be represented in the device's range arithmetic: {error}"
    return AllocationError(
        ErrorKind.CAPACITY,
        f"claim {option.claim.metadata}, request {option.slot.request}, device {device}: "
        f"capacity {error.capacity!r}: {text}",
        reason=f'{_asked(option.claim, option.slot)}: capacity "{error.capacity}": {text}',
    )


def _as_kubernetes_says(error: CelError, features: Features) -> str:
    """The text of kube-scheduler for the error. It does not name the device. From 1.37, it has a hint."""
    if isinstance(error, CompileError):
        return f"CEL compile error: {error.message}"
    hint = error.hint if isinstance(error, EvaluationError) else ""
    has_advice = features.names_broken_devices and error.kind == "no_such_key"
    return f"CEL runtime error: {error.message.removesuffix(hint)}{_ADVICE if has_advice else ''}"


def _underivable(
    option: Option, derived: DerivedAttribute, error: CelError, device: str, features: Features
) -> AllocationError:
    return AllocationError(
        ErrorKind.DERIVED_ATTRIBUTE,
        f"claim {option.claim.metadata}, request {option.slot.request}: derived attribute {derived.name} "
        f"cannot be computed for device {device}: {error}",
        reason=f"{_asked(option.claim, option.slot)}: derived attribute {derived.name} on device {device}: "
        f"{_as_kubernetes_says(error, features)}",
    )


class CandidateOptions:
    """Makes the options of claims on one node."""

    def __init__(
        self,
        view: NodeView,
        survey: Survey,
        classes: Mapping[str, DeviceClass],
        features: Features,
        verdicts: SelectorVerdicts,
        observer: Recorder | None,
    ) -> None:
        self._view = view
        self._survey = survey
        self._classes = classes
        self._features = features
        self._verdicts = verdicts
        self._observer = observer
        self._checks = DeviceChecks(view, features)
        self._grows = features.consumable_capacity and features.defects.decimal_requests_grow

    def of_claim(self, index: int, claim: ResourceClaim) -> list[list[Option]]:
        """The options of each request, in order. Raises AllocationError if the claim cannot be searched for."""
        requests: list[list[Option]] = []
        least = 0
        for request in claim.spec.requests:
            if request.first_available and not self._features.prioritized_list:
                raise _disabled(claim, request.name, "firstAvailable", "DRAPrioritizedList")
            named = [(f"{request.name}/{sub.name}", sub.requirements) for sub in request.first_available]
            if request.exactly is not None:
                named = [(request.name, request.exactly)]
            if not self._features.consumable_capacity and self._features.variant is not Variant.STABLE:
                for name, requirements in named:
                    if requirements.capacity_requests:
                        raise _disabled(claim, name, "capacity requests", "DRAConsumableCapacity")
            options = [self._option(claim, Slot(index, name), request.name, required) for name, required in named]
            least += min(option.count for option in options)
            requests.append(options)
        if least > limits.RESULTS_PER_CLAIM:
            raise AllocationError(
                ErrorKind.TOO_MANY_DEVICES,
                f"claim {claim.metadata} asks for {least} devices, more than the {limits.RESULTS_PER_CLAIM} "
                "that one claim can be given: ask for fewer, or split the claim",
                reason=f"claim {claim.metadata}: number of requested devices {least} exceeds the claim limit of "
                f"{limits.RESULTS_PER_CLAIM}",
            )
        self._constrain(claim, requests)
        return requests

    def _option(self, claim: ResourceClaim, slot: Slot, request: str, required: DeviceRequirements) -> Option:
        if required.admin_access and not self._features.admin_access:
            raise _disabled(claim, slot.request, "adminAccess", "DRAAdminAccess")
        device_class = self._classes.get(required.device_class_name)
        if device_class is None:
            raise AllocationError(
                ErrorKind.CLASS_NOT_FOUND,
                f"claim {claim.metadata}, request {slot.request}: "
                f"there is no DeviceClass {required.device_class_name!r}",
                reason=f"{_asked(claim, slot)}: could not retrieve device class {required.device_class_name}: "
                f'deviceclass.resource.k8s.io "{required.device_class_name}" not found',
            )
        option = Option(slot, claim, request, required, device_class)
        if self._grows and Growing.concerns(required.capacity_requests):
            option.growing = Growing(required.capacity_requests)
        if required.allocation_mode == EXACT_COUNT:
            option.count = required.count
            self._find_candidates(option)
        elif required.allocation_mode == ALL:
            self._find_all(option)
            option.count = len(option.devices)
        else:
            raise AllocationError(
                ErrorKind.UNSUPPORTED_MODE,
                f"claim {claim.metadata}, request {slot.request}: allocationMode {required.allocation_mode!r} "
                f"is not supported (use {EXACT_COUNT} or {ALL})",
                reason=f"{_asked(claim, slot)}: unsupported count mode {required.allocation_mode}",
            )
        if self._observer is not None:
            self._observer.wanted.append((slot, option.count, tuple(option.devices)))
        return option

    def _find_candidates(self, option: Option) -> None:
        # Most devices are not selected. An observer records later checks also for them.
        for candidate in self._candidates(option, only_selected=self._observer is None):
            try:
                refusal = self._refusal(candidate)
            except AllocationError as error:
                option.errors[candidate.index] = error
                refusal = None
            if refusal is None:
                option.devices.append(candidate.index)
            else:
                self._report(refusal)

    def _refusal(self, candidate: Candidate) -> DeviceRefusal | None:
        checks = self._checks
        refusal = (
            checks.in_use(candidate)
            or checks.selected(candidate)
            or checks.capacity(candidate)
            or checks.gates(candidate)
        )
        if refusal is None:
            refusal = checks.taints(candidate)
            if refusal is not None and (candidate.device.consumes_counters or candidate.option.growing is not None):
                candidate.option.tainted[candidate.index] = refusal
                return None
        return refusal

    def _find_all(self, option: Option) -> None:
        checks = self._checks
        for candidate in self._candidates(option):
            refusal = checks.selected(candidate) or checks.capacity(candidate)
            if refusal is not None:
                self._report(refusal)
                continue
            option.devices.append(candidate.index)
            unavailable = checks.in_use(candidate) or checks.gates(candidate)
            if unavailable is not None:
                option.unavailable[candidate.index] = unavailable
            tainted = checks.taints(candidate)
            if tainted is not None:
                option.tainted[candidate.index] = tainted

    def _candidates(self, option: Option, *, only_selected: bool = False) -> Iterator[Candidate]:
        """The devices that the node sees; with `only_selected`, without those of which a selector is false.

        Raises AllocationError for a request for All at an incomplete or invalid pool.
        """
        verdicts = self._verdicts.of(Selectors(option.device_class.selectors, option.requirements.selectors))
        first = 0
        for pool in self._view.pools:
            if pool.state is not PoolState.COMPLETE and option.wants_all:
                raise _unknown_devices(option, pool, fatal=self._features.defects.unknown_devices_fail_pods)
            usage = self._survey.usage(pool.key)
            for local, verdict in enumerate(verdicts.of_pool(pool)):
                if only_selected and verdict is not None and verdict.error is None:
                    continue
                yield Candidate(option, first + local, pool, local, verdict, usage)
            first += len(pool.devices)

    def _report(self, refusal: DeviceRefusal) -> None:
        if self._observer is not None:
            self._observer.refusals.append(refusal)

    def _constrain(self, claim: ResourceClaim, requests: list[list[Option]]) -> None:
        for index, wanted in enumerate(claim.spec.constraints):
            attribute, constraint = self._constraint(claim, index, wanted)
            facts: dict[int, Fact | None] = {}
            for option in (option for options in requests for option in options):
                if wanted.requests and not {option.request, option.slot.request} & set(wanted.requests):
                    continue
                derived = self._derived(option, attribute)
                if derived is not None:
                    option.constraints.append(self._derive(option, derived, BoundConstraint(index, constraint, {})))
                    continue
                for device in option.devices:
                    if device not in facts:
                        pool, published = self._view.device(device)
                        facts[device] = fact_of(
                            published, pool.driver, attribute, lists=self._features.list_constraints
                        )
                option.constraints.append(BoundConstraint(index, constraint, facts))

    def _derived(self, option: Option, attribute: str) -> DerivedAttribute | None:
        """The derived attribute of the request with this name. It hides a published attribute."""
        derived = option.requirements.derived_attributes if self._features.derived_attributes else ()
        return next((candidate for candidate in derived if candidate.name == attribute), None)

    def _derive(self, option: Option, derived: DerivedAttribute, bound: BoundConstraint) -> BoundConstraint:
        """The constraint with its facts about the derived attribute of each device."""
        facts: dict[int, Fact | None] = {}
        errors: dict[int, AllocationError] = {}
        for device in option.devices:
            pool, published = self._view.device(device)
            try:
                value = compile_derived(derived.expression, self._features).attribute(pool.driver, published)
                facts[device] = fact_of_value(value, lists=self._features.list_constraints)
            except CelError as error:
                facts[device] = None
                errors[device] = _underivable(option, derived, error, self._view.name(device), self._features)
        return replace(bound, facts=facts, errors=errors)

    def _constraint(self, claim: ResourceClaim, index: int, wanted: DeviceConstraint) -> tuple[str, Constraint]:
        defects, lists = self._features.defects, self._features.list_constraints
        if wanted.match_attribute is not None:
            return wanted.match_attribute, MatchAttribute(lists=lists, stays_narrow=defects.common_values_stay_narrow)
        if wanted.distinct_attribute is not None and self._features.variant is not Variant.STABLE:
            return wanted.distinct_attribute, DistinctAttribute(lists=lists, forgets=defects.distinct_forgets)
        raise AllocationError(
            ErrorKind.UNSUPPORTED_CONSTRAINT,
            f"claim {claim.metadata}, constraint {index} is not supported"
            + (": distinctAttribute takes DRAConsumableCapacity" if wanted.distinct_attribute is not None else ""),
            reason=f"claim {claim.metadata}, constraint #{index}: empty constraint (unsupported constraint type?)",
        )


def _disabled(claim: ResourceClaim, request: str, what: str, gate: str) -> AllocationError:
    return AllocationError(
        ErrorKind.FEATURE_DISABLED,
        f"claim {claim.metadata}, request {request} uses {what}, but feature gate {gate} is off",
    )


def _unknown_devices(option: Option, pool: PoolView, *, fatal: bool) -> AllocationError:
    incomplete = pool.state is PoolState.INCOMPLETE
    return AllocationError(
        ErrorKind.ALL_INCOMPLETE_POOL if incomplete else ErrorKind.ALL_INVALID_POOL,
        f"claim {option.claim.metadata}, request {option.slot.request} asks for all devices, "
        f"but pool {pool.driver}/{pool.name} is {pool.state.value}: {pool.reason}",
        reason=f"{_asked(option.claim, option.slot)}: asks for all devices, but resource pool {pool.driver}/{pool.name}"
        f" is currently {'being updated' if incomplete else 'invalid'}",
        fatal=fatal,
    )


def _asked(claim: ResourceClaim, slot: Slot) -> str:
    """The name of the request in errors of kube-scheduler."""
    return f"claim {claim.metadata}, request {slot.request.rpartition('/')[2]}"


@dataclass(slots=True)
class SearchProblem:
    """The input of `search`. A device is identified by its index in the NodeView."""

    claims: list[list[list[Option]]] = field(default_factory=list)
    """For each claim, a list of requests. Each request is a list of options."""
    charges: list[Charge | None] = field(default_factory=list)
    """The counters that each device takes."""
    adds_to_counters: bool = False
    """Whether a device takes a negative amount of a counter."""
    consumed: dict[int, Mapping[str, int]] = field(default_factory=dict)
    """Capacity in use, in billionths, of devices with shares."""
    sharing: set[int] = field(default_factory=set)
    """Devices of which a share is in use, so that their counters are taken already."""
    name: Callable[[int], str] = str
    """driver/pool/device of a device."""
    slices: list[tuple[int, Sequence[Device]]] = field(default_factory=list)
    """For each device, the first index and the devices of its slice. Empty without that defect of 1.34."""


def search_problem(
    view: NodeView, survey: Survey, options: list[list[list[Option]]], features: Features
) -> SearchProblem:
    """The search problem of all claims together, with these options for each request of each claim."""
    problem = SearchProblem(options, name=view.name)
    counters = Counters(features.defects.counters_by_pool_name, features.compatibility_groups)
    first = 0
    for pool in view.pools:
        if pool.state is not PoolState.COMPLETE:
            continue
        usage = survey.usage(pool.key)
        if features.partitionable_devices:
            problem.charges.extend(counters.charges(pool, usage))
            problem.adds_to_counters |= pool.adds_to_counters
        else:
            problem.charges.extend([None] * len(pool.devices))
        noticed = usage.consumed if features.defects.shares_without_capacity_unnoticed else usage.shared
        for index, device in enumerate(pool.devices, first):
            if device.name in usage.consumed:
                problem.consumed[index] = usage.consumed[device.name]
            if device.name in noticed:
                problem.sharing.add(index)
        if features.consumable_capacity and features.defects.capacity_of_another_device:
            start = first
            for slice_ in pool.slices:
                problem.slices.extend([(start, slice_.devices)] * len(slice_.devices))
                start += len(slice_.devices)
        first += len(pool.devices)
    return problem
