# SPDX-License-Identifier: Apache-2.0
"""What libraries tell the cost of their calls with, before anything is evaluated: operands and their sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .ast import Literal, Node
from .sizes import UNKNOWN, Names, Size, add, of_path, scaled, times
from .types import Kind, Type

TRAVERSAL: Final = 0.1
"""Cost of looking at one code point, byte, element or entry."""
PATTERN: Final = 0.25
"""Cost of one code point of a regular expression, for each one it is matched against."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A target or argument of a call, as cost functions see it. `known` is its size, if anything tells it."""

    node: Node | None
    type: Type
    path: Names | None
    known: Size | None

    @property
    def size(self) -> Size:
        """Its size."""
        return self.known or UNKNOWN

    @property
    def element(self) -> "Operand | None":
        """A list's element, None of other values."""
        if not self.type.parameters:
            return None
        path = self.path.copied("@items") if self.path else None
        return Operand(None, self.type.parameters[0], path, of_path(path))

    def integer(self, default: int) -> int:
        """The value of an int literal (0 for negative ones), `default` for anything else."""
        value = self.node.value if isinstance(self.node, Literal) else None
        return max(0, value) if isinstance(value, int) and value.__class__ is int else default


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """The cost of a call beside its arguments, and the size of its result if that is known."""

    cost: int
    size: Size | None = None


def traversal(operand: Operand) -> int:
    """Looking at all of it."""
    return operand.size.scaled(TRAVERSAL)


def matching(text: Operand, pattern: Operand) -> int:
    """Matching a regular expression."""
    return times(scaled(add(text.size.high, 1), TRAVERSAL), pattern.size.scaled(PATTERN))


def searching(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate | None:
    """Visiting a list: one for each element, more for strings and bytes. Visiting a string: its size."""
    if target is None:
        return None
    element = target.element
    if element is None:
        return CallEstimate(traversal(target))
    each = 1
    if element.type.kind in (Kind.STRING, Kind.BYTES):
        each = add(each, traversal(element))
    return CallEstimate(times(target.size.high, each))
