# SPDX-License-Identifier: Apache-2.0
"""CEL device selectors, with the results that kube-scheduler and kube-apiserver compute.

`compile_selector` turns an expression into a `Selector` for one `Environment` (a Kubernetes release and its feature
gates). It raises `CompileError` if this environment does not accept the expression. `Selector.matches` evaluates the
expression for a device, and raises `EvaluationError` if the evaluation fails.

An expression passes through four packages. Each of them imports only the earlier ones, and its `__init__` has the
function that the next stage calls:

1. `syntax` turns the text into a tree (`parse`).
2. `check` finds the types (`check`), and estimates the cost in the worst case (`estimate`).
3. `library` has the functions that an expression can call, one file for each type of value (`registry_of`).
4. `evaluate` turns the tree into closures (`compile_tree`).

All of them use `types` and `errors`.

A selector is compiled once and then evaluated for each device. It knows which attributes and capacities its expression
reads, so callers evaluate devices with the same values only once. It also finds names in the expression that no device
has, so users get the most similar existing names.
"""

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ...kube.releases import RELEASES
from ...kube.resource import AttributeList, AttributeValue, Device, Version, attribute_kind
from .check import VARIABLE, check, validate
from .check.declarations import CEL_GO_29, NEWEST, Environment
from .check.estimate import estimate
from .errors import Abort, CelError, CelIssue, CompileError, ErrorValue, EvaluationError
from .evaluate import PlanError, compile_tree
from .evaluate.frame import COST_LIMIT, Frame
from .evaluate.paths import Run
from .library import registry_of
from .library.semver import Semver
from .library.values import OptionalValue, refill, type_name
from .syntax import parse, refusal
from .syntax.tree import Call, Expression, Ident, Literal, Select, walk
from .types import BOOL, Type, TypeTooLargeError, Uint

__all__ = [
    "COST_LIMIT",
    "MAX_BYTES",
    "NEWEST",
    "RELEASES",
    "CelError",
    "CelIssue",
    "CompileError",
    "Derivation",
    "Environment",
    "EvaluationError",
    "PublishedNames",
    "Reads",
    "Selector",
    "compile_derivation",
    "compile_selector",
]


_INDEXING: Final = frozenset(("_[_]", "_[?_]", "_?._"))

_SINGULAR: Final = {"attributes": "attribute", "capacity": "capacity"}
_LISTED: Final = 8

Names = Mapping[str, frozenset[str]]
"""Identifiers by domain."""

MAX_BYTES: Final = 10_240
"""The largest expression that kube-apiserver accepts, in bytes of UTF-8."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What the value of an expression depends on, besides the name of the driver and allowMultipleAllocations.

    Attributes and capacities are (domain, identifier). `everything` is set if they are not known.
    """

    attributes: frozenset[tuple[str, str]] = frozenset()
    capacities: frozenset[tuple[str, str]] = frozenset()
    everything: bool = False

    def __or__(self, other: "Reads") -> "Reads":
        return Reads(
            self.attributes | other.attributes, self.capacities | other.capacities, self.everything or other.everything
        )


EVERYTHING: Final = Reads(everything=True)


def reads_of(root: Expression) -> Reads:
    """The attributes and capacities that the tree reads. These are all if a part of the device is used as a value."""
    found = Reads()
    pending = [root]
    while pending:
        node = pending.pop()
        path, inner = path_of(node)
        pending.extend(inner)
        match path:
            case None | ("driver" | "allowMultipleAllocations", *_):
                pass
            case ("attributes", str(domain), str(identifier), *_) if "/" not in domain:
                found |= Reads(attributes=frozenset(((domain, identifier),)))
            case ("capacity", str(domain), str(identifier), *_) if "/" not in domain:
                found |= Reads(capacities=frozenset(((domain, identifier),)))
            case _:
                return EVERYTHING
    return found


