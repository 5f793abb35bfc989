# SPDX-License-Identifier: Apache-2.0
"""Which part of a selector was false for a device, and the values that it read.

Selectors are mostly chains of `&&`. Such a chain is taken apart, and its first false part is named together with the
attributes that it reads. A part that cannot stand alone is no part: then the whole expression is named.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ..allocation import Compile, Features, Predicate
from ..cel import CompileError, EvaluationError
from ..resource import AttributeList, AttributeValue, Device, Version

_TOKENS: Final = re.compile(
    r"""
    [rR]?(?:\"\"\".*?\"\"\"|'''.*?''')           # texts over several lines
    | (?<![\w])[rR](?:"[^"\n]*"|'[^'\n]*')       # raw ones
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    | //[^\n]*
    | && | \|\| | \.\? | [?()\[\]{}] | .
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class FalsePart:
    """A part of a selector that was false, and the values that it read, by their short names."""

    text: str
    saw: Mapping[str, str]


def parts(expression: str) -> list[str]:
    """What a chain of && joins, in order; only the expression itself when it is none."""
    found, start, depth = [], 0, 0
    for token in _TOKENS.finditer(expression):
        match token.group():
            case "(" | "[" | "{":
                depth += 1
            case ")" | "]" | "}":
                depth -= 1
            case "||" | "?" if depth == 0:
                return [expression.strip()]
            case "&&" if depth == 0:
                found.append(expression[start : token.start()].strip())
                start = token.end()
    return [*found, expression[start:].strip()]


class Blame:
    """Finds false parts; each expression is taken apart and compiled once."""

    def __init__(self, compile_one: Compile, features: Features) -> None:
        self._compile = compile_one
        self._features = features
        self._parts: dict[str, list[tuple[str, Predicate]]] = {}

    def false_part(self, expression: str, driver: str, device: Device) -> FalsePart:
        """The first part that does not let the device pass."""
        compiled = self._parts.get(expression)
        if compiled is None:
            compiled = self._parts[expression] = self._take_apart(expression)
        for text, predicate in compiled:
            if not _passes(lambda one=predicate: one.matches(driver, device)):  # type: ignore[misc]
                return FalsePart(text, values_read(predicate, driver, device))
        return FalsePart(expression, {})

    def _take_apart(self, expression: str) -> list[tuple[str, Predicate]]:
        try:
            return [(text, self._compile(text, self._features)) for text in parts(expression)]
        except CompileError:
            return [(expression, self._compile(expression, self._features))]


def _passes(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except EvaluationError:
        return False


def values_read(predicate: Predicate, driver: str, device: Device) -> dict[str, str]:
    """The attributes and capacities that the expression reads, as this device has them, by their short names."""
    return dict(_values_read(predicate, driver, device))


def _values_read(predicate: Predicate, driver: str, device: Device) -> Iterator[tuple[str, str]]:
    reads = predicate.reads
    if reads == type(reads)():
        yield "driver", driver
    for domain, identifier in sorted(reads.attributes):
        value = device.attributes.get(identifier) if domain == driver else None
        value = device.attributes.get(f"{domain}/{identifier}") if value is None else value
        yield identifier, "nothing" if value is None else shown(value)
    for domain, identifier in sorted(reads.capacities):
        capacity = device.capacity.get(identifier) if domain == driver else None
        capacity = device.capacity.get(f"{domain}/{identifier}") if capacity is None else capacity
        yield identifier, "nothing" if capacity is None else str(capacity.value)


def shown(value: AttributeValue) -> str:
    """An attribute's value for people."""
    if isinstance(value, Version):
        return value.text
    if isinstance(value, AttributeList):
        return "[" + ", ".join(item.text if isinstance(item, Version) else str(item) for item in value.items) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
