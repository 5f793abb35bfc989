# SPDX-License-Identifier: Apache-2.0
"""Loops and bindings: what macros such as all(), map() and cel.bind() become.

Follows `evalFold` of cel-go's `interpreter/interpretable.go`. The accumulator is evaluated when it is
first read, so an unused binding costs nothing and cannot fail.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ..errors import Fault
from ..library.values import LiteralMap, MapValue, MutableList, type_name
from .calls import located
from .frame import Frame
from .paths import Run

_UNSET: Final = object()


@dataclass(frozen=True, slots=True)
class Loop:
    """The parts of a loop, and the slots of its variables. `second` is None with one variable."""

    offset: int
    range: Run
    condition: Run
    step: Run
    result: Run
    accumulator: int
    variable: int
    second: int | None


def accumulator(slot: int, initial: Run) -> Run:
    """Read the accumulator. An empty list or map becomes one that grows in place."""

    def read(frame: Frame) -> object:
        value = frame.slots[slot]
        if value is _UNSET:
            value = initial(frame)
            if isinstance(value, list) and not value:
                value = MutableList()
            elif isinstance(value, MapValue) and len(value) == 0:
                value = LiteralMap()
            frame.slots[slot] = value
        return value

    return read


def variable(slot: int) -> Run:
    """Read a loop variable."""
    return lambda frame: frame.slots[slot]


def run(loop: Loop) -> Run:
    """Evaluate the loop."""
    iterated, condition, step, result = loop.range, loop.condition, loop.step, loop.result
    accumulated, first, second = loop.accumulator, loop.variable, loop.second

    def evaluate(frame: Frame) -> object:
        source = iterated(frame)
        if source.__class__ is Fault:
            return source
        if not isinstance(source, list | MapValue):
            return located(_not_iterable(source), loop.offset)
        slots = frame.slots
        slots[accumulated] = _UNSET
        if second is None:
            for item in _items(source):
                slots[first] = item
                if condition(frame) is False:
                    break
                slots[accumulated] = step(frame)
        else:
            for slots[first], slots[second] in _pairs(source):
                if condition(frame) is False:
                    break
                slots[accumulated] = step(frame)
        value = result(frame)
        return list(value) if isinstance(value, MutableList) else value

    return evaluate


def _items(source: list[object] | MapValue) -> Iterator[object]:
    if isinstance(source, MapValue):
        return source.keys()
    return iter(list(source) if isinstance(source, MutableList) else source)  # the loop itself may make it grow


def _pairs(source: list[object] | MapValue) -> Iterable[tuple[object, object]]:
    return source.items() if isinstance(source, MapValue) else enumerate(_items(source))


def _not_iterable(source: object) -> Fault:
    return Fault("not_iterable", f"a {type_name(source)} cannot be looped over: only lists and maps can")
