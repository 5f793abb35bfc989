# SPDX-License-Identifier: Apache-2.0
"""Calls of functions: the overload, the types of the arguments, and the cost.

A function with one or two arguments evaluates all of them, and costs something even if one of them is an error. Other
functions stop at the first error, and cost nothing unless it is the last argument. Whether a list fits a parameter is
decided by its first element, and whether a map fits by its first entry.

Follows cel-go's `interpreter/interpretable.go` and `runtimecost.go`, and its `IsAssignableRuntimeType`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..closures import Run, located
from ..declarations import Function, Implementation, RuntimeCost
from ..errors import ErrorValue
from ..library.quantity import QuantityValue
from ..library.semver import Semver
from ..library.time import Duration, Timestamp
from ..library.values import (
    MapValue,
    no_such_overload,
    type_name,
)
from ..types import DURATION, LITERAL_TYPES, QUANTITY, SEMVER, TIMESTAMP, Type, TypeKind
from .frame import Frame

_CLASSES: Final[dict[Type, type]] = {
    **{literal: kind for kind, literal in LITERAL_TYPES.items()},
    DURATION: Duration,
    TIMESTAMP: Timestamp,
    QUANTITY: QuantityValue,
    SEMVER: Semver,
}


def classes(parameters: Sequence[Type]) -> tuple[type | None, ...] | None:
    """The Python class of the values of each parameter, None for any. None if classes alone do not decide."""
    found: list[type | None] = []
    for parameter in parameters:
        if parameter.is_dynamic or parameter.kind is TypeKind.PARAMETER:
            found.append(None)
        elif parameter in _CLASSES:
            found.append(_CLASSES[parameter])
        else:
            return None
    return tuple(found)


def accepts(parameter: Type, value: object) -> bool:
    """Whether a parameter accepts a value."""
    if parameter.is_dynamic or parameter.kind is TypeKind.PARAMETER:
        return True
    if parameter.kind is TypeKind.LIST:
        return isinstance(value, list) and (not value or accepts(parameter.element, value[0]))
    if parameter.kind is TypeKind.MAP:
        if not isinstance(value, MapValue):
            return False
        entry = next(iter(value.items()), None)
        return entry is None or all(map(accepts, parameter.parameters, entry))
    return type_name(value) == parameter.name


def accept_all(parameters: Sequence[Type], values: Sequence[object]) -> bool:
    """Whether the parameters accept the values."""
    return len(parameters) == len(values) and all(map(accepts, parameters, values))


def call(
    function: Function, overloads: Sequence[str], arguments: tuple[Run, ...], offset: int, *, lazy: bool = False
) -> Run:
    """The closure of a call. `overloads` are the ids of the overloads that the type checker found.

    `lazy`: it evaluates no argument after the first error.
    """
    overload = function.overload(overloads[0]) if len(overloads) == 1 else None
    cost = function.cost_of(overload).actual
    if function.dispatch is not None:
        return _with_arity(_Called(function.dispatch, None, cost, offset, function.name), arguments, lazy=False)
    if overload is None:
        return _with_arity(_Called(_choosing(function), None, cost, offset, function.name), arguments, lazy=True)
    assert overload.call is not None
    called = _Called(overload.call, overload.parameters, cost, offset, function.name)
    return _with_arity(called, arguments, lazy=lazy or overload.lazy)


@dataclass(frozen=True, slots=True)
class _Called:
    """A function to call. The arguments must fit `parameters` if it is not None. The cost is one if `cost` is None."""

    implementation: Implementation
    parameters: tuple[Type, ...] | None
    cost: RuntimeCost | None
    offset: int
    name: str


def _choosing(function: Function) -> Implementation:
    """An implementation that selects an overload of the function by the arguments."""

    def choose(*arguments: object) -> object:
        for overload in function.overloads:
            if overload.call is not None and accept_all(overload.parameters, arguments):
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
    exact = (None,) if called.parameters is None else classes(called.parameters)
    expected = exact[0] if exact else None
    checked = called.parameters if exact is None else None

    def run(frame: Frame) -> object:
        value = argument(frame)
        result: object
        if value.__class__ is ErrorValue:
            result = value
        elif (expected is None or value.__class__ is expected) and (checked is None or accept_all(checked, (value,))):
            try:
                result = implementation(value)
            except ErrorValue as error:
                result = located(error, offset)
        else:
            result = located(no_such_overload(name, value), offset)
        frame.charge(1 if cost is None else cost((value,), result))
        return result

    return run


def _binary(called: _Called, first: Run, second: Run) -> Run:
    implementation, cost, offset, name = called.implementation, called.cost, called.offset, called.name
    exact = (None, None) if called.parameters is None else classes(called.parameters)
    expected_left, expected_right = exact or (None, None)
    checked = called.parameters if exact is None else None

    def run(frame: Frame) -> object:
        left = first(frame)
        right = second(frame)
        result: object
        if left.__class__ is ErrorValue:
            result = left
        elif right.__class__ is ErrorValue:
            result = right
        elif (
            (expected_left is None or left.__class__ is expected_left)
            and (expected_right is None or right.__class__ is expected_right)
            and (checked is None or accept_all(checked, (left, right)))
        ):
            try:
                result = implementation(left, right)
            except ErrorValue as error:
                result = located(error, offset)
        else:
            result = located(no_such_overload(name, left, right), offset)
        frame.charge(1 if cost is None else cost((left, right), result))
        return result

    return run


def _lazy(called: _Called, arguments: tuple[Run, ...]) -> Run:
    implementation, cost, offset, name = called.implementation, called.cost, called.offset, called.name
    parameters = called.parameters
    last = len(arguments) - 1

    def run(frame: Frame) -> object:
        values: list[object] = []
        result: object = None
        for index, argument in enumerate(arguments):
            value = argument(frame)
            values.append(value)
            if value.__class__ is ErrorValue:
                if index < last:
                    return value
                result = value
                break
        else:
            if parameters is None or accept_all(parameters, values):
                try:
                    result = implementation(*values)
                except ErrorValue as error:
                    result = located(error, offset)
            else:
                result = located(no_such_overload(name, *values), offset)
        frame.charge(1 if cost is None else cost(values, result))
        return result

    return run
