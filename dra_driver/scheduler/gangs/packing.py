# SPDX-License-Identifier: Apache-2.0
"""Whether items fit into bins: the search behind a gang's assignment, without pods and nodes.

Items of one shape are interchangeable, and so are bins of one kind. A pattern is the number of items of each shape in
one bin. A part of a pattern that fits must fit, too: removing an item never makes a bin too small. The search looks
only at patterns to which no further item can be added, because moving an item from a later bin to an earlier one does
no harm. It remembers sets of items for which the remaining bins had no solution.

Weights prove that there is no solution: if the bins together cannot hold the weight of the items, whatever patterns
they get, nothing else has to be tried. Weights are increased for shapes of which too few fit.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

Pattern = tuple[int, ...]
"""The number of items of each shape."""
Holds = Callable[[Pattern], bool | None]
"""Whether a bin holds a pattern. None if that is not known."""

_ROUNDS: Final = 60
"""How often the weights are changed."""
_ONE: Final = 1 << 16
"""The weight of a value of one. Weights are whole numbers, so that a proof does not depend on rounding."""
_SCALE: Final = _ONE << 8
"""The largest weight."""
_MOST_REMEMBERED: Final = 500_000
_MOST_PATTERNS: Final = 4_000
"""The number of patterns of one kind of bin that are tried."""
_ALL_ORDERS: Final = 3
"""The most shapes of which all orders are tried for a sample of patterns."""
_FEW_STEPS: Final = 3000
"""The steps of the first search, with a sample of patterns."""
_COMPARED: Final = 80
"""The most patterns of which those that are part of another one are left out."""


@dataclass(frozen=True, slots=True)
class BinKind:
    """`count` equal bins."""

    count: int
    holds: Holds


@dataclass(frozen=True, slots=True)
class BinPacking:
    """The pattern of each bin that is used, by the index of its kind, or a proof that there is none (`reason`).

    Neither is set if the time was up: `bins` is None then, and `reason` is empty.
    """

    bins: tuple[tuple[int, Pattern], ...] | None = None
    reason: str = ""


class OutOfTimeError(Exception):
    """The time for the search is up."""


class Clock:
    """The end of the time for a search."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raises OutOfTimeError after the end."""
        if time.monotonic() > self._end:
            raise OutOfTimeError