def path_of(root: Expression) -> tuple[tuple[object, ...] | None, list[Expression]]:
    """The keys after `device`, where None is a computed key, and the expressions in its brackets.

    The keys are None, and the expressions are the children, if the node is not a path into the device.
    """
    keys: list[object] = []
    computed: list[Expression] = []
    node = root
    while True:
        if isinstance(node, Select) and node.constant is None:
            keys.append(node.field)
            node = node.operand
        elif isinstance(node, Call) and node.function in _INDEXING:
            node, key = node.arguments
            keys.append(key.value if isinstance(key, Literal) else None)
            computed.append(key)
        elif isinstance(node, Ident) and node.constant is None and node.name == VARIABLE:
            return tuple(reversed(keys)), computed
        else:
            return None, list(root.children())


@dataclass(frozen=True, slots=True)
class PublishedNames:
    """The names of the attributes and capacities that some devices publish."""

    attributes: Names
    capacity: Names

    @staticmethod
    def of(devices: Iterable[tuple[str, Device]]) -> "PublishedNames":
        """The names that these devices publish. Each device comes with its driver."""
        attributes: dict[str, set[str]] = {}
        capacity: dict[str, set[str]] = {}
        for driver, device in devices:
            for names, published in ((attributes, device.attributes), (capacity, device.capacity)):
                for name in published:
                    domain, slash, identifier = name.partition("/")
                    names.setdefault(domain if slash else driver, set()).add(identifier if slash else name)
        return PublishedNames(_frozen(attributes), _frozen(capacity))


def _frozen(names: Mapping[str, set[str]]) -> Names:
    return {domain: frozenset(identifiers) for domain, identifiers in names.items()}


def unknown_names(root: Expression, names: PublishedNames) -> list[CelIssue]:
    """The places where the expression reads names that no device has, in source order, also in has() and `.?`."""
    found = [
        CelIssue("unknown_name", message, node.offset)
        for node in walk(root)
        for message in _missing(node, names, "no device has")
    ]
    return sorted(found, key=lambda issue: issue.offset)


def suggestion(root: Expression, offset: int, driver: str, device: Device) -> str:
    """A hint for a name that the device does not have. Empty if the name is not that of an attribute or capacity."""
    names = PublishedNames.of([(driver, device)])
    messages = (
        message
        for node in walk(root)
        if node.offset == offset
        for message in _missing(node, names, "the device does not have")
    )
    return next(messages, "")


def _missing(node: Expression, names: PublishedNames, who: str) -> Iterator[str]:
    match path_of(node)[0]:
        case ("attributes" | "capacity" as field, str(domain), str(identifier)):
            published = names.attributes if field == "attributes" else names.capacity
            if domain not in published:
                yield f"{who} any {_SINGULAR[field]} in domain {domain!r}" + _nearest(domain, published)
            elif identifier not in published[domain]:
                what = f"{_SINGULAR[field]} {identifier!r} in domain {domain}"
                other = "capacity" if field == "attributes" else "attributes"
                elsewhere = names.capacity if field == "attributes" else names.attributes
                if identifier in elsewhere.get(domain, ()):
                    path = f"device.{other}[{domain!r}].{identifier}"
                    yield f"{who} {what}; it is published as {_SINGULAR[other]}: {path}"
                else:
                    yield f"{who} {what}" + _nearest(identifier, published[domain])


def _nearest(wanted: str, existing: Iterable[str]) -> str:
    known = {name.lower(): name for name in sorted(existing)}
    close = difflib.get_close_matches(wanted.lower(), known, n=1)
    if close:
        return f"; did you mean {known[close[0]]!r}?"
    shown = [repr(name) for name in sorted(known.values())]
    if not shown:
        return ""
    more = f" and {len(shown) - _LISTED} more" if len(shown) > _LISTED else ""
    return f" (there are {', '.join(shown[:_LISTED])}{more})"


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
        hint = suggestion(self._tree, error.offset, frame.driver, frame.device)
        return f": {hint}" if hint else ""

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
        while isinstance(value, OptionalValue) and value.present:
            value = value.value
        if isinstance(value, bool):
            return value
        if isinstance(value, ErrorValue):
            raise self._error(value, frame)
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
