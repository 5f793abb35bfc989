# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' rules for names and labels, with the texts of kube-apiserver.

Each function returns the problems of a name. The result is empty for a valid name. Follows
k8s.io/apimachinery/pkg/util/validation.
"""

import re
from functools import lru_cache
from typing import Final

LABEL_LENGTH: Final = 63
SUBDOMAIN_LENGTH: Final = 253

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_IDENTIFIER: Final = "[A-Za-z_][A-Za-z0-9_]*"

_LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and "
    f"end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    f"and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_NAME_PART_TEXT: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_QUALIFIED}')"
)
_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({_QUALIFIED})?')"
)
_IDENTIFIER_TEXT: Final = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric "
    f"characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '{_IDENTIFIER}')"
)

_label = re.compile(_LABEL, re.ASCII)
_subdomain = re.compile(_SUBDOMAIN, re.ASCII)
_qualified = re.compile(_QUALIFIED, re.ASCII)
_identifier = re.compile(_IDENTIFIER, re.ASCII)


def _length(text: str, limit: int) -> list[str]:
    return [f"must be no more than {limit} bytes"] if len(text) > limit else []


@lru_cache(maxsize=4096)
def label_problems(text: str, *, prefix: bool = False) -> tuple[str, ...]:
    """Return the problems of a DNS-1123 label: the name of a device, request, counter or namespace."""
    text = _finished(text, prefix)
    return (*_length(text, LABEL_LENGTH), *(() if _label.fullmatch(text) else (_LABEL_TEXT,)))


@lru_cache(maxsize=4096)
def subdomain_problems(text: str, *, prefix: bool = False) -> tuple[str, ...]:
    """Return the problems of a DNS-1123 subdomain: the name of a driver and of most objects."""
    text = _finished(text, prefix)
    return (*_length(text, SUBDOMAIN_LENGTH), *(() if _subdomain.fullmatch(text) else (_SUBDOMAIN_TEXT,)))


def label_name(text: str, prefix: bool) -> tuple[str, ...]:
    """Return the problems of an object name that must be a DNS label: of a Namespace or Service."""
    return label_problems(text, prefix=prefix)


def path_segment_problems(text: str, prefix: bool) -> list[str]:
    """Return the problems of a name that must only be usable in a URL: of RBAC objects."""
    if text in (".", ".."):
        return [f"may not be '{text}'"]
    return [f"may not contain '{letter}'" for letter in "/%" if letter in text]


def _finished(text: str, prefix: bool) -> str:
    """Return the prefix with a letter instead of a final dash, because generated letters follow the prefix."""
    return text[:-1] + "a" if prefix and text.endswith("-") else text


@lru_cache(maxsize=4096)
def label_key_problems(text: str) -> tuple[str, ...]:
    """Return the problems of a label key, an annotation key (in lower case), a taint key, a condition type."""
    prefix, slash, name = text.partition("/")
    if not slash:
        prefix, name = "", text
    elif "/" in name:
        return (
            f"a valid label key {_NAME_PART_TEXT} with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')",
        )
    problems = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif slash:
        problems += [f"prefix part {problem}" for problem in subdomain_problems(prefix)]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > LABEL_LENGTH:
        problems.append(f"name part must be no more than {LABEL_LENGTH} bytes")
    if not _qualified.fullmatch(name):
        problems.append(f"name part {_NAME_PART_TEXT}")
    return tuple(problems)


@lru_cache(maxsize=4096)
def label_value_problems(text: str) -> tuple[str, ...]:
    """Return the problems of a label value or taint value. An empty value is valid."""
    good = not text or _qualified.fullmatch(text)
    return (*_length(text, LABEL_LENGTH), *(() if good else (_VALUE_TEXT,)))


@lru_cache(maxsize=4096)
def identifier_problems(text: str) -> tuple[str, ...]:
    """Return the problems of a C identifier: the last part of attribute and capacity names."""
    return () if _identifier.fullmatch(text) else (_IDENTIFIER_TEXT,)


_version = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?", re.ASCII)
_STABILITY: Final = {None: 0, "beta": 1, "alpha": 2}


def version_order(name: str) -> tuple[int, int, int, str]:
    """Return a key that sorts API versions as Kubernetes prefers them: v2, v1, v1beta2, v1beta1, v1alpha1, others."""
    match = _version.fullmatch(name)
    if match is None:
        return (3, 0, 0, name)
    return (_STABILITY[match[2]], -int(match[1]), -int(match[3] or 0), "")
