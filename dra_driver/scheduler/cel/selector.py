# SPDX-License-Identifier: Apache-2.0
"""Selectors: an expression that passes through all stages, and is then evaluated for devices.

A selector is compiled once and then evaluated for each device.
"""

import functools
from collections.abc import Hashable
from typing import Final

from ...kube.resource import AttributeList, AttributeValue, Device, Version, attribute_kind
from .check import check, validate
from .closures import Run
from .declarations import CEL_GO_29, Environment
from .errors import Abort, CelError, CompileError, ErrorValue, EvaluationError
from .estimate import estimate
from .evaluate import PlanError, compile_tree
from .evaluate.frame import Frame
from .library import registry_of
from .library.semver import Semver
from .library.values import OptionalValue, refill, type_name
from .names import PublishedNames, Reads, reads_of, suggestion, unknown_names
from .parse import parse, refusal
from .tree import Expression
from .types import BOOL, Type, TypeTooLargeError, Uint

MAX_BYTES: Final = 10_240
"""The largest expression that kube-apiserver accepts, in bytes of UTF-8."""


class _Program:
    """A compiled expression. Threads may share it."""

    def __init__(self, expression: str, environment: Environment, tree: Expression, run: Run, slots: int) -> None:
        self.expression = expression
        self.environment = environment
        self._tree = tree
        self._run = run
        self._slots = slots
        self._lists = environment.reads_lists
        self._converts_optionals = environment.converts_optionals
        self._hints: dict[Hashable, str] = {}

    @property
    def output_type(self) -> Type:
        """The type of the expression: bool, or a type whose values may be bools."""
        return self._tree.type

    @functools.cached_property
    def reads(self) -> Reads:
        """The attributes and capacities that its value depends on."""
        return reads_of(self._tree)

    @functools.cached_property
    def max_cost(self) -> int:
        """The cost in the worst case. kube-apiserver refuses new expressions that exceed COST_LIMIT."""
        return estimate(self._tree, registry_of(self.environment).estimate_of)

    def _result(self, frame: Frame) -> object:
        """The CEL value of the expression. Raises EvaluationError, but not for a value that is an error."""
        if self._lists:
            frame.lists = True
        if self._converts_optionals:
            frame.converts_optionals = True
        if self._slots:
            frame.slots = [None] * self._slots
        refill()
        try:
            frame.check_attributes()
        except ErrorValue as error:
            raise EvaluationError(error.kind, error.message, self.expression) from None
        try:
            return self._run(frame)
        except Abort as abort:
            cost = frame.cost + abort.cost
            raise EvaluationError(abort.kind, abort.message, self.expression, cost=cost) from None

    def _error(self, value: ErrorValue, frame: Frame) -> EvaluationError:
        hint = self._hint(value, frame)
        return EvaluationError(
            value.kind, f"{value.message}{hint}", self.expression, value.offset, cost=frame.cost, hint=hint
        )

    def _hint(self, error: ErrorValue, frame: Frame) -> str:
        if error.kind != "no_such_key" or error.offset is None:
            return ""
        device = frame.device
        # A hint depends on the names alone, which most devices have in common.
        key = (error.offset, frame.driver, tuple(device.attributes), tuple(device.capacity))
        if key not in self._hints:
            hint = suggestion(self._tree, error.offset, frame.driver, device)
            self._hints[key] = f": {hint}" if hint else ""
        return self._hints[key]

    def unknown_names(self, names: PublishedNames) -> list[CelError]:
        """The names that the expression reads but no device has, each with its place and the most similar name."""
        found = unknown_names(self._tree, names)
        return [CelError(issue.kind, issue.message, self.expression, issue.offset) for issue in found]


class Selector(_Program):
    """A compiled selector. Threads may share it."""

    def matches(self, driver: str, device: Device) -> bool:
        """Whether the expression is true for a device of the driver. Raises EvaluationError."""
        return self._value(Frame(driver, device))

    def evaluate(self, driver: str, device: Device) -> tuple[bool, int]:
        """Whether the expression is true for a device, and the cost of the evaluation. Raises EvaluationError."""
        frame = Frame(driver, device)
        return self._value(frame), frame.cost

    def _value(self, frame: Frame) -> bool:
        value = self._result(frame)
        if value is True or value is False:
            return value
        if isinstance(value, ErrorValue):
            raise self._error(value, frame)
        while isinstance(value, OptionalValue) and value.present:
            value = value.value
        if isinstance(value, bool):
            return value
        message = f"the expression evaluates to a {type_name(value)}, but a selector must evaluate to a bool"
        raise EvaluationError("result_not_bool", message, self.expression, cost=frame.cost)


class Derivation(_Program):
    """A compiled expression that computes an attribute. Threads may share it."""

    def attribute(self, driver: str, device: Device) -> AttributeValue:
        """The attribute of a device of the driver: a scalar, or a list of one type. Raises EvaluationError."""
        frame = Frame(driver, device)
        value = self._result(frame)
        if isinstance(value, ErrorValue):
            raise self._error(value, frame)
        attribute = _attribute_of(value)
        if attribute is None:
            message = f"the expression evaluates to a {type_name(value)}, which cannot be the value of an attribute"
            raise EvaluationError("unsupported_result", message, self.expression, cost=frame.cost)
        return attribute


def _attribute_of(value: object) -> AttributeValue | None:
    """The attribute for a CEL value. An empty list is a list of strings. None for other values."""
    if not isinstance(value, list):
        return _scalar_of(value)
    items = [_scalar_of(item) for item in value]
    kinds = {None if item is None else attribute_kind(item) for item in items} or {"string"}
    kind = kinds.pop()
    if kinds or kind is None:
        return None
    return AttributeList(f"{kind}s", tuple(item for item in items if item is not None))


def _scalar_of(value: object) -> str | int | bool | Version | None:
    if isinstance(value, Semver):
        return Version(str(value))
    return value if isinstance(value, str | int) and not isinstance(value, Uint) else None


def compile_derivation(expression: str, environment: Environment) -> Derivation:
    """Compile the expression of a derived attribute. Raises CompileError."""
    tree = _checked(expression, environment)
    return Derivation(expression, environment, tree, *_planned(tree, expression, environment))


def compile_selector(expression: str, environment: Environment | None = None) -> Selector:
    """Compile an expression, by default for the newest Kubernetes release. Raises CompileError."""
    environment = environment or Environment()
    tree = _checked(expression, environment)
    is_bool = tree.type == BOOL and (environment.release >= CEL_GO_29 or not tree.type.nullable)
    if not is_bool and tree.type not in environment.result_types:
        message = f"must evaluate to bool or the unknown type, not {tree.type}"
        raise CompileError("wrong_output_type", message, expression)
    return Selector(expression, environment, tree, *_planned(tree, expression, environment))


def _planned(tree: Expression, expression: str, environment: Environment) -> tuple[Run, int]:
    try:
        return compile_tree(tree, registry_of(environment), environment)
    except PlanError as error:
        raise CompileError("program", error.message, expression, error.offset, internal=True) from None


def _checked(expression: str, environment: Environment) -> Expression:
    registry = registry_of(environment)
    tree = parse(expression, registry.macros, quoted_names=environment.has_quoted_names)
    try:
        issues = check(tree, registry, environment) or validate(tree, registry)
    except TypeTooLargeError:
        raise CompileError("size_limit", "the types in the expression are nested too deeply", expression) from None
    if issues:
        raise refusal(expression, issues)
    return tree
