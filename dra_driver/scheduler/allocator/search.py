# SPDX-License-Identifier: Apache-2.0
"""The search: depth first, the first complete solution wins.

Visits the candidates in the order of Kubernetes' structured allocator and keeps its state between
visits as that does, defects included, because what a refused candidate leaves behind decides about
later ones. It keeps a stack of its own, so that the size of a pod's claims does not meet Python's.

Attempts that provably fail are left out. Where an attempt in vain could end in an error, or leave something behind that
later attempts meet, nothing is left out.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ...kube.resource import limits
from .candidates import Problem
from .capacity import CapacityRefusal, Share
from .constraints import MatchAttribute
from .counters import Charge
from .features import Features, Variant
from .observer import Check, Detail, DeviceRefusal, Recorder
from .option import BoundConstraint, Option
from .outcome import AllocationError, ErrorKind
from .shares import ConsumedShares

Dead = int
"""Why a branch holds no solution: TRIED, or the index of the claim that it would give too many devices."""

TRIED: Final = -1


def is_hopeless(problem: Problem) -> bool:
    """Whether some request has too few devices even if nothing else were picked.

    What is picked, and what it leaves behind, only ever takes devices away.
    """
    options = _options(problem)
    if any(option.errors or (option.wants_all and option.constraints) for option in options):
        return False
    if _has_derived_errors(options):
        return False
    if not _only_takes(problem.charges):
        return False
    alone = [charge is None or charge.fits_alone() for charge in problem.charges]
    return any(
        all(_lacks_devices(option, alone) for option in options) for requests in problem.claims for options in requests
    )


def _has_derived_errors(options: list[Option]) -> bool:
    return any(bound.errors for option in options for bound in option.constraints)


def _lacks_devices(option: Option, alone: list[bool]) -> bool:
    if option.wants_all and not option.devices:
        return True
    serving = sum(
        (alone[device] or device in option.shares)
        and device not in option.tainted
        and device not in option.barred
        and all(bound.facts[device] is not None for bound in option.constraints)
        for device in option.devices
    )
    return serving < option.count


def twins(problem: Problem, features: Features) -> list[int] | None:
    """For each device a number that it shares with devices it can be exchanged with; None if that proves nothing.

    If a device led nowhere at some place, so does its twin there: exchange the two in a solution with the twin,
    and it is one with the device, which would have been found. That takes demands which every part of a
    solution meets, too, and a search that is left as it was.
    """
    options = _options(problem)
    if not _leaves_nothing(problem, options, features):
        return None
    members = [(frozenset(option.devices), option) for option in options]
    numbers: dict[Hashable, int] = {}
    return [
        numbers.setdefault(tuple(_traits(device, problem, members)), len(numbers))
        for device in range(len(problem.charges))
    ]


def _leaves_nothing(problem: Problem, options: list[Option], features: Features) -> bool:
    if features.list_constraints or any(option.errors or option.tainted or option.shares for option in options):
        return False
    if _has_derived_errors(options):
        return False
    constraints = [bound.constraint for option in options for bound in option.constraints]
    if not all(isinstance(constraint, MatchAttribute) for constraint in constraints):
        return False
    if any(option.wants_all and option.constraints for option in options):
        return False
    keeps_counters = features.quirks.refused_keep_counters and any(problem.charges)
    return not (constraints and keeps_counters) and _only_takes(problem.charges)


def _traits(device: int, problem: Problem, members: list[tuple[frozenset[int], Option]]) -> Iterator[Hashable]:
    charge = problem.charges[device]
    yield None if charge is None else (id(charge.ledger), charge.items, charge.groups)
    for devices, option in members:
        yield device in devices, device in option.barred
        if device in devices:
            yield from (bound.facts[device] for bound in option.constraints)


def _options(problem: Problem) -> list[Option]:
    return [option for requests in problem.claims for options in requests for option in options]


def _only_takes(charges: list[Charge | None]) -> bool:
    """Whether no device adds to a counter, and no pool's totals stand in for another's."""
    known = [charge for charge in charges if charge is not None]
    pools = {(id(charge.ledger), id(charge.totals)) for charge in known}
    return len(pools) == len({ledger for ledger, _ in pools}) and all(
        amount >= 0 for charge in known for _, amount in charge.items
    )


@dataclass(frozen=True, slots=True)
class Pick:
    """A device for an option, or a share of it."""

    option: Option
    device: int
    share: Share | None


@dataclass(frozen=True, slots=True)
class Solution:
    """For each claim the option that serves each request, and the picks in order."""

    options: list[list[Option]]
    picks: list[list[Pick]]


@dataclass(slots=True)
class _Choice:
    """A request with alternatives, of which those before `next` led nowhere."""

    claim: int
    request: int
    next: int = 0
    all_too_many: bool = True


@dataclass(slots=True)
class _Place:
    """The n-th device of an option: which was picked, and where among the option's devices to go on."""

    claim: int
    request: int
    option: Option
    number: int
    position: int
    failed: set[tuple[int, int]] = field(default_factory=set)
    """Kinds of twins that were tried in vain, and for which claims they were picked then."""