def pack(kinds: Sequence[BinKind], demand: Pattern, values: Pattern, needed: int, clock: Clock) -> BinPacking:
    """Bins for items of a value of at least `needed`, or a proof that there are none.

    `demand` is the number of items of each shape that there are, and `values` the value of an item of each shape.
    """
    if needed <= 0:
        return BinPacking(())
    try:
        known = [_Patterns(kind.holds, demand, kind.count, clock) for kind in kinds]
        alone = _too_few_alone(known, demand, values, needed)
        if alone:
            return BinPacking(reason=alone)
        for each in known:
            each.sample()
        scarce = [_ONE * count // max(1, _most_alone(known, shape)) for shape, count in enumerate(demand)]
        bins = _Search(known, demand, values, needed, scarce, clock).run(_FEW_STEPS)
        if bins is not None:
            return BinPacking(tuple(bins))
        for each in known:
            each.enumerate()
        weights, is_proof = _weights(known, demand, values, needed, clock)
        if is_proof:
            return BinPacking(reason="the nodes together have too little for all pods, however these are distributed")
        bins = _Search(known, demand, values, needed, weights, clock).run()
    except OutOfTimeError:
        return BinPacking()
    if bins is not None:
        return BinPacking(tuple(bins))
    if all(each.is_exact for each in known):
        return BinPacking(reason="every distribution of the pods over the nodes was tried")
    return BinPacking()


class _Patterns:
    """The patterns that a kind of bin holds, within the demand."""

    def __init__(self, holds: Holds, demand: Pattern, count: int, clock: Clock) -> None:
        self._holds = holds
        self._demand = demand
        self._clock = clock
        self.count = count
        self.is_exact = True
        """Whether it is known of every pattern whether a bin holds it."""
        self.largest: list[Pattern] = []
        """The patterns that fit, without those that are part of another one."""
        self._too_large: list[Pattern] = []
        self._doubtful: list[Pattern] = []
        self._within: dict[Pattern, list[Pattern]] = {}
        self.alone = [self._alone(shape) for shape in range(len(demand))]
        """The most items of each shape that a bin holds without others, or might hold."""

    def _alone(self, shape: int) -> int:
        return self._more(tuple(0 for _ in self._demand), shape)

    def _more(self, pattern: Pattern, shape: int) -> int:
        """The most items of a shape, none of which is in the pattern, that fit besides it, or might fit."""
        fits, too_many, step = 0, self._demand[shape] + 1, 1
        while too_many - fits > 1:  # the steps grow: few bins hold many items
            tried = min(fits + step, too_many - 1)
            if self._possible(_with(pattern, shape, tried)):
                fits, step = tried, step * 2
            else:
                too_many, step = tried, max(1, (tried - fits) // 2)
        return fits

    def sample(self) -> None:
        """Finds some of the largest patterns: as many items as possible of one shape, then of the next one."""
        shapes = range(len(self._demand))
        orders = (
            permutations(shapes)
            if len(shapes) <= _ALL_ORDERS
            else ((*shapes[first:], *shapes[:first]) for first in shapes)
        )
        for order in orders:
            pattern = tuple(0 for _ in shapes)
            for shape in order:
                pattern = _with(pattern, shape, self._more(pattern, shape))

    def _possible(self, pattern: Pattern) -> bool:
        """Whether a bin holds the pattern, or might hold it."""
        if any(_is_within(large, pattern) for large in self._too_large):
            return False
        if any(_is_within(pattern, known) for known in self.largest) or pattern in self._doubtful:
            return True
        self._clock.check()
        answer = self._holds(pattern)
        if answer is None:
            self.is_exact = False
            self._doubtful.append(pattern)
        elif answer:
            self.largest = [known for known in self.largest if not _is_within(known, pattern)]
            self.largest.append(pattern)
        else:
            self._too_large.append(pattern)
        return answer is not False

    def enumerate(self) -> None:
        """Finds all patterns that fit."""
        self._within.clear()
        tried = 0
        start = tuple(0 for _ in self._demand)
        waiting = [(start, 0)]
        while waiting:
            pattern, shape = waiting.pop()
            for index in range(shape, len(pattern)):
                if pattern[index] >= self.alone[index]:
                    continue
                larger = _with(pattern, index, pattern[index] + 1)
                tried += 1
                if tried > _MOST_PATTERNS:
                    self.is_exact = False
                    self._doubtful.append(tuple(self.alone))
                    return
                if self._possible(larger):
                    waiting.append((larger, index))
        self.largest.sort(reverse=True)

    def bounds(self) -> list[Pattern]:
        """Patterns that contain every pattern that may fit."""
        return [*self.largest, *self._doubtful]

    def within(self, left: Pattern) -> list[Pattern]:
        """The largest patterns of the items that are left, and possibly parts of them."""
        left = tuple(map(min, left, self.alone))
        if left not in self._within:
            found = {tuple(map(min, pattern, left)) for pattern in self.largest}
            found.discard(tuple(0 for _ in left))
            if len(found) <= _COMPARED:
                found -= {
                    pattern
                    for pattern in found
                    if any(pattern != other and _is_within(pattern, other) for other in found)
                }
            self._within[left] = sorted(found)
        return self._within[left]


def _with(pattern: Pattern, shape: int, count: int) -> Pattern:
    """The pattern with another number of items of a shape."""
    return (*pattern[:shape], count, *pattern[shape + 1 :])


def _most_alone(known: Sequence[_Patterns], shape: int) -> int:
    """How many items of a shape fit into all bins without others."""
    return sum(each.count * each.alone[shape] for each in known)


def _is_within(part: Pattern, whole: Pattern) -> bool:
    return all(map(int.__le__, part, whole))


def _too_few_alone(known: Sequence[_Patterns], demand: Pattern, values: Pattern, needed: int) -> str:
    """A proof by the number of items of each shape that fit without items of other shapes."""
    fitting = [min(wanted, _most_alone(known, shape)) for shape, wanted in enumerate(demand)]
    if _weight(values, fitting) >= needed:
        return ""
    rows = zip(demand, fitting, values, strict=True)
    _, wanted, fits, value = max((wanted - fits, wanted, fits, value) for wanted, fits, value in rows)
    what = "equal pods" if value == 1 else "equal sets of pods that share claims"
    return f"of {wanted} {what}, only {fits} fit, even without the other pods of the group"


def _weights(
    known: Sequence[_Patterns], demand: Pattern, values: Pattern, needed: int, clock: Clock
) -> tuple[list[int], bool]:
    """Weights of the shapes, the largest for those of which least fit. Also whether they prove that nothing fits.

    If not all items are needed, an item whose weight is below its value may be left out for the difference.
    """
    bounds = [each.bounds() for each in known]
    is_whole = needed == _weight(values, demand)
    weights = whole = [_ONE * value for value in values]
    for _ in range(_ROUNDS):
        clock.check()
        packed = [0] * len(demand)
        held = 0
        for each, patterns in zip(known, bounds, strict=True):
            weight, pattern = max(((_weight(weights, pattern), pattern) for pattern in patterns), default=(0, ()))
            held += each.count * weight
            if pattern:
                packed = [total + each.count * number for total, number in zip(packed, pattern, strict=True)]
        if is_whole and held < _weight(weights, demand):
            return weights, True
        rest = _weight([max(0, most - weight) for most, weight in zip(whole, weights, strict=True)], demand)
        if not is_whole and held + rest < needed * _ONE:
            return weights, True
        weights = [
            min(_SCALE, max(1, int(weight * (1 + 0.5 * (wanted - got) / max(wanted, got, 1)))))
            for weight, wanted, got in zip(weights, demand, packed, strict=True)
        ]
    return weights, False


def _weight(weights: Sequence[int], pattern: Sequence[int]) -> int:
    return sum(map(int.__mul__, weights, pattern))


@dataclass(slots=True)
class _Frame:
    """A bin of the search: the items that are left for it, and the patterns to try."""

    left: Pattern
    patterns: Iterator[Pattern]
    pattern: Pattern = ()


class _Search:
    """Depth first over the bins, those of one kind one after the other. Uses its own stack: there are many bins."""

    def __init__(
        self,
        known: Sequence[_Patterns],
        demand: Pattern,
        values: Pattern,
        needed: int,
        weights: Sequence[int],
        clock: Clock,
    ) -> None:
        order = sorted(range(len(known)), key=lambda kind: (len(known[kind].largest), kind))
        self._bins = [kind for kind in order for _ in range(known[kind].count) if known[kind].largest]
        self._known = known
        self._demand = demand
        self._values = values
        self._spare = _weight(values, demand) - needed
        self._weights = weights
        self._clock = clock
        self._failed: set[tuple[int, Pattern]] = set()
        self._after = self._capacities()

    def _capacities(self) -> list[tuple[Pattern, int, int]]:
        """What the bins from each index on hold at most: of each shape, by weight, and by value."""
        total = (tuple(0 for _ in self._demand), 0, 0)
        found = [total]
        by_kind = [
            (
                tuple(each.alone),
                max((_weight(self._weights, pattern) for pattern in each.largest), default=0),
                max((_weight(self._values, pattern) for pattern in each.largest), default=0),
            )
            for each in self._known
        ]
        for kind in reversed(self._bins):
            shapes, weight, value = by_kind[kind]
            total = (tuple(map(int.__add__, total[0], shapes)), total[1] + weight, total[2] + value)
            found.append(total)
        return found[::-1]

    def run(self, most_steps: int = 0) -> list[tuple[int, Pattern]] | None:
        """The pattern of each bin that is used. None if there is no solution with patterns that are known to fit, or
        if none is found in `most_steps` (0: without a limit).
        """
        stack = [self._frame(0, self._demand)]
        steps = 0
        while stack:
            frame = stack[-1]
            if _weight(self._values, frame.left) <= self._spare:
                return [(self._bins[index], frame.pattern) for index, frame in enumerate(stack[:-1])]
            steps += 1
            if steps == most_steps:
                return None
            if steps % 256 == 0:
                self._clock.check()
            pattern = next(frame.patterns, None)
            if pattern is None:
                stack.pop()
                if len(self._failed) < _MOST_REMEMBERED:
                    self._failed.add((len(stack), frame.left))
                continue
            left = tuple(map(int.__sub__, frame.left, pattern))
            if (len(stack), left) in self._failed or not self._may_fit(len(stack), left):
                continue
            frame.pattern = pattern
            stack.append(self._frame(len(stack), left))
        return None

    def _frame(self, index: int, left: Pattern) -> _Frame:
        if index >= len(self._bins):
            return _Frame(left, iter(()))
        patterns = self._known[self._bins[index]].within(left) or [tuple(0 for _ in left)]
        heaviest = sorted(patterns, key=lambda pattern: (_weight(self._weights, pattern), pattern), reverse=True)
        return _Frame(left, iter(heaviest))

    def _may_fit(self, index: int, left: Pattern) -> bool:
        """Whether the bins from an index on may hold enough of the items that are left."""
        shapes, weight, value = self._after[index]
        missing = _weight(self._values, left) - self._spare
        if _weight(self._values, [*map(min, shapes, left)]) < missing or value < missing:
            return False
        return self._spare > 0 or weight >= _weight(self._weights, left)
