# SPDX-License-Identifier: Apache-2.0
"""Device selectors explained to people: the part that is false, the values that it found, and usual mistakes.

Most selectors are chains of `&&`. Such a chain is split, and its first false part is named with the attributes that it
reads. If a part does not compile by itself, the whole expression is named instead.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from ..domains.names import DRIVER as DOMAIN_DRIVER
from ..kube.resource import AttributeList, AttributeValue, Device, Version
from ..names import DRIVER_NAME
from ..scheduler.allocator import Features, Predicate
from ..scheduler.cel import CompileError, EvaluationError

T = TypeVar("T")

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

_TEXTS: Final = re.compile(r"""\"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")
_NO_OPERATOR: Final = "write {}; {} is no operator of CEL"
_USUAL: Final = {
    r"(?<![=!<>])=(?!=)": _NO_OPERATOR.format("== to compare", "="),
    r"\band\b": _NO_OPERATOR.format("&&", "and"),
    r"\bor\b": _NO_OPERATOR.format("||", "or"),
    r"\bnot\b": _NO_OPERATOR.format("!", "not"),
    r"(?<!&)&(?!&)": _NO_OPERATOR.format("&&", "&"),
    r"(?<!\|)\|(?!\|)": _NO_OPERATOR.format("||", "|"),
    r"device\.capacity\[[^]]*\]\.\w+\s*(?:>=|<=|>|<|(?:==|!=)\s*[\"'0-9])|quantity\([^)]*\)\s*(?:>=|<=|>|<)": (
        "quantities are compared by methods: .compareTo(quantity('40Gi')) >= 0"
    ),
}
"""What to write instead of an expression with such a part, outside of texts."""
_COMPARED_ATTRIBUTE: Final = re.compile(
    r"device\.attributes\[[^]]*\]\.(?P<name>\w+)\s*"
    r"(?:(?:==|!=)\s*[\"']|(?:<=|>=|<|>)|\.(?:startsWith|endsWith|contains|matches)\()"
)
_COMPARED_SEMVER: Final = re.compile(r"semver\([^)]*\)\s*(?:>=|<=|>|<)")
_WHOLE_NAME: Final = re.compile(r"device\.(attributes|capacity)\[([\"'])([^\"'/]+)/(\w+)\2\]")
_OF_CHANNELS: Final = frozenset({"domain", "id"})
"""Attributes that only the driver of ComputeDomains has."""
_NO_DOMAIN: Final = re.compile(r"device\.(attributes|capacity)(?:\.(?P<field>\w+)|\[([\"'])(?P<key>\w+)\3\])")


@dataclass(frozen=True, slots=True)
class FalsePart:
    """A part of a selector that was false, and the values that it read, by their short names."""

    text: str
    saw: Mapping[str, str]


def parts(expression: str) -> list[str]:
    """The operands of a chain of &&, in order. An expression without && is its only operand."""
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

    def __init__(self, compile_one: Callable[[str, Features], Predicate], features: Features) -> None:
        self._compile = compile_one
        self._features = features
        self._parts: dict[str, list[tuple[str, Predicate]]] = {}

    def false_part(self, expression: str, driver: str, device: Device) -> FalsePart:
        """The first part that does not let the device pass."""
        compiled = self._parts.get(expression)
        if compiled is None:
            compiled = self._parts[expression] = self._take_apart(expression)
        for text, predicate in compiled:
            if not _passes(lambda bound=predicate: bound.matches(driver, device)):  # type: ignore[misc]
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
    reads = predicate.reads
    found = {"driver": driver} if reads == type(reads)() else {}
    for domain, name in sorted(reads.attributes):
        value = _of(device.attributes, domain, name, driver)
        found[name] = "nothing" if value is None else shown(value)
    for domain, name in sorted(reads.capacities):
        capacity = _of(device.capacity, domain, name, driver)
        found[name] = "nothing" if capacity is None else str(capacity.value)
    return found


def _of(values: Mapping[str, T], domain: str, name: str, driver: str) -> T | None:
    own = values.get(name) if domain == driver else None
    return values.get(f"{domain}/{name}") if own is None else own


def shown(value: AttributeValue) -> str:
    """An attribute's value for people."""
    if isinstance(value, Version):
        return value.text
    if isinstance(value, AttributeList):
        return "[" + ", ".join(item.text if isinstance(item, Version) else str(item) for item in value.items) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def version_names(devices: Iterable[Device]) -> frozenset[str]:
    """The attributes of devices that are versions, by the part of their names behind the domain."""
    return frozenset(
        name.rpartition("/")[2]
        for device in devices
        for name, value in device.attributes.items()
        if isinstance(value, Version)
    )


def usual_mistakes(expression: str, versions: frozenset[str]) -> list[str]:
    """The advice, with one sentence for each mistake. `versions` are the attributes that are versions."""
    return list(dict.fromkeys(_mistakes(expression, versions)))


def _mistakes(expression: str, versions: frozenset[str]) -> Iterator[str]:
    bare = _TEXTS.sub(lambda text: '"' + "_" * (len(text.group()) - 2) + '"', expression)
    yield from (advice for pattern, advice in _USUAL.items() if re.search(pattern, bare))
    compared = [match["name"] for match in _COMPARED_ATTRIBUTE.finditer(bare) if match["name"] in versions]
    if compared or _COMPARED_SEMVER.search(bare):
        who = f"{compared[0]} is a version, and versions" if compared else "versions"
        yield f"{who} are compared by methods: .isGreaterThan(semver('580.0.0')) or .compareTo(semver('580.0.0')) >= 0"
    if whole := _WHOLE_NAME.search(expression):
        field, _, domain, name = whole.groups()
        yield f"the domain and the name are two steps: device.{field}['{domain}'].{name}"
    if lacking := _NO_DOMAIN.search(expression):
        name = lacking["field"] or lacking["key"]
        driver = DOMAIN_DRIVER if name in _OF_CHANNELS else DRIVER_NAME
        yield f"name the domain first: device.{lacking[1]}['{driver}'].{name}"
