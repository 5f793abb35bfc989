# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors: from the text of a query parameter to a test of an object.

The grammar of labels is that of k8s.io/apimachinery's labels package, that of fields the one of
its fields package (`=`, `==`, `!=`, comma; a backslash quotes).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..names import label_key_problems, label_value_problems
from ..objects import Object

Test = Callable[[Object], bool]

_WORD = r"[^\s=!(),<>]+"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!)\s*(?P<gone>{_WORD})"
    rf"|(?P<key>{_WORD})\s*(?:(?P<operator>==|=|!=|<|>)\s*(?P<value>[^\s=!(),<>]*)"
    rf"|\b(?P<set>in|notin)\s*\((?P<values>[^()=!<>]*)\))?)\s*(?:,(?=\s*[^\s,])|$)"
)
"""One requirement of a label selector, up to the comma before the next one."""


class SelectorError(ValueError):
    """The text is not a selector, or names something that cannot be selected by."""


@dataclass(frozen=True, slots=True)
class _Requirement:
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
        try:
            number, bound = int(value or ""), int(self.values[0])
        except ValueError:
            return False
        return number > bound if self.operator == ">" else number < bound


def label_test(text: str) -> Test | None:
    """The test of a labelSelector; None when it selects everything. Raises SelectorError."""
    requirements = list(_requirements(text))
    if not requirements:
        return None

    def test(obj: Object) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(requirement.holds(labels) for requirement in requirements)

    return test


def _requirements(text: str) -> Iterator[_Requirement]:
    position = 0
    while position < len(text.rstrip()):
        match = _REQUIREMENT.match(text, position)
        if match is None:
            raise SelectorError(f"unable to parse requirement: {text[position:]!r} is not understood")
        position = match.end()
        yield _requirement(match)


def _requirement(match: re.Match[str]) -> _Requirement:
    key, operator = match["gone"] or match["key"], match["set"] or match["operator"]
    values = [one.strip() for one in match["values"].split(",")] if match["set"] else [match["value"] or ""]
    for problem in (*label_key_problems(key), *(each for one in values for each in label_value_problems(one))):
        raise SelectorError(f"unable to parse requirement: {match[0].strip()!r}: {problem}")
    if match["absent"]:
        return _Requirement(key, "!")
    if operator is None:
        return _Requirement(key, "exists")
    if operator in "<>" and not re.fullmatch(r"[+-]?\d+", values[0]):
        raise SelectorError(f"unable to parse requirement: the value of {match[0].strip()!r} must be an integer")
    return _Requirement(key, {"=": "in", "==": "in", "!=": "notin"}.get(operator, operator), tuple(values))


FieldReaders = Mapping[str, Callable[[Object], str]]


def field_terms(text: str) -> list[tuple[str, bool, str]]:
    """The terms of a fieldSelector: (field, whether it must be equal, value). Raises SelectorError."""
    terms = []
    for term in _split_unquoted(text):
        if not term:
            continue
        match = re.match(r"((?:[^\\=!]|\\.)*)(==|=|!=)(.*)", term, re.DOTALL)
        if match is None:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        terms.append((match[1], match[2] != "!=", _unquote(match[3])))
    return terms


def field_test(text: str, readers: FieldReaders) -> Test | None:
    """The test of a fieldSelector over the fields that a kind can be selected by.

    None when it selects everything. Raises SelectorError for a field that it cannot.
    """
    terms = field_terms(text)
    for name, _, _ in terms:
        if name not in readers:
            known = ", ".join(f'"{known}"' for known in readers)
            raise SelectorError(f'"{name}" is not a known field selector: only {known}')
    if not terms:
        return None
    checks = [(readers[name], equal, value) for name, equal, value in terms]
    return lambda obj: all((read(obj) == value) is equal for read, equal, value in checks)


def _split_unquoted(text: str) -> list[str]:
    return re.split(r"(?<!\\),", text)


def _unquote(text: str) -> str:
    unknown = re.search(r"(?<!\\)(?:\\\\)*(\\[^\\,=])", text)
    if unknown is not None:
        raise SelectorError(f"invalid field selector: invalid escape sequence: {unknown[1]}")
    return re.sub(r"\\(.)", r"\1", text)
