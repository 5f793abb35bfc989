# SPDX-License-Identifier: Apache-2.0
"""matches(), find() and findAll() (cel-go's `common/stdlib`, k8s.io/apiserver `pkg/cel/library/regex.go`)."""

from collections.abc import Iterator, Sequence

from .. import costs, effort
from ..declarations import Function, Library, Overload
from ..operands import CallEstimate, Operand, matching
from ..patterns import compiled, encoded
from ..sizes import Size
from ..types import BOOL, INT, STRING, list_of
from ..values import core_cost_size, cost_size, no_such_overload

_STRINGS = list_of(STRING)


def _matches(text: object, pattern: object) -> bool:
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise no_such_overload("matches", text, pattern)
    return compiled(pattern).search(encoded(text)) is not None


def _find(text: str, pattern: str) -> str:
    return next(_found(text, pattern), "")


def _find_all(text: str, pattern: str, limit: int = -1) -> list[object]:
    found: list[object] = []
    if limit == 0:
        return found
    for match in _found(text, pattern):
        found.append(match)
        effort.spend(1)
        if len(found) == limit:
            break
    return found


def _found(text: str, pattern: str) -> Iterator[str]:
    octets = encoded(text)
    return (octets[start:end].decode() for start, end in compiled(pattern).spans(octets))


def _match_cost(arguments: Sequence[object], result: object) -> int:
    return costs.matching(core_cost_size(arguments[0]), core_cost_size(arguments[1]))


def _search_cost(arguments: Sequence[object], result: object) -> int:
    return costs.matching(cost_size(arguments[0]), cost_size(arguments[1]))


def _match_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate | None:
    return CallEstimate(matching(target, arguments[0])) if target else None


def _search_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate | None:
    return CallEstimate(matching(target, arguments[0]), Size(0, target.size.high)) if target else None


MATCHES = Library(
    functions=(
        Function(
            "matches",
            (
                Overload("matches", (STRING, STRING), BOOL, _matches, guarded=False),
                Overload(
                    "matches_string",
                    (STRING, STRING),
                    BOOL,
                    _matches,
                    member=True,
                    guarded=False,
                    cost=_match_cost,
                    estimate=_match_estimate,
                ),
            ),
        ),
    )
)

REGEX = Library(
    functions=(
        Function(
            "find",
            (Overload("string_find_string", (STRING, STRING), STRING, _find, member=True),),
            cost=_search_cost,
            estimate=_search_estimate,
        ),
        Function(
            "findAll",
            (
                Overload("string_find_all_string", (STRING, STRING), _STRINGS, _find_all, member=True),
                Overload("string_find_all_string_int", (STRING, STRING, INT), _STRINGS, _find_all, member=True),
            ),
            cost=_search_cost,
            estimate=_search_estimate,
        ),
    )
)
