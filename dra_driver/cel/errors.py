# SPDX-License-Identifier: Apache-2.0
"""Errors in expressions, and how they are shown to users.

`CompileError` and `EvaluationError` are what callers see: a kind (the coarse classes of
tests/golden/cel/README.md), a message, and the place in the expression. `ErrorValue` and `Abort` live
inside an evaluation: a fault is CEL's error value, which `||` or `&&` may absorb; an abort ends the
evaluation at once, whatever stands around it.
"""

from dataclasses import dataclass

from ..errors import DriverError


class CelError(DriverError):
    """An expression that cannot be used, or cannot be answered for a device.

    `kind` is the class of error, `offset` the place in code points (None: the whole expression).
    """

    def __init__(self, kind: str, message: str, expression: str, offset: int | None = None) -> None:
        super().__init__(kind, message, expression, offset)
        self.kind = kind
        self.message = message
        self.expression = expression
        self.offset = offset

    def __str__(self) -> str:
        if self.offset is None:
            return self.message
        line, column = position(self.expression, self.offset)
        where = f"line {line}, column {column}" if "\n" in self.expression else f"column {column}"
        return f"{self.message} ({where})\n{excerpt(self.expression, self.offset)}"


@dataclass(frozen=True, slots=True)
class Issue:
    """One finding of the parser or the type checker."""

    kind: str
    message: str
    offset: int


class CompileError(CelError):
    """The expression is refused.

    `internal` tells a failure while the program is planned, which the API server reports as its own
    error, from an invalid expression. `issues` has every finding, the first one first.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        expression: str,
        offset: int | None = None,
        *,
        internal: bool = False,
        issues: tuple[Issue, ...] = (),
    ) -> None:
        super().__init__(kind, message, expression, offset)
        self.internal = internal
        self.issues = issues


class EvaluationError(CelError):
    """The expression has no answer for one device.

    `cost` is what the evaluation had cost so far, None when it did not begin.
    """

    def __init__(
        self, kind: str, message: str, expression: str, offset: int | None = None, *, cost: int | None = None
    ) -> None:
        super().__init__(kind, message, expression, offset)
        self.cost = cost


class ErrorValue(Exception):  # noqa: N818 - CEL's error value, not an error of this program
    """An error as a value of an evaluation. Functions raise it, operators pass it on or absorb it."""

    def __init__(self, kind: str, message: str, offset: int | None = None) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.offset = offset


class Abort(Exception):  # noqa: N818 - ends an evaluation, on purpose
    """The evaluation ends here: the cost limit, or what makes Kubernetes' own evaluator panic.

    `cost` is what the step that ended it would have cost.
    """

    def __init__(self, kind: str, message: str, *, cost: int = 0) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.cost = cost


def position(expression: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both from 1."""
    before = expression[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


_WIDTH = 100


def excerpt(expression: str, offset: int) -> str:
    """The line of the expression that holds `offset`, and a caret under it. Long lines are cut around the place."""
    start = expression.rfind("\n", 0, offset) + 1
    end = expression.find("\n", offset)
    line = expression[start : end if end >= 0 else len(expression)].replace("\t", " ")
    column = offset - start
    if len(line) > _WIDTH:
        first = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
        cut = line[first : first + _WIDTH]
        line = ("…" if first else "") + cut + ("…" if first + _WIDTH < len(line) else "")
        column += (1 if first else 0) - first
    return f"  {line}\n  {' ' * column}^"
