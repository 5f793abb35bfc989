# SPDX-License-Identifier: Apache-2.0
"""A device selector: compiled once, asked about each device.

Follows `Compile` and `DeviceMatches` of k8s.io/dynamic-resource-allocation `cel/compile.go`.
"""

import functools
from typing import Final

from ..resource import Device
from . import effort
from .ast import Node
from .checker import check
from .compiler import PlanError, Program, compile_tree
from .environment import Environment
from .errors import Abort, CompileError, EvaluationError, Fault, Issue
from .estimate import estimate
from .frame import Frame
from .macros import TooLargeError, expand
from .parser import invalid_places, parse
from .reads import Reads, reads_of
from .registry import registry_of
from .types import BOOL, Type
from .validators import validate

COST_LIMIT: Final = 1_000_000
"""The cost that kube-apiserver accepts at most as an estimate, and that an evaluation may reach."""
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
        return self.evaluate(driver, device)[0]

    def evaluate(self, driver: str, device: Device) -> tuple[bool, int]:
        """Whether the expression is true, and what finding that out cost. Raises EvaluationError."""
        frame = Frame(driver, device, COST_LIMIT, self._slots, lists=self._lists)
        effort.refill()
        try:
            frame.check_attributes()
        except Fault as fault:
            raise EvaluationError(fault.kind, fault.message, self.expression) from None
        try:
            value = self._run(frame)
        except Abort as abort:
            raise EvaluationError(abort.kind, abort.message, self.expression, cost=frame.cost) from None
        if value.__class__ is bool:
            return value is True, frame.cost
        if isinstance(value, Fault):
            raise EvaluationError(value.kind, value.message, self.expression, value.offset, cost=frame.cost)
        message = "the expression does not evaluate to a bool, as a selector has to"
        raise EvaluationError("result_not_bool", message, self.expression, cost=frame.cost)


def compile_selector(expression: str, environment: Environment | None = None) -> Selector:
    """Compile an expression, by default for the newest Kubernetes. Raises CompileError."""
    environment = environment or Environment()
    tree = _checked(expression, environment)
    if tree.type != BOOL and tree.type not in environment.result_types:
        message = f"must evaluate to bool or the unknown type, not {tree.type}"
        raise CompileError("wrong_output_type", message, expression)
    try:
        program = compile_tree(tree, registry_of(environment), environment)
    except PlanError as error:
        raise CompileError("program", error.message, expression, error.offset, internal=True) from None
    return Selector(expression, environment, tree, program)


def _checked(expression: str, environment: Environment) -> Node:
    registry = registry_of(environment)
    try:
        tree = expand(parse(expression), registry.macros)
    except TooLargeError:
        raise CompileError("size_limit", "its macros expand to more than any selector needs", expression) from None
    for issues in (invalid_places, lambda root: check(root, registry, environment), validate):
        found = issues(tree)
        if found:
            raise _refusal(expression, found)
    return tree


def _refusal(expression: str, issues: list[Issue]) -> CompileError:
    first = issues[0]
    return CompileError(first.kind, first.message, expression, first.offset, issues=tuple(issues))
