# SPDX-License-Identifier: Apache-2.0
"""attribute.includes(value), for attributes that may be lists (k8s.io/dynamic-resource-allocation `cel/compile.go`)."""

from collections.abc import Sequence
from typing import Final

from ..declarations import Function, Library, Overload
from ..errors import Fault
from ..operands import CallEstimate, Operand
from ..types import BOOL, DYN
from ..values import same

_MOST_ITEMS: Final = 48


def _includes(target: object, value: object) -> bool:
    if not isinstance(target, list):
        return same(target, value)
    if any(same(item, value) for item in target[:_MOST_ITEMS]):
        return True
    if len(target) > _MOST_ITEMS:
        raise Fault("includes_limit", f"includes() cannot be applied to lists longer than {_MOST_ITEMS} values")
    return False


def _estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(_MOST_ITEMS)


INCLUDES = Library(
    functions=(
        Function(
            "includes",
            (Overload("dra_includes_dyn_dyn", (DYN, DYN), BOOL, _includes, member=True, estimate=_estimate),),
        ),
    )
)
