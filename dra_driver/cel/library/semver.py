# SPDX-License-Identifier: Apache-2.0
"""Functions on semantic versions (k8s.io/apiserver `pkg/cel/library/semverlib.go`, version 1)."""

from collections.abc import Sequence

from .. import costs
from ..declarations import Function, Implementation, Library, Overload
from ..errors import Fault
from ..operands import CallEstimate, Operand, traversal
from ..semvers import Semver, parse, parse_loosely
from ..types import BOOL, INT, SEMVER, STRING, Type

_NORMALIZING = 33
"""The release that brought the second argument."""


def _semver(text: str, normalize: bool = False) -> Semver:
    return parse_loosely(text) if normalize else parse(text)


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        _semver(text, normalize)
    except Fault:
        return False
    return True


def _parse_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(traversal(arguments[0]))


def _member(name: str, identifier: str, parameters: tuple[Type, ...], result: Type, call: Implementation) -> Function:
    return Function(name, (Overload(identifier, (SEMVER, *parameters), result, call, member=True),))


SEMVERS = Library(
    functions=(
        Function(
            "semver",
            (
                Overload("string_to_semver", (STRING,), SEMVER, _semver),
                Overload("string_bool_to_semver", (STRING, BOOL), SEMVER, _semver, since=_NORMALIZING),
            ),
            cost=costs.read_first,
            estimate=_parse_estimate,
        ),
        Function(
            "isSemver",
            (
                Overload("is_semver_string", (STRING,), BOOL, _is_semver),
                Overload("is_semver_string_bool", (STRING, BOOL), BOOL, _is_semver, since=_NORMALIZING),
            ),
            cost=costs.read_first,
            estimate=_parse_estimate,
        ),
        _member("compareTo", "semver_compare_to", (SEMVER,), INT, Semver.compare),
        _member("isGreaterThan", "semver_is_greater_than", (SEMVER,), BOOL, lambda one, other: one.compare(other) > 0),
        _member("isLessThan", "semver_is_less_than", (SEMVER,), BOOL, lambda one, other: one.compare(other) < 0),
        _member("major", "semver_major", (), INT, lambda version: version.major),
        _member("minor", "semver_minor", (), INT, lambda version: version.minor),
        _member("patch", "semver_patch", (), INT, lambda version: version.patch),
    )
)
