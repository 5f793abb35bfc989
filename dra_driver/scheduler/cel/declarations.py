# SPDX-License-Identifier: Apache-2.0
"""What an expression may use: the environment that Kubernetes gives it, and how a library declares its functions.

An overload is one signature of a function. It has the id that Kubernetes uses (cost tables refer to it), types for the
type checker, an implementation, and two costs: the cost of a call that was evaluated, and the estimate for the largest
operands, which is computed before anything is evaluated.

kube-apiserver compiles new and changed expressions with the functions of the previous release, so that an upgrade can
be undone. kube-scheduler compiles with all functions of the current release. kube-apiserver does so, too, for
expressions that are already stored.

Follows cel-go's `common/decls`, k8s.io/apiserver `pkg/cel/environment`, and k8s.io/dynamic-resource-allocation `cel`.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from ...kube.releases import NEWEST_RELEASED, RELEASES, RULES, is_supported, known_since, minor_of
from .closures import MakeCall
from .errors import CelIssue
from .parse.macros import Macro
from .sizes import EstimateCall
from .tree import Call, Literal
from .types import ANY, BOOL, DYN, QUANTITY, STRING, Type, map_of, parameters_of

NEWEST: Final = NEWEST_RELEASED

VARIABLE: Final = "device"
"""The only variable of an expression."""

_MULTIPLE_ALLOCATIONS: Final = known_since("DRAConsumableCapacity")
_LIST_ATTRIBUTES: Final = known_since("DRAListTypeAttributes")
_LISTS_WITHOUT_GATE: Final = minor_of(RULES["lists_need_gate_in_stored"].until[0])
CEL_GO_29: Final = minor_of(RULES["cel_go_before_29"].until[0])
"""The minor version of the first release that has cel-go 0.29. Releases from 1.33 on have 0.23 to 0.27."""

RuntimeCost = Callable[[Sequence[object], object], int]
"""The cost of a call from its arguments and its result. Each of them may be an ErrorValue. Raises Abort."""

Implementation = Callable[..., object]

CheckConstants = Callable[[Call], Iterator[CelIssue]]
"""Finds errors in the literal arguments of a call whose types are right."""

Row = tuple[str, tuple[Type, ...], Type] | tuple[str, tuple[Type, ...], Type, Implementation]
"""The id, the parameters, the result and the implementation of an overload."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Kubernetes release with its feature gates DRAConsumableCapacity and DRAListTypeAttributes.

    The defaults of the gates are those of 1.36 and later. `stored` selects the environment of kube-scheduler; False
    selects the environment in which kube-apiserver compiles new expressions.
    """

    kubernetes: str = NEWEST
    consumable_capacity: bool = True
    list_type_attributes: bool = False
    stored: bool = True

    def __post_init__(self) -> None:
        if not is_supported(self.kubernetes):
            raise ValueError(f"Kubernetes {self.kubernetes!r} is not supported (use {', '.join(RELEASES)})")

    @property
    def release(self) -> int:
        """The minor version."""
        return minor_of(self.kubernetes)

    @property
    def level(self) -> int:
        """The minor version whose functions are available."""
        return self.release if self.stored else self.release - 1

    @property
    def has_multiple_allocations(self) -> bool:
        """Whether the device has the field `allowMultipleAllocations`."""
        return self.release >= _MULTIPLE_ALLOCATIONS and (self.stored or self.consumable_capacity)

    @property
    def has_includes(self) -> bool:
        """Whether the function `includes()` is available. New expressions can use it without the gate from 1.38 on."""
        is_on = self.stored or self.list_type_attributes or self.level >= _LISTS_WITHOUT_GATE
        return self.release >= _LIST_ATTRIBUTES and is_on

    @property
    def has_quoted_names(self) -> bool:
        """Whether the name of a field may be written in backquotes."""
        return self.release >= CEL_GO_29

    @property
    def converts_optionals(self) -> bool:
        """Whether the value of a bound optional is converted to Go's native form and back."""
        return self.release < CEL_GO_29

    @property
    def reads_lists(self) -> bool:
        """Whether devices that have attributes with lists can be evaluated."""
        return self._has_list_gate or self.release >= _LISTS_WITHOUT_GATE

    @property
    def attribute_type(self) -> Type:
        """The type of an attribute: `dyn` if it may be a list, otherwise `any`."""
        has_lists = self._has_list_gate or (self.release >= _LISTS_WITHOUT_GATE and self.stored)
        return DYN if has_lists else ANY

    @property
    def _has_list_gate(self) -> bool:
        return self.release >= _LIST_ATTRIBUTES and self.list_type_attributes

    @property
    def result_types(self) -> tuple[Type, ...]:
        """The types besides bool that an expression may have.

        They include the type of an attribute, which can be a bool.
        """
        if self.release >= _LISTS_WITHOUT_GATE or self.attribute_type is ANY:
            return (self.attribute_type,)
        return (ANY, DYN)

    @property
    def device_fields(self) -> Mapping[str, Type]:
        """The fields of the variable `device`."""
        fields = {
            "driver": STRING,
            "attributes": map_of(STRING, map_of(STRING, self.attribute_type)),
            "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
        }
        return fields | {"allowMultipleAllocations": BOOL} if self.has_multiple_allocations else fields


