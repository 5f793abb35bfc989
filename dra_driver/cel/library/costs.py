# SPDX-License-Identifier: Apache-2.0
"""Runtime costs of calls: the functions that several libraries use.

Arguments and results may be Faults, which count as size 1. Follows cel-go's `interpreter/runtimecost.go`
and k8s.io/apiserver `pkg/cel/library/cost.go`.
"""

from collections.abc import Sequence

from ..check.declarations import TRAVERSAL, CallEstimate, Function, Implementation, Operand, function
from ..types import STRING, Type
from .values import MapValue, core_cost_size, cost_size, spend


def traversal(size: int) -> int:
    """A tenth of the size, rounded up: looking at everything once."""
    return (size + 9) // 10


def construction(size: int) -> int:
    """A fifth of the size, rounded up: looking at everything, and building the like."""
    return (size + 4) // 5


def read_first(arguments: Sequence[object], result: object) -> int:
    """The cost of reading the first argument."""
    return traversal(cost_size(arguments[0]))


def read_core(arguments: Sequence[object], result: object) -> int:
    """The cost of reading the first argument, with the sizes of the standard functions."""
    return traversal(core_cost_size(arguments[0]))


def rebuild_first(arguments: Sequence[object], result: object) -> int:
    """The cost of reading the first argument and building a value of the same size."""
    return construction(cost_size(arguments[0]))


def shorter(arguments: Sequence[object], result: object) -> int:
    """Comparing two values up to the end of the shorter one."""
    return traversal(min(core_cost_size(arguments[0]), core_cost_size(arguments[1])))


def both(arguments: Sequence[object], result: object) -> int:
    """Copying two values."""
    return traversal(core_cost_size(arguments[0]) + core_cost_size(arguments[1]))


def matching(text_size: int, pattern_size: int) -> int:
    """Matching a regular expression."""
    return traversal(text_size + 1) * ((pattern_size + 3) // 4)


def visited(arguments: Sequence[object], result: object) -> int:
    """Visiting everything in the first argument, however deep: strings by length, other things one each."""
    return _visits(arguments[0])


def _visits(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass")) // 10
    if isinstance(value, bytes):
        return len(value) // 10
    if isinstance(value, list):
        spend(len(value))
        return sum([_visits(item) for item in value])
    if isinstance(value, MapValue):
        spend(len(value))
        return sum([_visits(key) + _visits(item) for key, item in value.items()])
    return 1


def allocation(size: int, factor: float = 1.0) -> int:
    """Making a list."""
    return int(size * factor) + 11


def parse_estimate(text: Operand, *options: Operand) -> CallEstimate:
    """The estimate for parsing a text."""
    return CallEstimate(text.size.scaled(TRAVERSAL))


def parser(name: str, identifier: str, result: Type, call: Implementation) -> Function:
    """A function that parses a text."""
    return function(name, identifier, (STRING,), result, call, cost=read_first, estimate=parse_estimate)
