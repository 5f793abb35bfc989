# SPDX-License-Identifier: Apache-2.0
"""format.dns1123Label() and its like, with validate() (k8s.io/apiserver `pkg/cel/library/format.go`)."""

from collections.abc import Iterator, Sequence
from typing import Final

from .. import costs
from ..declarations import Function, Implementation, Library, Overload
from ..named_formats import FORMATS, NamedFormat
from ..operands import CallEstimate, Operand, traversal
from ..scalars import NONE, OptionalValue
from ..sizes import scaled
from ..types import NAMED_FORMAT, STRING, list_of, optional_of
from ..values import cost_size

_LONGEST_PATTERN: Final = 128 * 0.25


def _named(name: str) -> OptionalValue:
    known = FORMATS.get(name)
    return OptionalValue(known) if known else NONE


def _validate(named: NamedFormat, text: str) -> OptionalValue:
    wrong = named.check(text)
    return OptionalValue(wrong) if wrong else NONE


def _validate_cost(arguments: Sequence[object], result: object) -> int:
    named = arguments[0]
    return costs.matching(cost_size(arguments[1]), named.pattern_size) if isinstance(named, NamedFormat) else 1


def _validate_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(scaled(traversal(arguments[0]), _LONGEST_PATTERN))


def _getting(named: NamedFormat) -> Implementation:
    return lambda: named


def _getters() -> Iterator[Function]:
    for name, named in FORMATS.items():
        function = f"format.{name}"
        yield Function(function, (Overload(function, (), NAMED_FORMAT, _getting(named)),))


FORMAT = Library(
    functions=(
        *_getters(),
        Function("format.named", (Overload("format-named", (STRING,), optional_of(NAMED_FORMAT), _named),)),
        Function(
            "validate",
            (
                Overload(
                    "format-validate",
                    (NAMED_FORMAT, STRING),
                    optional_of(list_of(STRING)),
                    _validate,
                    member=True,
                    cost=_validate_cost,
                    estimate=_validate_estimate,
                ),
            ),
        ),
    )
)
