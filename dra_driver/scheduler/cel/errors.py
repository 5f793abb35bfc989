# SPDX-License-Identifier: Apache-2.0
"""Errors in expressions, and how users see them.

Callers of this package see `CompileError` and `EvaluationError`. Each has a kind (the classes of errors of
tests/golden/cel/README.md), a message, and the place in the expression.

`ErrorValue` and `Abort` exist only during an evaluation. `ErrorValue` is CEL's error value: `||` and `&&` may ignore
it. `Abort` ends the evaluation immediately, also inside of `||` and `&&`.
"""

from dataclasses import dataclass, field

from ...errors import DriverError

_WIDTH = 100


@dataclass(eq=False)
class CelError(DriverError):
    """An expression is invalid, or cannot be evaluated for a device.

    `offset` is the place of the error in code points. None stands for the whole expression.
    """

    kind: str
    message: str
    expression: str
    offset: int | None = None

    def __str__(self) -> str:
        if self.offset is None:
            return self.message
        line, column = position(self.expression, self.offset)
        where = f"line {line}, column {column}" if "\n" in self.expression else f"column {column}"
        return f"{self.message} ({where})\n{excerpt(self.expression, self.offset)}"


@dataclass(frozen=True, slots=True)
class CelIssue:
    """One error that the parser or the type checker found."""

    kind: str
    message: str
    offset: int


@dataclass(eq=False)
class CompileError(CelError):
    """The expression is refused.

    `internal` marks errors of the last step, when the tree becomes a program. The API server reports them as internal
    errors and not as invalid expressions. `issues` lists all errors, the first one first.
    """

    internal: bool = field(default=False, kw_only=True)
    issues: tuple[CelIssue, ...] = field(default=(), kw_only=True)


@dataclass(eq=False)
class EvaluationError(CelError):
    """The evaluation of the expression failed for one device.

    `cost` is the cost of the evaluation up to the error. It is None if the evaluation did not start. `hint` is the end
    of the message that Kubernetes does not say: which names the device has.
    """

    cost: int | None = field(default=None, kw_only=True)
    hint: str = field(default="", kw_only=True)


@dataclass(eq=False)
class ErrorValue(Exception):  # noqa: N818 - CEL's error value, not an error of this program
    """An error as a value of an evaluation. Functions raise it. Operators return it or ignore it."""

    kind: str
    message: str
    offset: int | None = None


@dataclass(eq=False)
class Abort(Exception):  # noqa: N818 - ends an evaluation, on purpose
    """The evaluation ends: it exceeded the cost limit, or Kubernetes' own evaluator would panic here.

    `cost` is the cost of the step that ended the evaluation.
    """

    kind: str
    message: str
    cost: int = field(default=0, kw_only=True)


def position(expression: str, offset: int) -> tuple[int, int]:
    """The line and the column of an offset. Both count from 1."""
    before = expression[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def excerpt(expression: str, offset: int) -> str:
    """The line of the expression that contains `offset`, with a caret below the place. Long lines are shortened."""
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
