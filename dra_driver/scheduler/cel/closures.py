# SPDX-License-Identifier: Apache-2.0
"""Closures: what the parts of an expression become before it is evaluated.

Most functions are plain Python functions, and the last stage makes the closures of their calls. A function that does
not evaluate all operands, or that is faster if an operand is a constant, makes the closures of its calls itself. It
gets a `CallSite`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from .errors import Abort, ErrorValue

COST_LIMIT: Final = 1_000_000
"""The largest cost of an evaluation, and the largest estimate that kube-apiserver accepts."""

WRAP: Final = 1 << 64

Run = Callable[[Any], object]
"""Evaluates a part of an expression for a `CostCounter`, which is always an `evaluate.frame.Frame`. Returns a value,
which may be an ErrorValue. Raises Abort.
"""


class CostCounter:
    """The cost of one evaluation so far, and its limit."""

    limit = COST_LIMIT
    cost: int

    def charge(self, amount: int) -> None:
        """Add to the cost. Raises Abort if it exceeds the limit. A negative cost wraps around, as in Go."""
        self.cost += amount
        if self.cost < 0:
            self.cost += WRAP
        if self.cost > self.limit:
            raise Abort("cost_limit", f"the evaluation costs more than {self.limit}")

    def out_of_budget(self) -> NoReturn:
        """End an evaluation whose cost, which grew by single steps, exceeds the limit."""
        self.cost = self.limit + 1
        raise Abort("cost_limit", f"the evaluation costs more than {self.limit}")


class Evaluable:
    """A part of an expression that can be evaluated. `run` also adds its cost."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        """The function that evaluates the part."""
        return self._run


class Constant(Evaluable):
    """A constant, which costs nothing. It is an ErrorValue if a constant list is invalid."""

    def __init__(self, value: object) -> None:
        super().__init__(lambda _: value)
        self.value = value


@dataclass(slots=True)
class CallSite:
    """A call whose closure a library makes.

    `overloads` are the ids of the overloads that accept the types of the operands. `lazy_call` makes a closure that
    evaluates the operands up to the first error, and then calls the function.
    """

    overloads: tuple[str, ...]
    operands: Sequence[Evaluable]
    offset: int
    lazy_call: Callable[[], Run]


MakeCall = Callable[[CallSite], Evaluable | None]
"""Makes the closure of a call. None: it is made as for all functions. Raises ErrorValue if a constant cannot work."""


def located(error: ErrorValue, offset: int) -> ErrorValue:
    """The error with a place, and without the traceback from raising it."""
    if error.offset is None:
        error.offset = offset
    error.__traceback__ = error.__context__ = None
    return error
