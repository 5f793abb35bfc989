# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' named formats, such as format.dns1123Label(), and validate().

Expressions can read the errors that validate() returns, so the texts are those of the API server. Follows
k8s.io/apiserver `pkg/cel/library/format.go`, k8s.io/apimachinery `pkg/util/validation`, and `strfmt` of
k8s.io/kube-openapi.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..declarations import CelLibrary, Cost, Function, function, method
from ..sizes import CallEstimate, Operand, scaled, traversal
from ..types import NAMED_FORMAT, STRING, list_of, optional_of
from .network import URLError, parse_request
from .time import day_of
from .values import NONE, Extension, OptionalValue, cost_size, matching_cost

Check = Callable[[str], list[str]]
"""Returns the errors in a text. The list is empty if the text has the format."""

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = f"{_LABEL}(\\.{_LABEL})*"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_KEY: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE: Final = f"({_KEY})?"
_BASE64: Final = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"
_UUID: Final = "(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})", re.ASCII)
_LONGEST_LABEL: Final = 63
_LONGEST_SUBDOMAIN: Final = 253

_ALPHANUMERIC: Final = "and must start and end with an alphanumeric character"

_LONGEST_PATTERN: Final = 128 * 0.25


@dataclass(frozen=True, slots=True, eq=False)
class NamedFormat(Extension):
    """A format. `pattern_size` is the size of its regular expression in costs."""

    name: str
    check: Check
    pattern_size: int
    cel_type = NAMED_FORMAT
    hashable = False

    @property
    def identity(self) -> object:
        return self.name

    def unwrapped(self) -> object:
        return self


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.ASCII) is not None


def _too_long(text: str, longest: int, unit: str) -> list[str]:
    size = len(text.encode(errors="replace"))
    return [f"must be no more than {longest} {unit}"] if size > longest else []