class Search:
    """One search for one problem: call `run` once."""

    def __init__(
        self, problem: Problem, features: Features, observer: Recorder | None = None, limit: int | None = None
    ) -> None:
        """`limit` is the number of steps (a device placed, or a placement taken back) after which to give up.

        An observer records every attempt. Without one, those that cannot change the answer are left out.
        """
        self._hopeless = observer is None and is_hopeless(problem)
        self._claims = problem.claims
        self._charges = problem.charges
        self._shares = ConsumedShares(problem.consumed, features.quirks)
        self._sharing = problem.sharing
        self._name = problem.name
        self._quirks = features.quirks
        self._slices = problem.slices
        self._twins = twins(problem, features) if observer is None and not self._slices else None
        self._permutes = features.variant is Variant.STABLE
        self._observer = observer
        self._picked = [0] * len(problem.charges)  # for each device a bit for each claim that has it as a whole
        self._picks: list[list[Pick]] = [[] for _ in problem.claims]
        self._charged: list[bool] = []  # for each pick whether it took counters
        self._stack: list[_Choice | _Place] = []
        self._complete = False
        self._limit = limit

    def run(self) -> Solution | None:
        """The first solution; None when there is none. AllocationError ends the search."""
        if self._hopeless:
            return None
        dead = self._enter(0, 0)
        steps = 0
        while not self._complete:
            steps += 1
            if steps == self._limit:
                raise AllocationError(ErrorKind.SEARCH_LIMIT, f"no answer was found in {steps} steps", fatal=False)
            if dead is not None:
                if not self._stack:
                    return None
                dead = self._retreat(self._stack[-1], dead)
            else:
                place = self._stack[-1]
                assert isinstance(place, _Place)
                dead = self._advance(place)
        return Solution(self._chosen(), self._picks)

    def _chosen(self) -> list[list[Option]]:
        choices = {(top.claim, top.request): top.next - 1 for top in self._stack if isinstance(top, _Choice)}
        return [
            [options[choices.get((claim, request), 0)] for request, options in enumerate(requests)]
            for claim, requests in enumerate(self._claims)
        ]

    def _enter(self, claim: int, request: int) -> Dead | None:
        """Turns to a request, or to the next claim when that was the last one."""
        while claim < len(self._claims) and request >= len(self._claims[claim]):
            claim, request = claim + 1, 0
        if claim == len(self._claims):
            self._complete = True
            return None
        options = self._claims[claim][request]
        if not options[0].is_alternative:
            return self._begin(claim, request, options[0])
        choice = _Choice(claim, request)
        self._stack.append(choice)
        return self._choose(choice)

    def _choose(self, choice: _Choice) -> Dead | None:
        """Turns to the next alternative."""
        options = self._claims[choice.claim][choice.request]
        while choice.next < len(options):
            option = options[choice.next]
            choice.next += 1
            dead = self._begin(choice.claim, choice.request, option)
            if dead is None:
                return None
            choice.all_too_many &= dead == choice.claim
        self._stack.pop()
        return choice.claim if choice.all_too_many else TRIED

    def _begin(self, claim: int, request: int, option: Option) -> Dead | None:
        """Turns to the first device of an option."""
        if option.wants_all and not option.devices:
            return TRIED
        if option.count <= 0:
            return self._enter(claim, request + 1)
        if len(self._picks[claim]) + option.count > limits.RESULTS_PER_CLAIM:
            return claim
        self._stack.append(_Place(claim, request, option, 0, 0))
        return None

    def _advance(self, place: _Place) -> Dead | None:
        """Picks the next device that can be had for `place` and turns to what comes after it."""
        if not self._pick(place):
            self._stack.pop()
            return TRIED
        option, number = place.option, place.number + 1
        if number == option.count:
            return self._enter(place.claim, place.request + 1)
        position = 0 if self._permutes and not option.wants_all else place.position
        self._stack.append(_Place(place.claim, place.request, option, number, position))
        return None

    def _retreat(self, top: _Choice | _Place, dead: Dead) -> Dead | None:
        """Goes on with `top` after what came after it led nowhere."""
        if isinstance(top, _Choice):
            top.all_too_many &= dead == top.claim
            return self._choose(top)
        device = self._undo(top)
        if self._twins is not None:
            top.failed.add((self._twins[device], self._picked[device]))
        if dead == top.claim or top.option.wants_all:
            self._stack.pop()
            return dead if dead == top.claim else TRIED
        return self._advance(top)

    def _pick(self, place: _Place) -> bool:
        option, picked = place.option, self._picked
        mask = 1 << place.claim if option.requirements.admin_access else -1
        devices = option.devices
        needs_room = not option.wants_all and (bool(option.shares) or option.growing is not None)
        if option.wants_all:
            end = place.number + 1
        elif self._observer is None and not self._permutes and option.leaves_nothing:
            end = len(devices) - (option.count - place.number - 1)  # enough have to be left for the places to come
        else:
            end = len(devices)
        for position in range(place.position, end):
            device = devices[position]
            if picked[device] & mask:
                if self._observer is not None:
                    self._refuse(option, device, Check.PICKED)
                continue
            if self._twins is not None and (self._twins[device], picked[device]) in place.failed:
                continue
            if device in option.errors:
                raise option.errors[device]
            if device in option.barred:
                if self._observer is not None:
                    self._observer.refusals.append(option.barred[device])
                continue
            if needs_room and not self._has_room(option, device):
                continue
            if self._take(place, device):
                place.position = position + 1
                return True
        return False

    def _take(self, place: _Place, device: int) -> bool:
        """Takes the device, or a share of it, for `place` if counters, taints, constraints and capacity allow it."""
        option = place.option
        is_shared = device in option.shares
        charge = self._charges[device]
        if is_shared and (device in self._sharing or device in self._shares):
            charge = None  # the first share took the counters
        if charge is not None and not charge.reserve():
            if self._observer is not None:
                self._refuse(option, device, Check.COUNTERS, tuple(charge.overdrawn()))
            return False
        keeps = charge is not None and self._quirks.refused_keep_counters
        needs_room = is_shared or option.growing is not None
        if (
            not self._admits(option, device)
            or (needs_room and not self._has_room_left(option, device))
            or (self._slices and not self._another_has_room(option, device, place.number))
        ):
            if charge is not None and not keeps:
                charge.release()
            return False
        share = self._shares.add(option, device) if is_shared else None
        if share is None:
            self._picked[device] |= 1 << place.claim
        self._picks[place.claim].append(Pick(option, device, share))
        self._charged.append(charge is not None)
        if self._observer is not None:
            self._observer.picked.append((option.slot, device))
        return True

    def _admits(self, option: Option, device: int) -> bool:
        """Whether taints and constraints allow it; then the constraints have counted the device in."""
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
                self._leave(option, bound)
                if self._observer is not None:
                    self._refuse(option, device, Check.CONSTRAINT, bound.index)
                return False
        return True

    def _undo(self, place: _Place) -> int:
        pick = self._picks[place.claim].pop()
        charge = self._charges[pick.device] if self._charged.pop() else None
        self._leave(pick.option, None)
        if pick.share is None:
            self._picked[pick.device] &= ~(1 << place.claim)
        else:
            self._shares.remove(pick.option, pick.device, pick.share, first=charge is not None)
        if charge is not None and not (pick.share is not None and self._quirks.undone_shares_keep_counters):
            charge.release()
        return pick.device

    def _leave(self, option: Option, until: BoundConstraint | None) -> None:
        """Removes a device from the constraints that counted it in: those before `until`, or all."""
        for bound in option.constraints:
            if bound is until:
                return
            bound.constraint.remove(option.request)

    def _has_room_left(self, option: Option, device: int) -> bool:
        """`_has_room` for a device that the constraints have counted in: All chose it before anything was picked."""
        if self._has_room(option, device):
            return True
        if not self._quirks.refused_shares_stay_in_constraints:
            self._leave(option, None)
        return False

    def _another_has_room(self, option: Option, device: int, number: int) -> bool:
        """Whether the device of the same slice that 1.34 looks at instead has room for the request."""
        first, devices = self._slices[device]
        if number >= len(devices) or self._shares.another_has_room(option, devices[number], first + number):
            return True
        if not self._quirks.refused_shares_stay_in_constraints:
            self._leave(option, None)
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
