# SPDX-License-Identifier: Apache-2.0
"""Declarations of a library: functions with their overloads, and macros.

An overload has an id (as in Kubernetes, the cost tables go by it), static types for the type checker, an
implementation, and two costs: at run time, and the estimate from the sizes of its operands before anything is
evaluated. Sizes are ranges with arithmetic that stops at 64 bits; how large a device can be is declared here, with
the limits of the resource.k8s.io API.

Follows cel-go's `common/decls` and `checker/cost.go`, and the size estimator of
k8s.io/dynamic-resource-allocation `cel/compile.go`."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..errors import Issue
from ..syntax.parser import Macro
from ..syntax.tree import Call, Literal, Node
from ..types import Type, TypeKind, parameters_of

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


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """How a value is reached from a variable: `device`, `attributes`, `@values`.

    Appending works as with slices in Go, which Kubernetes uses for this: while there is room, two paths
    that continue the same one share memory, and the later one changes the earlier. Estimates show it.
    """

    _array: list[str]
    _length: int

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
    """The cost of reading all of the operand."""
    return operand.size.scaled(TRAVERSAL)


def matching(text: Operand, pattern: Operand) -> int:
    """Matching a regular expression."""
    return times(scaled(add(text.size.high, 1), TRAVERSAL), pattern.size.scaled(PATTERN))


def searching(target: Operand, *arguments: Operand) -> CallEstimate:
    """Visiting a list: one for each element, more for strings and bytes. Visiting a string: its size."""
    element = target.element
    if element is None:
        return CallEstimate(traversal(target))
    each = 1
    if element.type.kind in (TypeKind.STRING, TypeKind.BYTES):
        each = add(each, traversal(element))
    return CallEstimate(times(target.size.high, each))


RuntimeCost = Callable[[Sequence[object], object], int]
"""Cost of a call from its arguments and its result, either of which may be a Fault. Raises Abort."""

EstimateCall = Callable[..., CallEstimate]
"""Cost of a call from its operands, the target first."""

Implementation = Callable[..., object]

CheckConstants = Callable[[Call], Iterator[Issue]]
"""Finds what is wrong with the literal arguments of a call whose types are right."""


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. For a member function, the first parameter is the target.

    `call` may raise Fault; it is None where the function's `dispatch` does the work of all overloads.
    `guarded`: arguments are checked against the parameter types when it runs. `lazy`: arguments after
    the first error are not evaluated. `since` is the release that brought it to new expressions.
    """

    id: str
    parameters: tuple[Type, ...]
    result: Type
    call: Implementation | None = None
    member: bool = False
    guarded: bool = True
    lazy: bool = False
    cost: RuntimeCost | None = None
    estimate: EstimateCall | None = None
    since: int = 0

    @property
    def type_parameters(self) -> frozenset[str]:
        """The names of the type parameters it is declared with."""
        return frozenset(name for part in (*self.parameters, self.result) for name in parameters_of(part))


@dataclass(frozen=True, slots=True)
class Function:
    """A name with its overloads. Costs given here hold for every overload that has none of its own.

    `dispatch` is one implementation for all overloads, which looks at its arguments itself. `constants` refuses calls
    whose literal arguments cannot work.
    """

    name: str
    overloads: tuple[Overload, ...]
    cost: RuntimeCost | None = None
    estimate: EstimateCall | None = None
    dispatch: Implementation | None = None
    constants: CheckConstants | None = None

    def overload(self, identifier: str) -> Overload:
        """The overload with an id."""
        return next(overload for overload in self.overloads if overload.id == identifier)

    def merged(self, other: "Function") -> "Function":
        """The function with another library's overloads of the same name added."""
        return replace(
            self,
            overloads=self.overloads + other.overloads,
            cost=self.cost or other.cost,
            estimate=self.estimate or other.estimate,
            constants=self.constants or other.constants,
        )


def function(
    name: str,
    identifier: str,
    parameters: tuple[Type, ...],
    result: Type,
    call: Implementation | None = None,
    *,
    constants: CheckConstants | None = None,
    **options: Any,
) -> Function:
    """A function with one overload; `options` are fields of Overload."""
    return Function(name, (Overload(identifier, parameters, result, call, **options),), constants=constants)


method = functools.partial(function, member=True)
"""A member function with one overload, whose first parameter is the target."""


def literal_argument(is_usable: Callable[[object], bool]) -> CheckConstants:
    """A check of the first argument that is not part of the target, where it is a literal."""

    def check(call: Call) -> Iterator[Issue]:
        argument = call.arguments[0]
        if isinstance(argument, Literal) and not is_usable(argument.value):
            yield Issue("invalid_literal", f"invalid {call.function} argument", argument.offset)

    return check


@dataclass(frozen=True, slots=True)
class Library:
    """Functions and macros that come together.

    `since` as in Overload; `release` if the binaries of older releases lack them altogether.
    """

    functions: tuple[Function, ...] = ()
    macros: tuple[Macro, ...] = ()
    since: int = 0
    release: int = 0


@dataclass(frozen=True, slots=True)
class Registry:
    """The functions and macros of one environment."""

    functions: Mapping[str, Function] = field(default_factory=dict)
    macros: Mapping[tuple[str, int, bool], Macro] = field(default_factory=dict)

    @staticmethod
    def of(libraries: Sequence[Library], level: int, release: int) -> "Registry":
        """The functions and macros that expressions can use at a level (a minor version) in a release."""
        functions: dict[str, Function] = {}
        macros: dict[tuple[str, int, bool], Macro] = {}
        for library in libraries:
            if library.since > level or library.release > release:
                continue
            for function in _available(library.functions, level):
                known = functions.get(function.name)
                functions[function.name] = known.merged(function) if known else function
            for macro in library.macros:
                macros[macro.name, macro.arguments, macro.member] = macro
        return Registry(functions, macros)


def _available(functions: Sequence[Function], level: int) -> Iterator[Function]:
    for function in functions:
        overloads = tuple(overload for overload in function.overloads if overload.since <= level)
        if overloads:
            yield replace(function, overloads=overloads)
