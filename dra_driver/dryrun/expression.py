# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun cel`: evaluates a selector on each device, as Kubernetes does."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import click
from rich.text import Text

from ..process.command import InputError
from ..scheduler.allocator import Features
from ..scheduler.cel import (
    COST_LIMIT,
    MAX_BYTES,
    RELEASES,
    CompileError,
    Environment,
    EvaluationError,
    PublishedNames,
    Selector,
    compile_selector,
)
from .completion import complete_expression
from .lint.catalog import CandidateDevice, known_devices
from .options import Subcommand, general_options, interrupted, version_options
from .progress import progress
from .release import Rules
from .report import Json, Line, PlainTable, Verbatim, counted, format_option, listed, print_report
from .selectors import Blame, parts, usual_mistakes, values_read, version_names
from .sources import Origin, opened, origin_options
from .status import ExitStatus
from .whatif import WhatIf, what_if_options

_MOST_GROUPS: Final = 20
"""The number of lines in the table. Values such as UUIDs differ on each device."""

_Alike = tuple[str, str, tuple[tuple[str, str], ...]]
"""An answer, the part that is false, and the values that were found."""


@dataclass(frozen=True, slots=True)
class ExpressionAnswer:
    """The value of the expression for a device, or None and the error, and the cost of the evaluation.

    `part` is the first part of a chain of && that is false (empty if the expression is no chain or not false), and
    `values` has what it, or else the whole expression, reads of the device.
    """

    candidate: CandidateDevice
    value: bool | None
    cost: int | None
    values: Mapping[str, str]
    part: str = ""
    error: str = ""
    kind: str = ""

    @property
    def text(self) -> str:
        """The printed result: an error, or the value."""
        return f"error: {self.error}" if self.value is None else str(self.value).lower()


@click.command(
    "cel",
    cls=Subcommand,
    examples=["dra-dryrun cel 'device.driver == \"gpu.nvidia.com\"'", "dra-dryrun cel --built-in EXPRESSION -o json"],
)
@click.argument("expression", shell_complete=complete_expression)
@origin_options
@what_if_options
@version_options(RELEASES, "The Kubernetes release whose CEL functions and fields are available.")
@format_option("How the answer is printed: wide has all combinations of values.")
@general_options
def cel(
    expression: str,
    origin: Origin,
    what_if: WhatIf,
    rules: Rules,
    output: str,
) -> int:
    """Evaluate the CEL EXPRESSION as a selector on each device, and print the values that it found.

    The exit status is 0 if the API server accepts the expression, and 1 if it does not, or if the expression fails on
    every device: the scheduler gives up pods with such a selector. It is 2 if the input cannot be used.
    """
    if not _is_text(expression):
        raise InputError("EXPRESSION is not UTF-8 text: type it in a terminal that is set to UTF-8")
    with progress("reading the devices"), opened(origin, rules) as place:
        source = place.gather(what_if)
        release = place.release_among(RELEASES)
    lists = place.features.list_attributes
    environment = Environment(release, list_type_attributes=lists)
    refusal = _refusal(expression, Environment(release, list_type_attributes=lists, stored=False))
    every = known_devices(source.objects)
    candidates = _of_named_drivers(expression, every)
    mistakes = usual_mistakes(expression, version_names(candidate.device for candidate in candidates))
    try:
        selector = compile_selector(expression, environment)
    except CompileError as error:
        print_report(RefusedExpression(error, mistakes), output)
        return ExitStatus.DOES_NOT_FIT
    blame = Blame(lambda text, _: compile_selector(text, environment), Features())
    answers: list[ExpressionAnswer] = []
    with suppress(KeyboardInterrupt):
        answers.extend(_ask(selector, blame, candidate) for candidate in candidates)
    names = PublishedNames.of((candidate.driver, candidate.device) for candidate in candidates)
    hints = [*mistakes, *(str(error) for error in selector.unknown_names(names))]
    left_out = len(candidates) < len(every)
    drivers = ", ".join(sorted({answer.candidate.driver for answer in answers})) if left_out else ""
    report = ExpressionReport(selector, refusal, hints, answers, source.where, drivers)
    print_report(report, output)
    if len(answers) < len(candidates):
        return interrupted(f"{len(answers)} of {counted(len(candidates), 'device')} are answered")
    return ExitStatus.of(fits=not (refusal or report.fails))


def _is_text(argument: str) -> bool:
    """Whether an argument was UTF-8. Other bytes are lone surrogates in it."""
    return not any("\ud800" <= char <= "\udfff" for char in argument)


def _of_named_drivers(expression: str, candidates: list[CandidateDevice]) -> list[CandidateDevice]:
    """The devices of the drivers that the expression names; all if it names none. A request's selectors get only the
    devices that its class selects, so it is no error of theirs if they fail on devices of another driver.
    """
    named = {driver for driver in {candidate.driver for candidate in candidates} if driver in expression}
    return [candidate for candidate in candidates if candidate.driver in named] if named else candidates


