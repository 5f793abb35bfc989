# SPDX-License-Identifier: Apache-2.0
"""What a library declares: functions with their overloads, and macros.

An overload has an id (as in Kubernetes, the cost tables go by it), static types for the type checker,
an implementation, and its two costs. Follows cel-go's `common/decls`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .ast import Call, Node
from .operands import CallEstimate, Operand
from .types import Type, parameters_of

RuntimeCost = Callable[[Sequence[object], object], int]
"""Cost of a call from its arguments and its result, either of which may be a Fault. Raises Abort."""

EstimateCall = Callable[[Operand | None, Sequence[Operand]], CallEstimate | None]
"""Cost of a call from its target and arguments, None to fall back on the standard functions' rules."""

Implementation = Callable[..., object]


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

    `dispatch` is one implementation for all overloads, which looks at its arguments itself.
    """

    name: str
    overloads: tuple[Overload, ...]
    cost: RuntimeCost | None = None
    estimate: EstimateCall | None = None
    dispatch: Implementation | None = None

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
        )


Expand = Callable[[Call], Node | None]
"""Rewrites a call. None: this is not a use of the macro after all. Raises MacroError."""


@dataclass(frozen=True, slots=True)
class Macro:
    """A call that is rewritten before types are checked: a name, its number of arguments, with or without a target."""

    name: str
    arguments: int
    expand: Expand
    member: bool = True


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
        """What is available to expressions at a level (a minor version) in a release."""
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
