# SPDX-License-Identifier: Apache-2.0
"""&&, ||, !, ?: and the test that loops end by (cel-go's `common/stdlib`).

The compiler evaluates all but `!` itself, since they do not always evaluate their operands.
"""

from ..declarations import Function, Library, Overload
from ..types import BOOL, parameter
from ..values import no_such_overload

_A = parameter("A")


def _not(value: object) -> object:
    if value.__class__ is bool:
        return not value
    raise no_such_overload()


LOGIC = Library(
    functions=(
        Function("_?_:_", (Overload("conditional", (BOOL, _A, _A), _A),)),
        Function("_&&_", (Overload("logical_and", (BOOL, BOOL), BOOL),)),
        Function("_||_", (Overload("logical_or", (BOOL, BOOL), BOOL),)),
        Function("!_", (Overload("logical_not", (BOOL,), BOOL),), dispatch=_not),
        Function("@not_strictly_false", (Overload("not_strictly_false", (BOOL,), BOOL),)),
    )
)
