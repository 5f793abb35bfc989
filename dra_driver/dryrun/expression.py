# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun cel`: what a selector means to Kubernetes, and what it says about each device."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.text import Text

from ..cel import (
    COST_LIMIT,
    MAX_BYTES,
    NEWEST,
    RELEASES,
    CompileError,
    Environment,
    EvaluationError,
    PublishedNames,
    Selector,
    compile_selector,
)
from ..command import InputError, output_option
from ..resource import Device, ResourceSlice
from .options import Subcommand, general_options
from .report import PlainTable, listed, plain_console, plain_table
from .sources import Origin, Source, opened, origin_options
from .whatif import WhatIf, what_if_options

REFUSED = 1
"""The exit code for an expression that the API server refuses."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device where it is published."""

    driver: str
    pool: str
    device: Device


@dataclass(frozen=True, slots=True)
class Answer:
    """What the expression says about a device: its value and what that cost, or the error."""

    candidate: Candidate
    value: bool | None
    cost: int | None
    error: str = ""
    kind: str = ""


@click.command(
    "cel",
    cls=Subcommand,
    short_help="Say what a CEL expression means, and what it selects.",
    examples=["dra-dryrun cel 'device.driver == \"gpu.nvidia.com\"'", "dra-dryrun cel --built-in EXPRESSION -o json"],
)
@click.argument("expression")
@origin_options
@what_if_options
@click.option(
    "--kubernetes-version",
    "release",
    type=click.Choice(RELEASES),
    default=NEWEST,
    show_default=True,
    help="The release whose functions and fields there are.",
)
@output_option(("table", "json"), None, "How the answer is printed.")
@general_options
def cel(
    expression: str,
    origin: Origin,
    what_if: WhatIf,
    release: str,
    output: str,
) -> int:
    """Say what a CEL EXPRESSION means as a device selector, and which devices it selects.

    Exits with 0 when the API server takes the expression, 1 when it does not, 2 when the input cannot be used.
    """
    if not _is_text(expression):
        raise InputError("EXPRESSION is not UTF-8 text: type it in a terminal that is set to UTF-8")
    with opened(origin) as place:
        source = place.gather(what_if)
    environment = Environment(release)
    refusal = _refusal(expression, Environment(release, stored=False))
    try:
        selector = compile_selector(expression, environment)
    except CompileError as error:
        return _print_refused(error, output, _mistake(expression))
    answers = [_ask(selector, one) for one in _candidates(source)]
    names = PublishedNames.of((one.driver, one.device) for one in _candidates(source))
    hints = [str(error) for error in selector.unknown_names(names)]
    if output == "json":
        click.echo(json.dumps(_encode(selector, refusal, hints, answers), indent=2))
    else:
        _print(selector, refusal, hints, answers, source.where)
    return REFUSED if refusal else 0


def _is_text(argument: str) -> bool:
    """Whether an argument was UTF-8: bytes that are not stand in it as lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in argument)


def _candidates(source: Source) -> list[Candidate]:
    return [
        Candidate(one.driver, one.pool.name, device)
        for one in source.objects
        if isinstance(one, ResourceSlice)
        for device in one.devices
    ]


def _refusal(expression: str, environment: Environment) -> str:
    """Why the API server would not take the expression in a new object; empty when it would."""
    if len(expression.encode()) > MAX_BYTES:
        return f"too long: {len(expression.encode())} bytes, at most {MAX_BYTES} are taken"
    try:
        cost = compile_selector(expression, environment).max_cost
    except CompileError as error:
        return str(error)
    return f"too complex: it may cost {cost}, more than {COST_LIMIT}" if cost > COST_LIMIT else ""


def _ask(selector: Selector, candidate: Candidate) -> Answer:
    try:
        value, cost = selector.evaluate(candidate.driver, candidate.device)
    except EvaluationError as error:
        return Answer(candidate, None, error.cost, error.message, error.kind)
    return Answer(candidate, value, cost)


_ASSIGNS = re.compile(r"""(["'])(?:\\.|(?!\1).)*\1|(?<![=!<>])=(?!=)""")
_QUANTITY = re.compile(r"device\.capacity\[[^]]*\]\.\w+\s*(>=|<=|>|<)")


def _mistake(expression: str) -> str:
    """A usual mistake in an expression that does not compile; empty where there is none."""
    if any(one[0] == "=" for one in _ASSIGNS.finditer(expression)):
        return "write == to compare; = is no operator of CEL"
    if _QUANTITY.search(expression):
        return "quantities are compared by methods: .compareTo(quantity('40Gi')) >= 0"
    return ""


def _print_refused(error: CompileError, output: str, mistake: str) -> int:
    if output == "json":
        click.echo(json.dumps({"compiles": False, "kind": error.kind, "error": error.message, "offset": error.offset}))
    else:
        click.echo(f"does not compile: {error}")
        if mistake:
            click.echo(f"hint: {mistake}")
    return REFUSED


def _print(selector: Selector, refusal: str, hints: Sequence[str], answers: Sequence[Answer], where: str) -> None:
    console = plain_console()
    costs = [answer.cost for answer in answers if answer.cost is not None]
    spent = f", {_span(costs)} for these devices" if costs else ""
    console.print(Text(f"devices from {where}", style="bold"))
    console.print(Text(f"type {selector.output_type}; cost at most {selector.max_cost}{spent} (limit {COST_LIMIT})"))
    if refusal:
        console.print(Text(f"the API server refuses it: {refusal}", style="red"))
    for hint in hints:
        console.print(Text(hint, style="yellow"))
    selected = sum(answer.value is True for answer in answers)
    console.print(Text(f"selects {selected} of {len(answers)} devices"))
    console.print(_table(answers))


def _span(costs: Sequence[int]) -> str:
    return str(costs[0]) if min(costs) == max(costs) else f"{min(costs)} to {max(costs)}"


def _table(answers: Sequence[Answer]) -> PlainTable:
    table = plain_table("COUNT", "DEVICES", "ANSWER")
    grouped: dict[str, list[str]] = {}
    for answer in answers:
        text = f"error: {answer.error}" if answer.value is None else str(answer.value).lower()
        grouped.setdefault(text, []).append(f"{answer.candidate.pool}/{answer.candidate.device.name}")
    for text, devices in sorted(grouped.items(), key=lambda one: one[0] != "true"):
        table.add_row(str(len(devices)), Text(listed(devices)), Text(text))
    return table


def _encode(selector: Selector, refusal: str, hints: Sequence[str], answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "compiles": True,
        "type": str(selector.output_type),
        "maxCost": selector.max_cost,
        "costLimit": COST_LIMIT,
        "refusedByApiServer": refusal or None,
        "hints": list(hints),
        "devices": [_encode_answer(answer) for answer in answers],
    }


def _encode_answer(answer: Answer) -> dict[str, Any]:
    where = {
        "driver": answer.candidate.driver,
        "pool": answer.candidate.pool,
        "device": answer.candidate.device.name,
        "cost": answer.cost,
    }
    if answer.value is None:
        return {**where, "error": answer.error, "kind": answer.kind}
    return {**where, "value": answer.value}
