# SPDX-License-Identifier: Apache-2.0
"""Sizes and costs in the worst case.

The cost of a call depends on the sizes of its operands. A size is a range of numbers, and arithmetic on sizes stops at
64 bits. The sizes of what a device contains are the limits of the resource.k8s.io API. Costs are upper bounds only,
because nothing depends on lower bounds. A library estimates the cost of a call from `Operand`s, and returns a
`CallEstimate`.

Follows cel-go's `checker/cost.go`, and the size estimator of k8s.io/dynamic-resource-allocation `cel/compile.go`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .tree import Expression, Literal
from .types import Type, TypeKind

UNBOUNDED: Final = (1 << 64) - 1
"""The largest cost or size. It also stands for an unknown one."""

TRAVERSAL: Final = 0.1
"""The cost of reading one code point, byte, element or entry."""
PATTERN: Final = 0.25
"""The cost of one code point of a regular expression, for each code point of the text."""

LIST_COST: Final = 10
"""The cost of a list literal, besides that of its elements."""
MAP_COST: Final = 30
"""The cost of a map literal, besides that of its entries."""
MESSAGE_COST: Final = 40
"""The cost of a message literal, besides that of its fields."""


# Sizes


def add(*amounts: int) -> int:
    """The sum, at most UNBOUNDED."""
    return min(sum(amounts), UNBOUNDED)


def times(left: int, right: int) -> int:
    """The product, at most UNBOUNDED."""
    return min(left * right, UNBOUNDED)


def scaled(amount: int, factor: float) -> int:
    """The product with a factor, computed in floating point and rounded up, at most UNBOUNDED."""
    if amount > 0 and factor > 0 and float(amount) > float(UNBOUNDED) / factor:
        return UNBOUNDED
    return min(math.ceil(float(amount) * factor), UNBOUNDED)


@dataclass(frozen=True, slots=True)
class Size:
    """The smallest and the largest number of code points, bytes, elements or entries."""

    low: int
    high: int

    def plus(self, other: "Size") -> "Size":
        """The size of both together."""
        return Size(add(self.low, other.low), add(self.high, other.high))

    def times(self, other: "Size") -> "Size":
        """The product of two sizes."""
        return Size(times(self.low, other.low), times(self.high, other.high))

    def union(self, other: "Size") -> "Size":
        """The range that includes both."""
        return Size(min(self.low, other.low), max(self.high, other.high))

    def scaled(self, factor: float) -> int:
        """The cost in the worst case if each unit costs `factor`."""
        return scaled(self.high, factor)


UNKNOWN: Final = Size(0, UNBOUNDED)


def exactly(size: int) -> Size:
    """A size that is known."""
    return Size(size, size)


# Operands


ValuePath = tuple[str, ...]
"""The path from a variable to a value, such as `device`, `attributes`, `@values`. Empty if it is unknown."""


def size_at(path: ValuePath) -> Size | None:
    """The size of the value at a path into the device, by the limits of the API. None if it is unknown."""
    match path:
        case ("device",):
            return Size(0, 0)
        case ("device", "allowMultipleAllocations"):
            return Size(0, 1)
        case ("device", "driver") | ("device", "attributes" | "capacity", "@keys"):
            return Size(0, 63)
        case ("device", "attributes" | "capacity") | ("device", "attributes" | "capacity", "@items" | "@values"):
            return Size(0, 32)
        case ("device", "attributes" | "capacity", "@items" | "@values", "@keys"):
            return Size(0, 32)
        case ("device", "attributes", "@items" | "@values", _):
            return Size(0, 64)
        case ("device", "capacity", "@items" | "@values", "@items" | "@values"):
            return Size(0, 0)  # a quantity
    return None


@dataclass(frozen=True, slots=True)
class Operand:
    """A target or argument of a call. `known` is its size if it is known."""

    node: Expression | None
    type: Type
    path: ValuePath
    known: Size | None

    @property
    def size(self) -> Size:
        """Its size, UNKNOWN if it is not known."""
        return self.known or UNKNOWN

    @property
    def element(self) -> "Operand | None":
        """The element of a list, None for other values."""
        if not self.type.parameters:
            return None
        path = (*self.path, "@items") if self.path else ()
        return Operand(None, self.type.parameters[0], path, size_at(path))

    def integer(self, default: int) -> int:
        """The value of an int literal (0 for negative ones), `default` for all other operands."""
        value = self.node.value if isinstance(self.node, Literal) else None
        return max(0, value) if isinstance(value, int) and value.__class__ is int else default


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """The cost of a call without its arguments, and the size of its result if it is known."""

    cost: int
    size: Size | None = None


EstimateCall = Callable[..., CallEstimate]
"""The cost of a call from its operands, the target first."""


def traversal(operand: Operand) -> int:
    """The cost of reading an operand completely."""
    return operand.size.scaled(TRAVERSAL)


def matching(text: Operand, pattern: Operand) -> int:
    """The cost of matching a regular expression."""
    return times(scaled(add(text.size.high, 1), TRAVERSAL), pattern.size.scaled(PATTERN))


def searching(target: Operand, *arguments: Operand) -> CallEstimate:
    """The estimate for visiting a string, or the elements of a list."""
    element = target.element
    if element is None:
        return CallEstimate(traversal(target))
    each = 1
    if element.type.kind in (TypeKind.STRING, TypeKind.BYTES):
        each = add(each, traversal(element))
    return CallEstimate(times(target.size.high, each))
