# SPDX-License-Identifier: Apache-2.0
"""Calls of functions: the overload, the types of the arguments, and the cost. Also the logical operators.

A function with one or two arguments evaluates all of them, and costs something even if one of them is an error. Other
functions stop at the first error, and cost nothing unless it is the last argument. Whether a list fits a parameter is
decided by its first element, and whether a map fits by its first entry. The most frequent calls (comparing with a
constant text, matching a constant pattern) have shorter implementations with the same results and costs.

Follows cel-go's `interpreter/interpretable.go` and `runtimecost.go`, and its `IsAssignableRuntimeType`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..declarations import Function, Implementation, RuntimeCost
from ..errors import ErrorValue
from ..library.operators import equal
from ..library.quantity import QuantityValue
from ..library.regex import encoded
from ..library.semver import Semver
from ..library.time import Duration, Timestamp
from ..library.values import (
    Extension,
    MapValue,
    OptionalValue,
    core_cost_size,
    matching_cost,
    no_such_overload,
    traversal_cost,
    type_name,
)
from ..types import DURATION, LITERAL_TYPES, QUANTITY, SEMVER, TIMESTAMP, Type, TypeKind
from .frame import Frame
from .paths import Constant, Evaluable, Run

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
    """A call of a function. `overloads` are those that fit the types of the tree. `lazy`: stop at the first error."""
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


def located(error: ErrorValue, offset: int) -> ErrorValue:
    """The error with a place, and without the traceback from raising it."""
    if error.offset is None:
        error.offset = offset
    error.__traceback__ = error.__context__ = None
    return error


def comparison(plans: Sequence[Evaluable], offset: int, *, negated: bool) -> Run | None:
    """`operand == 'text'` or `operand != 'text'`. None for other comparisons."""
    left, right = plans
    if not isinstance(right, Constant) or not isinstance(right.value, str):
        return None
    text, evaluate = right.value, left.run
    length = len(text)
    whole_cost = traversal_cost(length)

    def run(frame: Frame) -> object:
        value = evaluate(frame)
        if value.__class__ is str:
            size = len(value)
            frame.cost = cost = frame.cost + (whole_cost if size >= length else traversal_cost(size))
            if cost > frame.limit:
                frame.charge(0)
            return (value == text) is not negated
        return _compared(frame, value, text, offset, negated=negated)

    return run


def _compared(frame: Frame, value: object, text: str, offset: int, *, negated: bool) -> object:
    result: object
    if value.__class__ is ErrorValue:
        result = value
    else:
        try:
            result = equal(value, text) is not negated
        except ErrorValue as error:  # values that cannot be compared are not equal
            result = True if negated else located(error, offset)
    if isinstance(value, Extension) and not negated:
        frame.charge(1)
    else:
        frame.charge(traversal_cost(min(core_cost_size(value), len(text))))
    return result


def matches(subject: Evaluable, pattern: str, compiled: Any, offset: int) -> Run:
    """subject.matches('pattern')"""
    evaluate, search = subject.run, compiled.search
    pattern_size = len(pattern)

    def run(frame: Frame) -> object:
        text = evaluate(frame)
        if text.__class__ is ErrorValue:
            return text
        result: object
        if isinstance(text, str):
            result = search(encoded(text)) is not None
        else:
            result = located(no_such_overload("matches", text, pattern), offset)
        frame.charge(matching_cost(core_cost_size(text), pattern_size))
        return result

    return run


# Logical operators


def deciding(terms: Sequence[Run], offset: int, *, decisive: bool) -> Run:
    """&& (`decisive` is False) and || (True): a decisive term, otherwise the first error, otherwise the opposite."""
    neutral = not decisive

    def run(frame: Frame) -> object:
        result: object = neutral
        for term in terms:
            value = term(frame)
            if value is decisive:
                return value
            if value is not neutral and result is neutral:
                result = value if value.__class__ is ErrorValue else located(no_such_overload(), offset)
        return result

    return run


def first_present(optional: Run, otherwise: Run, *, unwrap: bool) -> Run:
    """optional.or(optional) and optional.orValue(value)"""

    def run(frame: Frame) -> object:
        value = optional(frame)
        if not isinstance(value, OptionalValue):
            return value
        if not value.present:
            return otherwise(frame)
        return value.value if unwrap else value

    return run


def not_strictly_false(term: Run) -> Run:
    """Whether a loop of all() or exists() continues. An error counts as true."""

    def run(frame: Frame) -> object:
        value = term(frame)
        frame.charge(1)
        return value if value.__class__ is bool else True

    return run