def _unlike(what: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{what} (e.g. {shown}regex used for validation is '{pattern}')"


_NOT_A_LABEL: Final = _unlike(
    f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', {_ALPHANUMERIC}",
    _LABEL,
    "my-name",
    "123-abc",
)
_NOT_A_SUBDOMAIN: Final = _unlike(
    f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', {_ALPHANUMERIC}",
    _SUBDOMAIN,
    "example.com",
)
_NOT_A_LABEL_1035: Final = _unlike(
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character",
    _LABEL_1035,
    "my-name",
    "abc-123",
)
_NOT_A_KEY: Final = _unlike(
    f"must consist of alphanumeric characters, '-', '_' or '.', {_ALPHANUMERIC}", _KEY, "MyName", "my.name", "123-abc"
)
_NOT_A_VALUE: Final = _unlike(
    f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', {_ALPHANUMERIC}",
    _VALUE,
    "MyValue",
    "my_value",
    "12345",
)


def _label(text: str) -> list[str]:
    found = _too_long(text, _LONGEST_LABEL, "characters")
    if not _matches(_LABEL, text):
        found.append("must not contain dots" if _matches(_SUBDOMAIN, text) else _NOT_A_LABEL)
    return found


def _subdomain(text: str, unit: str = "characters") -> list[str]:
    found = _too_long(text, _LONGEST_SUBDOMAIN, unit)
    return found if _matches(_SUBDOMAIN, text) else [*found, _NOT_A_SUBDOMAIN]


def _label_1035(text: str) -> list[str]:
    found = _too_long(text, _LONGEST_LABEL, "characters")
    return found if _matches(_LABEL_1035, text) else [*found, _NOT_A_LABEL_1035]


def _as_prefix(check: Check) -> Check:
    """The check for the prefix of a name, which may end with a dash."""

    def check_prefix(text: str) -> list[str]:
        octets = text.encode(errors="replace")
        if len(octets) > 1 and octets.endswith(b"-"):
            text = octets[:-2].decode(errors="replace") + "a"
        return check(text)

    return check_prefix


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        example = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key {_NOT_A_KEY} {example}"]
    found: list[str] = []
    if slash and not prefix:
        found.append("prefix part must be non-empty")
    elif slash:
        found += [f"prefix part {wrong}" for wrong in _subdomain(prefix, "bytes")]
    if not name:
        found.append("name part must be non-empty")
    else:
        found += [f"name part {wrong}" for wrong in _too_long(name, _LONGEST_LABEL, "bytes")]
    return found if _matches(_KEY, name) else [*found, f"name part {_NOT_A_KEY}"]


def _label_value(text: str) -> list[str]:
    found = _too_long(text, _LONGEST_LABEL, "bytes")
    return found if _matches(_VALUE, text) else [*found, _NOT_A_VALUE]


def _uri(text: str) -> list[str]:
    try:
        parse_request(text)
    except URLError as error:
        return [str(error)]
    return []


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = (int(group) for group in match.groups())
    return day_of(year, month, day) is not None


def _is_datetime(text: str) -> bool:
    date, t, rest = text.lower().partition("t")
    match = _TIME.fullmatch(rest.partition("t")[0])
    if not t or not _is_date(date) or match is None:
        return False
    return match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


def _unless(holds: Callable[[str], bool], wrong: str) -> Check:
    return lambda text: [] if holds(text) else [wrong]


_FORMATS: Final[tuple[tuple[str, str, Check, int], ...]] = (
    ("dns1123Label", "DNS1123Label", _label, 30),
    ("dns1123Subdomain", "DNS1123Subdomain", _subdomain, 60),
    ("dns1035Label", "DNS1035Label", _label_1035, 30),
    ("qualifiedName", "QualifiedName", _qualified_name, 60),
    ("dns1123LabelPrefix", "DNS1123LabelPrefix", _as_prefix(_label), 30),
    ("dns1123SubdomainPrefix", "DNS1123SubdomainPrefix", _as_prefix(_subdomain), 60),
    ("dns1035LabelPrefix", "DNS1035LabelPrefix", _as_prefix(_label_1035), 30),
    ("labelValue", "LabelValue", _label_value, 40),
    ("uri", "URI", _uri, 1103),
    ("uuid", "uuid", _unless(lambda text: _matches(_UUID, text), "does not match the UUID format"), 70),
    ("byte", "byte", _unless(lambda text: _matches(_BASE64, text), "invalid base64"), 84),
    ("date", "date", _unless(_is_date, "invalid date"), 71),
    ("datetime", "datetime", _unless(_is_datetime, "invalid datetime"), 71),
)

_NAMED_FORMATS: Final[Mapping[str, NamedFormat]] = {
    function: NamedFormat(name, check, pattern_size) for function, name, check, pattern_size in _FORMATS
}
"""The formats by the name of their function: `format.NAME()`."""


def _named(name: str) -> OptionalValue:
    known = _NAMED_FORMATS.get(name)
    return OptionalValue(known) if known else NONE


def _validate(named: NamedFormat, text: str) -> OptionalValue:
    wrong = named.check(text)
    return OptionalValue(wrong) if wrong else NONE


def _validate_cost(arguments: Sequence[object], result: object) -> int:
    named = arguments[0]
    return matching_cost(cost_size(arguments[1]), named.pattern_size) if isinstance(named, NamedFormat) else 1


def _validate_estimate(named: Operand, text: Operand) -> CallEstimate:
    return CallEstimate(scaled(traversal(text), _LONGEST_PATTERN))


def _getter(name: str, named: NamedFormat) -> Function:
    return function(name, (name, (), NAMED_FORMAT, lambda: named))


FORMAT = CelLibrary(
    *(_getter(f"format.{name}", named) for name, named in _NAMED_FORMATS.items()),
    function("format.named", ("format-named", (STRING,), optional_of(NAMED_FORMAT), _named)),
    method(
        "validate",
        ("format-validate", (NAMED_FORMAT, STRING), optional_of(list_of(STRING)), _validate),
        cost=Cost(_validate_cost, _validate_estimate),
    ),
)
