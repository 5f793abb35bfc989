# SPDX-License-Identifier: Apache-2.0
"""Formats of names, label keys and label values, and the texts of errors about fields, as in apimachinery 1.36.

Sources: `pkg/api/validate/content`, `pkg/util/validation` and `pkg/util/validation/field`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_KEY: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE: Final = f"({_KEY})?"
_LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    f" an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    f" end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_CHARACTERS: Final = (
    "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_KEY_TEXT: Final = (
    f"must {_CHARACTERS} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_KEY}')"
)
_VALUE_TEXT: Final = (
    f"a valid label must be an empty string or {_CHARACTERS} (e.g. 'MyValue',  or 'my_value',  or '12345', regex used"
    f" for validation is '{_VALUE}')"
)
_PORT_NAME_TEXTS: Final = (
    (r"[-a-z0-9]+", "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"),
    (r".*[a-z].*", "must contain at least one letter (a-z)"),
    (r"(?!.*--).*", "must not contain consecutive hyphens"),
    (r"(?!-)(.*[^-])?", "must not begin or end with a hyphen"),
)
_MOST_LABEL: Final = 63
_MOST_SUBDOMAIN: Final = 253
_MOST_PORT_NAME: Final = 15


def _too_long(value: str, most: int, unit: str = "bytes") -> Iterator[str]:
    """Both packages count bytes, but `pkg/util/validation` calls them characters."""
    if len(value.encode()) > most:
        yield f"must be no more than {most} {unit}"


def _matches(pattern: str, value: str) -> bool:
    return re.fullmatch(pattern, value, re.ASCII | re.DOTALL) is not None


def label_problems(name: str) -> Iterator[str]:
    """What is wrong with a DNS label, such as the name of a container."""
    yield from _too_long(name, _MOST_LABEL, "characters")
    if not _matches(_LABEL, name):
        yield "must not contain dots" if _matches(_SUBDOMAIN, name) else _LABEL_TEXT


def subdomain_problems(name: str, unit: str = "characters") -> Iterator[str]:
    """What is wrong with a DNS subdomain, such as the name of most objects."""
    yield from _too_long(name, _MOST_SUBDOMAIN, unit)
    if not _matches(_SUBDOMAIN, name):
        yield _SUBDOMAIN_TEXT


def key_problems(key: str) -> Iterator[str]:
    """What is wrong with a qualified name, such as the key of a label or the name of a resource."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        yield f"a valid label key {_KEY_TEXT} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash:
        yield from (f"prefix part {problem}" for problem in subdomain_problems(prefix, "bytes"))
    if not name:
        yield "name part must be non-empty"
    yield from (f"name part {problem}" for problem in _too_long(name, _MOST_LABEL))
    if not _matches(_KEY, name):
        yield f"name part {_KEY_TEXT}"


def value_problems(value: str) -> Iterator[str]:
    """What is wrong with the value of a label."""
    yield from _too_long(value, _MOST_LABEL)
    if not _matches(_VALUE, value):
        yield _VALUE_TEXT


def port_name_problems(name: str) -> Iterator[str]:
    """What is wrong with the name of a port."""
    yield from _too_long(name, _MOST_PORT_NAME, "characters")
    yield from (text for pattern, text in _PORT_NAME_TEXTS if not _matches(pattern, name))


def invalid(path: str, value: Any, problem: str) -> str:
    """The error about a value (JSON)."""
    return f"{path}: Invalid value: {_shown(value)}: {problem}"


def required(path: str, problem: str = "") -> str:
    """The error about a value that is missing."""
    return f"{path}: Required value{f': {problem}' if problem else ''}"


def forbidden(path: str, problem: str) -> str:
    """The error about a value that must not be there."""
    return f"{path}: Forbidden: {problem}"


def duplicate(path: str, value: str) -> str:
    """The error about a duplicate value."""
    return f"{path}: Duplicate value: {_shown(value)}"


def unsupported(path: str, value: str, supported: tuple[str, ...]) -> str:
    """The error about an unsupported value."""
    return f"{path}: Unsupported value: {_shown(value)}: supported values: {', '.join(map(_shown, supported))}"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def named(path: str, name: str, problems: Iterator[str]) -> Iterator[str]:
    """The errors about a name."""
    yield from (invalid(path, name, problem) for problem in problems)


def label_errors(labels: Mapping[str, str], path: str) -> Iterator[str]:
    """The errors about a map of labels. They do not say which label they are about."""
    for key, value in sorted(labels.items()):
        yield from named(path, key, key_problems(key))
        yield from named(path, value, value_problems(value))