def _refusal(expression: str, environment: Environment) -> str:
    """Why the API server would refuse the expression in a new object; empty if it would not."""
    if len(expression.encode()) > MAX_BYTES:
        return f"too long: {len(expression.encode())} bytes, at most {MAX_BYTES} are accepted"
    try:
        cost = compile_selector(expression, environment).max_cost
    except CompileError as error:
        return str(error)
    return f"too complex: it may cost {cost}, more than {COST_LIMIT}" if cost > COST_LIMIT else ""


def _ask(selector: Selector, blame: Blame, candidate: CandidateDevice) -> ExpressionAnswer:
    driver, device = candidate.driver, candidate.device
    values = values_read(selector, driver, device)
    try:
        value, cost = selector.evaluate(driver, device)
    except EvaluationError as error:
        return ExpressionAnswer(candidate, None, error.cost, values, error=error.message, kind=error.kind)
    if value or len(parts(selector.expression)) == 1:
        return ExpressionAnswer(candidate, value, cost, values)
    false = blame.false_part(selector.expression, driver, device)
    return ExpressionAnswer(candidate, value, cost, false.saw, false.text)


@dataclass(frozen=True, slots=True)
class RefusedExpression:
    """An expression that does not compile, and hints about it."""

    error: CompileError
    hints: Sequence[str]

    def lines(self, *, wide: bool) -> Iterator[Line]:  # a wide output has no more
        """The error and the hints."""
        # The line with the position stands below its place in the expression.
        yield from map(Verbatim, f"does not compile: {self.error}".splitlines())
        yield from (Text(f"hint: {hint}") for hint in self.hints)

    def document(self) -> Json:
        """The error as a plain dict."""
        error = self.error
        refused = {"compiles": False, "kind": error.kind, "error": error.message, "offset": error.offset}
        return {**refused, "hints": list(self.hints)}


@dataclass(frozen=True, slots=True)
class ExpressionReport:
    """The answers for devices from `where`. `refusal` says why the API server would refuse the expression, and
    `drivers` names the drivers of the devices if there are devices of others.
    """

    selector: Selector
    refusal: str
    hints: Sequence[str]
    answers: Sequence[ExpressionAnswer]
    where: str
    drivers: str = ""

    @property
    def fails(self) -> bool:
        """Whether the expression has no answer for any device."""
        return bool(self.answers) and all(answer.value is None for answer in self.answers)

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """The answers, grouped by answer and values. `wide` has all groups."""
        selector, answers = self.selector, self.answers
        costs = [answer.cost for answer in answers if answer.cost is not None]
        spent = f", {_span(costs)} for these devices" if costs else ""
        yield Text(f"devices from {self.where}", style="bold")
        yield Text(f"type {selector.output_type}; cost at most {selector.max_cost}{spent} (limit {COST_LIMIT})")
        if self.refusal:
            yield Text(f"the API server refuses it: {self.refusal}", style="red")
        for hint in self.hints:
            yield Text(f"hint: {hint}", style="yellow")
        selected = sum(answer.value is True for answer in answers)
        whose = f" of {self.drivers}" if self.drivers else ""
        yield Text(f"selects {selected} of {len(answers)} devices{whose}")
        if self.fails:
            yield Text("it fails on every device: the scheduler gives up pods with this selector", style="red")
        groups = _groups(answers)
        shown = groups if wide else groups[:_MOST_GROUPS]
        table = PlainTable("Count", "Answer", "Found", "Devices")
        for (text, part, values), devices in shown:
            found = ", ".join(f"{name}={value}" for name, value in values)
            table.add_row(len(devices), f"{text}: {part}" if part else text, found, listed(devices))
        if groups:
            yield table
        if len(shown) < len(groups):
            more = len(groups) - len(shown)
            yield Text(f"and {more} more combinations of values (all of them with -o wide)")

    def document(self) -> Json:
        """The answers as plain dicts and lists."""
        return {
            "compiles": True,
            "type": str(self.selector.output_type),
            "maxCost": self.selector.max_cost,
            "costLimit": COST_LIMIT,
            "refusedByApiServer": self.refusal or None,
            "hints": list(self.hints),
            "devices": [_encode_answer(answer) for answer in self.answers],
        }


def _span(costs: Sequence[int]) -> str:
    return str(costs[0]) if min(costs) == max(costs) else f"{min(costs)} to {max(costs)}"


def _groups(answers: Sequence[ExpressionAnswer]) -> list[tuple[_Alike, list[str]]]:
    """The devices, grouped by answer and values. Selected devices are first."""
    grouped: dict[_Alike, list[str]] = {}
    for answer in answers:
        key = (answer.text, answer.part, tuple(answer.values.items()))
        grouped.setdefault(key, []).append(str(answer.candidate))
    return sorted(grouped.items(), key=lambda item: (item[0][0] != "true", -len(item[1])))


def _encode_answer(answer: ExpressionAnswer) -> Json:
    where = {
        "driver": answer.candidate.driver,
        "pool": answer.candidate.pool,
        "device": answer.candidate.device.name,
        "cost": answer.cost,
        "values": dict(answer.values),
    }
    if answer.value is None:
        return {**where, "error": answer.error, "kind": answer.kind}
    return {**where, "value": answer.value, "falsePart": answer.part or None}
