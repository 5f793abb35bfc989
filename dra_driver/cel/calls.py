# SPDX-License-Identifier: Apache-2.0
"""Calling functions: which overload, whether the arguments fit it, what it costs.

Follows cel-go's `interpreter/interpretable.go` and `runtimecost.go`. Functions of one or two arguments
evaluate all of them and cost something even when one is an error; the others stop at the first error
and, unless it is the last argument, cost nothing.
"""

from collections.abc import Sequence

from . import guards
from .declarations import Function, Implementation, Overload, RuntimeCost
from .errors import Fault
from .frame import Frame
from .paths import Run
from .values import no_such_overload


def call(
    function: Function, overloads: Sequence[str], arguments: tuple[Run, ...], offset: int, *, lazy: bool = False
) -> Run:
    """Call a function, with the overloads that fit by their static types. `lazy`: stop at the first error."""
    overload = function.overload(overloads[0]) if len(overloads) == 1 else None
    cost = (overload.cost if overload else None) or function.cost
    if function.dispatch is not None:
        return _with_arity(_Called(function.dispatch, None, cost, offset, function.name), arguments, lazy=False)
    if overload is None:
        return _with_arity(_Called(_choosing(function), None, cost, offset, function.name), arguments, lazy=True)
    assert overload.call is not None
    called = _Called(overload.call, overload if overload.guarded else None, cost, offset, function.name)
    return _with_arity(called, arguments, lazy=lazy or overload.lazy)


class _Called:
    """What to call, the overload whose parameters the arguments must fit (None: any), and the cost (None: 1)."""

    def __init__(
        self, implementation: Implementation, guard: Overload | None, cost: RuntimeCost | None, offset: int, name: str
    ) -> None:
        self.implementation = implementation
        self.guard = guard
        self.cost = cost
        self.offset = offset
        self.name = name


def _choosing(function: Function) -> Implementation:
    """The function, with its overload chosen by the arguments."""

    def choose(*arguments: object) -> object:
        for overload in function.overloads:
            if overload.call is None or len(overload.parameters) != len(arguments):
                continue
            if not overload.guarded or guards.accept_all(overload.parameters, arguments):
                return overload.call(*arguments)
        raise no_such_overload(function.name, *arguments)

    return choose


def _with_arity(called: _Called, arguments: tuple[Run, ...], *, lazy: bool) -> Run:
    if lazy or len(arguments) > 2:
        return _lazy(called, arguments)
    match arguments:
        case (only,):
            return _unary(called, only)
        case (first, second):
            return _binary(called, first, second)
    return _lazy(called, arguments)


def _unary(called: _Called, argument: Run) -> Run:
    implementation, cost, offset, name = called.implementation, called.cost, called.offset, called.name
    exact = guards.classes(called.guard.parameters) if called.guard else (None,)
    expected = exact[0] if exact else None
    checked = called.guard.parameters if called.guard and exact is None else None

    def run(frame: Frame) -> object:
        value = argument(frame)
        result: object
        if value.__class__ is Fault:
            result = value
        elif (expected is None or value.__class__ is expected) and (
            checked is None or guards.accept_all(checked, (value,))
        ):
            try:
                result = implementation(value)
            except Fault as fault:
                result = located(fault, offset)
        else:
            result = located(no_such_overload(name, value), offset)
        frame.charge(1 if cost is None else cost((value,), result))
        return result

    return run


def _binary(called: _Called, first: Run, second: Run) -> Run:
    implementation, cost, offset, name = called.implementation, called.cost, called.offset, called.name
    exact = guards.classes(called.guard.parameters) if called.guard else (None, None)
    expected_left, expected_right = exact or (None, None)
    checked = called.guard.parameters if called.guard and exact is None else None

    def run(frame: Frame) -> object:
        left = first(frame)
        right = second(frame)
        result: object
        if left.__class__ is Fault:
            result = left
        elif right.__class__ is Fault:
            result = right
        elif (
            (expected_left is None or left.__class__ is expected_left)
            and (expected_right is None or right.__class__ is expected_right)
            and (checked is None or guards.accept_all(checked, (left, right)))
        ):
            try:
                result = implementation(left, right)
            except Fault as fault:
                result = located(fault, offset)
        else:
            result = located(no_such_overload(name, left, right), offset)
        frame.charge(1 if cost is None else cost((left, right), result))
        return result

    return run


def _lazy(called: _Called, arguments: tuple[Run, ...]) -> Run:
    implementation, cost, offset, name = called.implementation, called.cost, called.offset, called.name
    parameters = called.guard.parameters if called.guard else None
    last = len(arguments) - 1

    def run(frame: Frame) -> object:
        values: list[object] = []
        result: object = None
        for index, argument in enumerate(arguments):
            value = argument(frame)
            values.append(value)
            if value.__class__ is Fault:
                if index < last:
                    return value
                result = value
                break
        else:
            if parameters is None or guards.accept_all(parameters, values):
                try:
                    result = implementation(*values)
                except Fault as fault:
                    result = located(fault, offset)
            else:
                result = located(no_such_overload(name, *values), offset)
        frame.charge(1 if cost is None else cost(values, result))
        return result

    return run


def located(fault: Fault, offset: int) -> Fault:
    """The fault with a place, as a value: without the traceback that raising it left."""
    if fault.offset is None:
        fault.offset = offset
    fault.__traceback__ = fault.__context__ = None
    return fault
