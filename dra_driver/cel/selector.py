# SPDX-License-Identifier: Apache-2.0
"""A device selector: compiled once, asked about each device.

Follows `Compile` and `DeviceMatches` of k8s.io/dynamic-resource-allocation `cel/compile.go`.
"""

import functools
from typing import Final

from ..resource import Device
from .check.checker import check, validate
from .check.environment import Environment
from .check.estimate import estimate
from .errors import Abort, CelError, CompileError, ErrorValue, EvaluationError
from .evaluate.compiler import PlanError, Program, compile_tree
from .evaluate.frame import Frame
from .library import registry_of
from .library.values import OptionalValue, refill, type_name
from .reads import PublishedNames, Reads, reads_of, suggestion, unknown_names
from .syntax.parser import parse, refusal
from .syntax.tree import Node
from .types import BOOL, Type, TypeTooLargeError

MAX_BYTES: Final = 10_240
"""The longest expression, in bytes of UTF-8, that kube-apiserver accepts."""


class Selector:
    """A compiled expression. Safe to share between threads."""

    def __init__(self, expression: str, environment: Environment, tree: Node, program: Program) -> None:
        self.expression = expression
        self.environment = environment
        self._tree = tree
        self._run = program.run
        self._slots = program.slots
        self._lists = environment.reads_lists

    @property
    def output_type(self) -> Type:
        """Its static type: bool, or one that may turn out to be a bool."""
        return self._tree.type

    @functools.cached_property
    def reads(self) -> Reads:
        """Which attributes and capacities its value depends on."""
        return reads_of(self._tree)

    @functools.cached_property
    def max_cost(self) -> int:
        """The cost in the worst case. kube-apiserver refuses new expressions over COST_LIMIT."""
        return estimate(self._tree, registry_of(self.environment))

    def matches(self, driver: str, device: Device) -> bool:
        """Whether the expression is true for a device of the driver. Raises EvaluationError."""
        return self._value(Frame(driver, device))

    def evaluate(self, driver: str, device: Device) -> tuple[bool, int]:
        """Whether the expression is true, and what finding that out cost. Raises EvaluationError."""
        frame = Frame(driver, device)
        return self._value(frame), frame.cost

    def _value(self, frame: Frame) -> bool:
        if self._lists:
            frame.lists = True
        if self._slots:
            frame.slots = [None] * self._slots
        refill()
        try:
            frame.check_attributes()
        except ErrorValue as fault:
            raise EvaluationError(fault.kind, fault.message, self.expression) from None
        try:
            value = self._run(frame)
        except Abort as abort:
            cost = frame.cost + abort.cost
            raise EvaluationError(abort.kind, abort.message, self.expression, cost=cost) from None
        if value is True or value is False:
            return value
        while isinstance(value, OptionalValue) and value.present:
            value = value.value
        if isinstance(value, bool):
            return value
        if isinstance(value, ErrorValue):
            raise EvaluationError(
                value.kind, self._explained(value, frame), self.expression, value.offset, cost=frame.cost
            )
        message = f"the expression evaluates to a {type_name(value)}; a selector has to evaluate to a bool"
        raise EvaluationError("result_not_bool", message, self.expression, cost=frame.cost)

    def _explained(self, fault: ErrorValue, frame: Frame) -> str:
        if fault.kind != "no_such_key" or fault.offset is None:
            return fault.message
        hint = suggestion(self._tree, fault.offset, frame.driver, frame.device)
        return f"{fault.message}: {hint}" if hint else fault.message

    def unknown_names(self, names: PublishedNames) -> list[CelError]:
        """The names that the expression reads and no device has, each with its place and the nearest existing names."""
        found = unknown_names(self._tree, names)
        return [CelError(issue.kind, issue.message, self.expression, issue.offset) for issue in found]


def compile_selector(expression: str, environment: Environment | None = None) -> Selector:
    """Compile an expression, by default for the newest Kubernetes. Raises CompileError."""
    environment = environment or Environment()
    tree = _checked(expression, environment)
    if (tree.type != BOOL or tree.type.nullable) and tree.type not in environment.result_types:
        message = f"must evaluate to bool or the unknown type, not {tree.type}"
        raise CompileError("wrong_output_type", message, expression)
    try:
        program = compile_tree(tree, registry_of(environment), environment)
    except PlanError as error:
        raise CompileError("program", error.message, expression, error.offset, internal=True) from None
    return Selector(expression, environment, tree, program)


def _checked(expression: str, environment: Environment) -> Node:
    registry = registry_of(environment)
    tree = parse(expression, registry.macros)
    try:
        issues = check(tree, registry, environment) or validate(tree, registry)
    except TypeTooLargeError:
        raise CompileError("size_limit", "its types are nested too deeply", expression) from None
    if issues:
        raise refusal(expression, issues)
    return tree
