# SPDX-License-Identifier: Apache-2.0
"""The search: depth first, the first complete solution wins.

The search tries the devices in the order of Kubernetes' structured allocator. The state that a refused device leaves
behind affects later devices, so the search keeps the same state, including defects. The search uses its own stack, so
Python's recursion limit does not limit the size of claims.

Attempts that provably fail are skipped. No attempt is skipped if it could raise an error or change state that later
attempts read.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from ...kube.resource import limits
from .candidates import SearchProblem
from .capacity import CapacityRefusal, Share
from .constraints import MatchAttribute
from .counters import Charge
from .features import Features, Variant
from .observer import Check, Detail, DeviceRefusal, Recorder
from .option import BoundConstraint, Option
from .outcome import AllocationError, ErrorKind
from .shares import ConsumedShares

Failure = int
"""Why a branch has no solution: EXHAUSTED, or the index of the claim that would get too many devices."""

EXHAUSTED: Final = -1
_UNIT: Final = 1 << 40
"""What a device without counters costs."""


def lack_candidates(claims: list[list[list[Option]]]) -> bool:
    """Whether some request has too few devices that may serve it, whatever else is in use, and no search ends in an
    error. `claims` has the options for each request of each claim.
    """
    requests = [options for requests in claims for options in requests]
    return any(all(map(_has_too_few_candidates, options)) for options in requests) and not _may_fail(requests)


def cannot_succeed(problem: SearchProblem) -> bool:
    """Whether some request has too few devices even if no other request gets any, or all together have too little.

    Picks, and the state that refused devices leave behind, only reduce the number of available devices.
    """
    requests = [options for requests in problem.claims for options in requests]
    if _may_fail(requests) or not _only_reduces_counters(problem):
        return False
    alone = [charge is None or charge.fits_alone() for charge in problem.charges]
    if any(all(_lacks_devices(option, alone) for option in options) for options in requests):
        return True
    return len(requests) > 1 and _exceeds_total(requests, problem.charges, alone)


def _exceeds_total(requests: list[list[Option]], charges: list[Charge | None], alone: list[bool]) -> bool:
    """Whether the requests together cost more than all devices are worth, or ask for more devices than can be in use.

    A device without counters costs one unit. One with counters costs a part of a unit for each counter set: the mean of
    the parts that it takes of the rest of the counters, rounded down. The counters of a set are worth one unit.
    """
    usable = [[[device for device in option.devices if alone[device]] for option in options] for options in requests]
    costs = _Costs(charges)
    devices = {device for options in usable for candidates in options for device in candidates}
    cost = {device: costs.of(device) for device in devices}
    taken = {device: charges[device] for device in devices}
    apart = sum(charge is None or not charge.items for charge in taken.values())
    least_cost = least_number = 0
    for options, candidates in zip(requests, usable, strict=True):
        if any(_is_free(option) for option in options):
            continue
        least_number += min(option.count for option in options)
        least_cost += min(
            sum(sorted(cost[device] for device in there)[: option.count])
            for option, there in zip(options, candidates, strict=True)
        )
    most = apart + sum(_UNIT // cheapest if cheapest else len(devices) for cheapest in costs.sets.values())
    return least_cost > _UNIT * (apart + len(costs.sets)) or least_number > most


def _is_free(option: Option) -> bool:
    """Whether the option may get devices that others have, too, or all devices."""
    shares = bool(option.shares) or option.growing is not None
    return option.requirements.admin_access or option.wants_all or shares


class _Costs:
    """What devices cost. `sets` has the lowest cost of each counter set of the devices that were asked about."""

    def __init__(self, charges: list[Charge | None]) -> None:
        self._charges = charges
        self._ledgers: dict[int, tuple[list[str], Counter[str]]] = {}
        self.sets: dict[tuple[int, str], int] = {}

    def of(self, device: int) -> int:
        """The cost of a device that fits alone."""
        charge = self._charges[device]
        if charge is None:
            return _UNIT
        ledger = id(charge.ledger)
        if ledger not in self._ledgers:
            names = [counter_set for counter_set, _ in charge.ledger.index]
            self._ledgers[ledger] = (names, Counter(names))
        names, sizes = self._ledgers[ledger]
        left = charge.totals.vector
        total = 0
        for counter_set in dict.fromkeys(names[index] for index, _ in charge.items):
            parts = (
                _UNIT * amount // (left[index] * sizes[counter_set])
                for index, amount in charge.items
                if amount and names[index] == counter_set
            )
            cost = sum(parts)
            key = (ledger, counter_set)
            self.sets[key] = min(cost, self.sets.get(key, cost))
            total += cost
        return total


def _may_fail(requests: list[list[Option]]) -> bool:
    """Whether the search may end in an error."""
    every = [option for options in requests for option in options]
    if any(option.errors or (option.wants_all and option.constraints) for option in every):
        return True
    return _has_derived_errors(every)


def _has_derived_errors(options: list[Option]) -> bool:
    return any(bound.errors for option in options for bound in option.constraints)


def _has_too_few_candidates(option: Option) -> bool:
    return (option.wants_all and not option.devices) or len(option.devices) < option.count


def _lacks_devices(option: Option, alone: list[bool]) -> bool:
    if _has_too_few_candidates(option):
        return True
    serving = sum(
        (alone[device] or device in option.shares)
        and device not in option.tainted
        and device not in option.unavailable
        and all(bound.facts[device] is not None for bound in option.constraints)
        for device in option.devices
    )
    return serving < option.count


def equivalent_devices(problem: SearchProblem, features: Features) -> list[int] | None:
    """A number for each device. Devices with equal numbers are equivalent. None if this does not allow to skip any.

    If a device cannot complete a solution at one level of the search, an equivalent device cannot either: in a
    solution with the equivalent device, the two could be exchanged. This holds only if each condition also holds for
    each part of a solution, and if refused devices leave the state of the search unchanged.
    """
    options = _options(problem)
    if not _leaves_state_unchanged(problem, options, features):
        return None
    members = [(frozenset(option.devices), option) for option in options]
    numbers: dict[Hashable, int] = {}
    return [
        numbers.setdefault(tuple(_properties(device, problem, members)), len(numbers))
        for device in range(len(problem.charges))
    ]


def _leaves_state_unchanged(problem: SearchProblem, options: list[Option], features: Features) -> bool:
    if features.list_constraints or any(option.errors or option.tainted or option.shares for option in options):
        return False
    if _has_derived_errors(options):
        return False
    constraints = [bound.constraint for option in options for bound in option.constraints]
    if not all(isinstance(constraint, MatchAttribute) for constraint in constraints):
        return False
    if any(option.wants_all and option.constraints for option in options):
        return False
    keeps_counters = features.defects.refused_keep_counters and any(problem.charges)
    return not (constraints and keeps_counters) and _only_reduces_counters(problem)


def _properties(
    device: int, problem: SearchProblem, members: list[tuple[frozenset[int], Option]]
) -> Iterator[Hashable]:
    charge = problem.charges[device]
    yield None if charge is None else (id(charge.ledger), charge.items, charge.groups)
    for devices, option in members:
        yield device in devices, device in option.unavailable
        if device in devices:
            yield from (bound.facts[device] for bound in option.constraints)


def _options(problem: SearchProblem) -> list[Option]:
    return [option for requests in problem.claims for options in requests for option in options]


def _only_reduces_counters(problem: SearchProblem) -> bool:
    """Whether no device adds to a counter, and no pool uses the totals of another pool."""
    if problem.adds_to_counters:
        return False
    pools = {(id(charge.ledger), id(charge.totals)) for charge in problem.charges if charge is not None}
    return len(pools) == len({ledger for ledger, _ in pools})


@dataclass(frozen=True, slots=True)
class Pick:
    """A device that is picked for an option, or a share of the device."""

    option: Option
    device: int
    share: Share | None


@dataclass(frozen=True, slots=True)
class Solution:
    """The option that serves each request of each claim, and the picks of each claim in order."""

    options: list[list[Option]]
    picks: list[list[Pick]]


@dataclass(slots=True)
class _Alternatives:
    """A request with alternatives. Those before `next` have no solution."""

    claim: int
    request: int
    next: int = 0
    all_too_many: bool = True


@dataclass(slots=True)
class _Level:
    """A level of the search: device `number` of an option. `position` is the index of the next device to try."""

    claim: int
    request: int
    option: Option
    number: int
    position: int
    failed: set[tuple[int, int]] = field(default_factory=set)
    """Devices without a solution here: their number in `equivalent_devices`, and the claims that had picked them."""


class Search:
    """One search for one problem. Call `run` once."""

    def __init__(
        self, problem: SearchProblem, features: Features, observer: Recorder | None = None, limit: int | None = None
    ) -> None:
        """`limit` is the largest number of steps. A step picks a device or undoes a pick.

        An observer records every attempt. Without an observer, attempts that cannot change the answer are skipped.
        """
        self._cannot_succeed = observer is None and cannot_succeed(problem)
        self._claims = problem.claims
        self._charges = problem.charges
        self._shares = ConsumedShares(problem.consumed, features.defects)
        self._sharing = problem.sharing
        self._name = problem.name
        self._defects = features.defects
        self._slices = problem.slices
        self._problem = problem
        self._features = features
        self._permutes = features.variant is Variant.STABLE
        self._observer = observer
        self._picked = [0] * len(problem.charges)  # for each device, a bit for each claim that picked the whole device
        self._picks: list[list[Pick]] = [[] for _ in problem.claims]
        self._charged: list[bool] = []  # for each pick, whether it reserved counters
        self._stack: list[_Alternatives | _Level] = []
        self._complete = False
        self._limit = limit

    @cached_property
    def _equivalent(self) -> list[int] | None:
        """`equivalent_devices`, which only a search that goes back needs. None if an observer sees all attempts."""
        if self._observer is not None or self._slices:
            return None
        return equivalent_devices(self._problem, self._features)

    def run(self) -> Solution | None:
        """The first solution, or None if there is no solution. Raises AllocationError."""
        if self._cannot_succeed:
            return None
        failure = self._start_request(0, 0)
        steps = 0
        while not self._complete:
            steps += 1
            if steps == self._limit:
                raise AllocationError(ErrorKind.SEARCH_LIMIT, f"no answer was found in {steps} steps", fatal=False)
            if failure is not None:
                if not self._stack:
                    return None
                failure = self._backtrack(self._stack[-1], failure)
            else:
                level = self._stack[-1]
                assert isinstance(level, _Level)
                failure = self._next_device(level)
        return Solution(self._chosen(), self._picks)

    def _chosen(self) -> list[list[Option]]:
        chosen = {(top.claim, top.request): top.next - 1 for top in self._stack if isinstance(top, _Alternatives)}
        return [
            [options[chosen.get((claim, request), 0)] for request, options in enumerate(requests)]
            for claim, requests in enumerate(self._claims)
        ]

    def _start_request(self, claim: int, request: int) -> Failure | None:
        """Starts with a request, or with the next claim if this claim has no more requests."""
        while claim < len(self._claims) and request >= len(self._claims[claim]):
            claim, request = claim + 1, 0
        if claim == len(self._claims):
            self._complete = True
            return None
        options = self._claims[claim][request]
        if not options[0].is_alternative:
            return self._start_option(claim, request, options[0])
        alternatives = _Alternatives(claim, request)
        self._stack.append(alternatives)
        return self._next_alternative(alternatives)

    def _next_alternative(self, alternatives: _Alternatives) -> Failure | None:
        """Starts with the next alternative of the request."""
        options = self._claims[alternatives.claim][alternatives.request]
        while alternatives.next < len(options):
            option = options[alternatives.next]
            alternatives.next += 1
            failure = self._start_option(alternatives.claim, alternatives.request, option)
            if failure is None:
                return None
            alternatives.all_too_many &= failure == alternatives.claim
        self._stack.pop()
        return alternatives.claim if alternatives.all_too_many else EXHAUSTED

    def _start_option(self, claim: int, request: int, option: Option) -> Failure | None:
        """Starts with the first device of an option."""
        if option.wants_all and not option.devices:
            return EXHAUSTED
        if option.count <= 0:
            return self._start_request(claim, request + 1)
        if len(self._picks[claim]) + option.count > limits.RESULTS_PER_CLAIM:
            return claim
        self._stack.append(_Level(claim, request, option, 0, 0))
        return None

    def _next_device(self, level: _Level) -> Failure | None:
        """Picks the next available device for `level`, and starts with the next level."""
        if not self._pick(level):
            self._stack.pop()
            return EXHAUSTED
        option, number = level.option, level.number + 1
        if number == option.count:
            return self._start_request(level.claim, level.request + 1)
        position = 0 if self._permutes and not option.wants_all else level.position
        self._stack.append(_Level(level.claim, level.request, option, number, position))
        return None

    def _backtrack(self, top: _Alternatives | _Level, failure: Failure) -> Failure | None:
        """Continues with `top` after the later levels had no solution."""
        if isinstance(top, _Alternatives):
            top.all_too_many &= failure == top.claim
            return self._next_alternative(top)
        device = self._undo_pick(top)
        if self._equivalent is not None:
            top.failed.add((self._equivalent[device], self._picked[device]))
        if failure == top.claim or top.option.wants_all:
            self._stack.pop()
            return failure if failure == top.claim else EXHAUSTED
        return self._next_device(top)

    def _pick(self, level: _Level) -> bool:  # noqa: C901  # the search step of kube-scheduler, in its order
        option, picked = level.option, self._picked
        mask = 1 << level.claim if option.requirements.admin_access else -1
        devices = option.devices
        needs_room = not option.wants_all and (bool(option.shares) or option.growing is not None)
        if option.wants_all:
            end = level.number + 1
        elif self._observer is None and not self._permutes and option.leaves_state_unchanged:
            end = len(devices) - (option.count - level.number - 1)  # the later levels need devices too
        else:
            end = len(devices)
        for position in range(level.position, end):
            device = devices[position]
            if picked[device] & mask:
                if self._observer is not None:
                    self._refuse(option, device, Check.PICKED)
                continue
            if level.failed and self._is_equivalent_to_failed(device, level):
                continue
            if device in option.errors:
                raise option.errors[device]
            if device in option.unavailable:
                if self._observer is not None:
                    self._observer.refusals.append(option.unavailable[device])
                continue
            if needs_room and not self._has_room(option, device):
                continue
            if self._take(level, device):
                level.position = position + 1
                return True
        return False

    def _is_equivalent_to_failed(self, device: int, level: _Level) -> bool:
        return self._equivalent is not None and (self._equivalent[device], self._picked[device]) in level.failed

    def _take(self, level: _Level, device: int) -> bool:
        """Picks the device, or a share of it, if counters, taints, constraints and capacity allow it."""
        option = level.option
        is_shared = device in option.shares
        charge = self._charges[device]
        if is_shared and (device in self._sharing or device in self._shares):
            charge = None  # the first share reserved the counters
        if charge is not None and not charge.reserve():
            if self._observer is not None:
                self._refuse(option, device, Check.COUNTERS, tuple(charge.overdrawn()))
            return False
        keeps = charge is not None and self._defects.refused_keep_counters
        needs_room = is_shared or option.growing is not None
        if (
            not self._admits(option, device)
            or (needs_room and not self._has_room_left(option, device))
            or (self._slices and not self._another_has_room(option, device, level.number))
        ):
            if charge is not None and not keeps:
                charge.release()
            return False
        share = self._shares.add(option, device) if is_shared else None
        if share is None:
            self._picked[device] |= 1 << level.claim
        self._picks[level.claim].append(Pick(option, device, share))
        self._charged.append(charge is not None)
        if self._observer is not None:
            self._observer.picked.append((option.slot, device))
        return True

    def _admits(self, option: Option, device: int) -> bool:
        """Whether taints and constraints allow the device. If so, the device is added to the constraints."""
        if device in option.tainted:
            if self._observer is not None:
                self._refuse(option, device, Check.TAINT, option.tainted[device].detail)
            return False
        for bound in option.constraints:
            if device in bound.errors:
                raise bound.errors[device]
            fact = bound.facts[device]
            if fact is None or not bound.constraint.add(option.request, fact):
                if option.wants_all:
                    raise _unsatisfiable(option, bound, self._name(device))
                self._remove_from_constraints(option, bound)
                if self._observer is not None:
                    self._refuse(option, device, Check.CONSTRAINT, bound.index)
                return False
        return True

    def _undo_pick(self, level: _Level) -> int:
        pick = self._picks[level.claim].pop()
        charge = self._charges[pick.device] if self._charged.pop() else None
        self._remove_from_constraints(pick.option, None)
        if pick.share is None:
            self._picked[pick.device] &= ~(1 << level.claim)
        else:
            self._shares.remove(pick.option, pick.device, pick.share, first=charge is not None)
        if charge is not None and not (pick.share is not None and self._defects.undone_shares_keep_counters):
            charge.release()
        return pick.device

    def _remove_from_constraints(self, option: Option, until: BoundConstraint | None) -> None:
        """Removes a device from the constraints that it was added to: those before `until`, or all."""
        for bound in option.constraints:
            if bound is until:
                return
            bound.constraint.remove(option.request)

    def _has_room_left(self, option: Option, device: int) -> bool:
        """`_has_room` for a device that was added to the constraints. Removes it from them if there is no room."""
        if self._has_room(option, device):
            return True
        if not self._defects.refused_shares_stay_in_constraints:
            self._remove_from_constraints(option, None)
        return False

    def _another_has_room(self, option: Option, device: int, number: int) -> bool:
        """Whether the other device of the slice, which 1.34 checks by mistake, has room for the request."""
        first, devices = self._slices[device]
        if number >= len(devices) or self._shares.another_has_room(option, devices[number], first + number):
            return True
        if not self._defects.refused_shares_stay_in_constraints:
            self._remove_from_constraints(option, None)
        if self._observer is not None:
            detail = CapacityRefusal("of another device", f"{devices[number].name} of the same slice has no room")
            self._refuse(option, device, Check.CAPACITY, detail)
        return False

    def _has_room(self, option: Option, device: int) -> bool:
        lacking = self._shares.lacking(option, device)
        if lacking is not None and self._observer is not None:
            self._refuse(option, device, Check.CAPACITY, lacking)
        return lacking is None

    def _refuse(self, option: Option, device: int, check: Check, detail: Detail = None) -> None:
        assert self._observer is not None
        self._observer.refusals.append(DeviceRefusal(option.slot, device, check, detail))


def _unsatisfiable(option: Option, bound: BoundConstraint, device: str) -> AllocationError:
    return AllocationError(
        ErrorKind.ALL_CONSTRAINT,
        f"claim {option.claim.metadata}, request {option.slot.request} asks for all devices, "
        f"but not all of them can meet constraint {bound.index} of the claim",
        reason=f"claim {option.claim.metadata}, request {option.slot.request.rpartition('/')[2]}: cannot add device "
        f"{device} because a claim constraint would not be satisfied",
    )
