# SPDX-License-Identifier: Apache-2.0
"""Sizes for the cost estimate: ranges, arithmetic that stops at 64 bits, and how large a device can be.

Follows `checker/cost.go` of cel-go and the size estimator of k8s.io/dynamic-resource-allocation
`cel/compile.go`, whose limits are those of the resource.k8s.io API.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

UNBOUNDED: Final = (1 << 64) - 1
"""The largest cost or size there is; also the one that is not known."""


def add(*amounts: int) -> int:
    """The sum, at most UNBOUNDED."""
    return min(sum(amounts), UNBOUNDED)


def times(one: int, other: int) -> int:
    """The product, at most UNBOUNDED."""
    return min(one * other, UNBOUNDED)


def scaled(amount: int, factor: float) -> int:
    """The product with a factor, computed in floating point and rounded up, at most UNBOUNDED."""
    if amount > 0 and factor > 0 and float(amount) > float(UNBOUNDED) / factor:
        return UNBOUNDED
    return min(math.ceil(float(amount) * factor), UNBOUNDED)


@dataclass(frozen=True, slots=True)
class Size:
    """The least and the greatest number of code points, bytes, elements or entries."""

    low: int
    high: int

    def plus(self, other: "Size") -> "Size":
        """The size of both together."""
        return Size(add(self.low, other.low), add(self.high, other.high))

    def times(self, other: "Size") -> "Size":
        """The size of so many of the other."""
        return Size(times(self.low, other.low), times(self.high, other.high))

    def union(self, other: "Size") -> "Size":
        """The range that covers both."""
        return Size(min(self.low, other.low), max(self.high, other.high))

    def scaled(self, factor: float) -> int:
        """The cost of so much for each unit, at worst."""
        return scaled(self.high, factor)


UNKNOWN: Final = Size(0, UNBOUNDED)


def exactly(size: int) -> Size:
    """A size that is known."""
    return Size(size, size)


class Names:
    """How a value is reached from a variable: `device`, `attributes`, `@values`.

    Appending works as with slices in Go, which Kubernetes uses for this: while there is room, two paths
    that continue the same one share memory, and the later one changes the earlier. Estimates show it.
    """

    __slots__ = ("_array", "_length")

    def __init__(self, array: list[str], length: int) -> None:
        self._array = array
        self._length = length

    @staticmethod
    def of(*names: str) -> "Names":
        """A path of its own."""
        return Names(list(names), len(names))

    @property
    def names(self) -> Sequence[str]:
        """The path as it is now."""
        return self._array[: self._length]

    def followed_by(self, name: str) -> "Names":
        """The path continued, in place if there is room."""
        if self._length < len(self._array):
            self._array[self._length] = name
            return Names(self._array, self._length + 1)
        room = max(1, 2 * self._length)
        grown = [*self._array, name, *[""] * (room - self._length - 1)]
        return Names(grown, self._length + 1)

    def copied(self, name: str) -> "Names":
        """The path continued, in memory of its own."""
        return Names.of(*self.names, name)


@dataclass(frozen=True, slots=True, eq=False)
class _Declared:
    """How large something in a device can be, and what is in it."""

    size: int
    element: "_Declared | None" = None
    key: "_Declared | None" = None
    fields: Mapping[str, "_Declared"] = field(default_factory=dict)


_DOMAIN: Final = _Declared(63)
_IDENTIFIER: Final = _Declared(32)
_ATTRIBUTE: Final = _Declared(64)
_QUANTITY: Final = _Declared(0)
_ENTRIES: Final = 32
_DEVICE: Final = _Declared(
    0,
    fields={
        "driver": _Declared(63),
        "allowMultipleAllocations": _Declared(1),
        "attributes": _Declared(_ENTRIES, _Declared(_ENTRIES, _ATTRIBUTE, _IDENTIFIER), _DOMAIN),
        "capacity": _Declared(_ENTRIES, _Declared(_ENTRIES, _QUANTITY, _IDENTIFIER), _DOMAIN),
    },
)


def of_path(path: Names | None) -> Size | None:
    """The size of what is at a path, None if nothing is known about it."""
    names = path.names if path else ()
    if not names or names[0] != "device":
        return None
    current: _Declared | None = _DEVICE
    for name in names[1:]:
        assert current is not None
        match name:
            case "@items" | "@values":
                current = current.element
            case "@keys":
                current = current.key
            case _:
                # every name in the attributes of a domain is as large as any other
                current = current.fields.get(name) or (_ATTRIBUTE if current.element is _ATTRIBUTE else None)
        if current is None:
            return None
    assert current is not None
    return Size(0, current.size)