@dataclass(frozen=True, slots=True)
class Cost:
    """What calls of a function cost. A call costs one where `actual` or `estimate` is None.

    `actual` is the cost of a call that was evaluated, `estimate` is the cost in the worst case.
    """

    actual: RuntimeCost | None = None
    estimate: EstimateCall | None = None


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. The first parameter of a member function is the target.

    `call` may raise ErrorValue. It is None if the function has `dispatch` or `make`, or is part of the language.
    `lazy`: arguments after the first error are not evaluated. `since` is the release that made the overload available
    to new expressions.
    """

    id: str
    parameters: tuple[Type, ...]
    result: Type
    call: Implementation | None = None
    _: KW_ONLY
    member: bool = False
    lazy: bool = False
    cost: Cost | None = None
    since: int = 0
    type_parameters: tuple[str, ...] = field(init=False, compare=False)
    """The names of its type parameters, sorted."""

    def __post_init__(self) -> None:
        names = {name for part in (*self.parameters, self.result) for name in parameters_of(part)}
        object.__setattr__(self, "type_parameters", tuple(sorted(names)))


@dataclass(frozen=True, slots=True)
class Function:
    """A name with its overloads. `cost` applies to overloads that have none.

    `dispatch` is one implementation for all overloads, which checks its arguments itself. `make` makes the closures of
    calls if the function does not evaluate all operands, or is faster with constants. `folds`: a call with a constant
    is evaluated once, before all evaluations. `constants` finds calls whose literal arguments cannot work.
    """

    name: str
    overloads: tuple[Overload, ...]
    cost: Cost | None = None
    dispatch: Implementation | None = None
    constants: CheckConstants | None = None
    make: MakeCall | None = None
    folds: bool = False

    def overload(self, identifier: str) -> Overload:
        """The overload with this id."""
        return next(overload for overload in self.overloads if overload.id == identifier)

    def cost_of(self, overload: Overload | None) -> Cost:
        """The cost of an overload, or of the function if the overload is None or has no cost of its own."""
        return (overload and overload.cost) or self.cost or _ONE

    def merged(self, other: "Function") -> "Function":
        """The function with the overloads that another library has for the same name."""
        return replace(
            self,
            overloads=self.overloads + other.overloads,
            cost=self.cost or other.cost,
            constants=self.constants or other.constants,
            make=self.make or other.make,
            folds=self.folds or other.folds,
        )


_ONE: Final = Cost()


def function(  # noqa: PLR0913  # the properties of a function, by keyword
    name: str,
    *rows: Row | Overload,
    member: bool = False,
    lazy: bool = False,
    cost: Cost | None = None,
    dispatch: Implementation | None = None,
    constants: CheckConstants | None = None,
    make: MakeCall | None = None,
) -> Function:
    """A function with one overload for each row. `member` and `lazy` are those of the rows."""
    overloads = tuple(row if isinstance(row, Overload) else Overload(*row, member=member, lazy=lazy) for row in rows)
    return Function(name, overloads, cost, dispatch, constants, make)


method = functools.partial(function, member=True)
"""A member function. The first parameter of each row is the target."""


def literal_argument(is_usable: Callable[[object], bool]) -> CheckConstants:
    """A check of the first argument (not the target) where it is a literal."""

    def check(call: Call) -> Iterator[CelIssue]:
        argument = call.arguments[0]
        if isinstance(argument, Literal) and not is_usable(argument.value):
            yield CelIssue("invalid_literal", f"invalid {call.function} argument", argument.offset)

    return check


class CelLibrary:
    """Functions and macros that belong together.

    `since` as in Overload. `release` is the first release whose binaries have the library, and `until` the first one
    whose binaries do not have it any more.
    """

    def __init__(
        self,
        *functions: Function,
        macros: Sequence[Macro] = (),
        since: int = 0,
        release: int = 0,
        until: int = sys.maxsize,
    ) -> None:
        self.functions = functions
        self.macros = macros
        self.since = since
        self.release = release
        self.until = until


@dataclass(frozen=True, slots=True)
class Declarations:
    """The functions and macros of one environment."""

    functions: Mapping[str, Function] = field(default_factory=dict)
    macros: Mapping[tuple[str, int, bool], Macro] = field(default_factory=dict)

    @staticmethod
    def of(libraries: Sequence[CelLibrary], level: int, release: int) -> "Declarations":
        """What expressions can use at a level (a minor version) in a release."""
        functions: dict[str, Function] = {}
        macros: dict[tuple[str, int, bool], Macro] = {}
        for library in libraries:
            if library.since > level or not library.release <= release < library.until:
                continue
            for function in _available(library.functions, level):
                known = functions.get(function.name)
                functions[function.name] = known.merged(function) if known else function
            for macro in library.macros:
                macros[macro.name, macro.arguments, macro.member] = macro
        return Declarations(functions, macros)

    def estimate_of(self, name: str, overload: str) -> EstimateCall | None:
        """The estimate for an overload of the function `name`, None if each call costs one."""
        function = self.functions[name]
        return function.cost_of(function.overload(overload)).estimate


def _available(functions: Sequence[Function], level: int) -> Iterator[Function]:
    for function in functions:
        overloads = tuple(overload for overload in function.overloads if overload.since <= level)
        if overloads:
            yield replace(function, overloads=overloads)
