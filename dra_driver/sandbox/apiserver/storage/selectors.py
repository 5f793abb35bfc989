# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors: from the text of a query parameter to a test of an object.

The grammar of labels is that of k8s.io/apimachinery's labels package, that of fields the one of
its fields package (`=`, `==`, `!=`, comma; a backslash quotes).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..names import label_key_problems, label_value_problems
from ..objects import Object

Test = Callable[[Object], bool]

_TOKEN = re.compile(r"\s*(?:(?P<symbol>==|!=|[=(),!<>])|(?P<word>[^\s=!(),<>]+))")


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
    requirements = list(_Labels(text).parse())
    if not requirements:
        return None

    def test(obj: Object) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(requirement.holds(labels) for requirement in requirements)

    return test


class _Labels:
    """A recursive-descent parser over the tokens of a label selector."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, bool]] = []  # (text, is a word)
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise SelectorError(f"unable to parse requirement: unexpected {text[position:]!r}")
            self.tokens.append((match["symbol"] or match["word"], match["symbol"] is None))
            position = match.end()
        self.at = 0

    def _next(self) -> tuple[str, bool]:
        token = self.tokens[self.at] if self.at < len(self.tokens) else ("", False)
        self.at += 1
        return token

    def _peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def parse(self) -> Iterator[_Requirement]:
        if self._peek() == ",":
            raise SelectorError("found ',', expected: !, identifier, or 'end of string'")
        while self.at < len(self.tokens):
            yield self._requirement()
            if self.at < len(self.tokens):
                separator, _ = self._next()
                if separator != ",":
                    raise SelectorError(f"found '{separator}', expected: ',' or 'end of string'")
                following = self._peek()
                if following in ("", ","):
                    raise SelectorError(f"found '{following}', expected: identifier after ','")

    def _requirement(self) -> _Requirement:
        if self._peek() == "!":
            self._next()
            return _Requirement(self._key(), "!")
        key = self._key()
        operator = self._peek()
        if operator in ("", ","):
            return _Requirement(key, "exists")
        self._next()
        match operator:
            case "=" | "==":
                return _Requirement(key, "in", _label_values(key, [self._value()]))
            case "!=":
                return _Requirement(key, "notin", _label_values(key, [self._value()]))
            case "in" | "notin":
                return _Requirement(key, operator, _label_values(key, self._values()))
            case ">" | "<":
                bound = self._value()
                if not re.fullmatch(r"[+-]?\d+", bound):
                    raise SelectorError(
                        f"unable to parse requirement: values[0]: Invalid value: {_quote(bound)}: "
                        "for 'Gt', 'Lt' operators, the value must be an integer"
                    )
                return _Requirement(key, operator, (bound,))
        raise SelectorError(f"unable to parse requirement: found '{operator}', expected: in, notin, =, ==, !=, gt, lt")

    def _key(self) -> str:
        word, is_word = self._next()
        if not is_word:
            raise SelectorError(f"unable to parse requirement: found '{word}', expected: identifier")
        problems = label_key_problems(word)
        if problems:
            text = "; ".join(problems)
            raise SelectorError(f"unable to parse requirement: <nil>: Invalid value: {_quote(word)}: {text}")
        return word

    def _value(self) -> str:
        if self._peek() in ("", ","):
            return ""
        word, is_word = self._next()
        if not is_word:
            raise SelectorError(f"unable to parse requirement: found '{word}', expected: identifier")
        return word

    def _values(self) -> list[str]:
        symbol, _ = self._next()
        if symbol != "(":
            raise SelectorError(f"unable to parse requirement: found '{symbol}' expected: '('")
        values = []
        while True:
            if self._peek() in (",", ")"):
                values.append("")
            else:
                values.append(self._value())
            symbol, _ = self._next()
            if symbol == ")":
                return values
            if symbol != ",":
                raise SelectorError(f"unable to parse requirement: found '{symbol}', expected: ',' or ')'")


def _label_values(key: str, values: Iterable[str]) -> tuple[str, ...]:
    wanted = tuple(sorted(set(values)))
    for index, value in enumerate(wanted):
        for problem in label_value_problems(value):
            where = f"values[{index}][{key}]"
            raise SelectorError(f"unable to parse requirement: {where}: Invalid value: {_quote(value)}: {problem}")
    return wanted


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


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
