# SPDX-License-Identifier: Apache-2.0
"""Verdicts for people (tables) and for programs (JSON)."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..allocation import Check
from .conjuncts import shown
from .evaluate import Placed, Verdict
from .explain import Explanation, Removal

_WIDEST: Final = 10_000
"""Columns. Longer than any line: cells are never cut or folded, so that output can be searched and cut."""
_SHOWN: Final = 6
"""Kinds of nodes of which it is said why they do not fit."""
_NAMED: Final = 3
"""Nodes or devices named one by one, of those of which the same is said."""


def print_tables(verdicts: Sequence[Verdict], where: str, nodes: int, *, wide: bool = False) -> None:
    """A headline for each verdict; below it the devices, or what is wrong with which nodes. As wide as it has to be."""
    console = plain_console()
    console.print(Text(f"devices of {_counted(nodes, 'node')}, from {where}", style="dim"))
    for verdict in verdicts:
        if verdict.node is not None:
            others = len(verdict.fitting) - 1
            line = Text.assemble(("fits", "bold green"), f"  {verdict.demand.name}: on node ", (verdict.node, "bold"))
            console.print(line + Text(f", and on {_counted(others, 'other node')}" if others else ""))
            console.print(_devices(verdict.placed, wide))
        else:
            line = Text.assemble(("fits nowhere", "bold red"), f"  {verdict.demand.name}")
            console.print(line + Text(f": none of {_counted(nodes, 'node')} can have it"))
            for line in _refusals(verdict):
                console.print(line)


def to_json(verdicts: Sequence[Verdict]) -> str:
    """The same as a JSON document."""
    return json.dumps({"demands": [_encode(verdict) for verdict in verdicts]}, indent=2)


def _devices(placed: Sequence[Placed], wide: bool) -> Table:
    table = plain_table("CLAIM", "REQUEST", "DEVICE", "PROFILE", "MEMORY", "MODEL", *(("GPU",) if wide else ()))
    for one in placed:
        capacity = one.device.capacity if one.device is not None else {}
        memory = str(capacity["memory"].value) if "memory" in capacity else "-"
        row = [one.claim, one.request, one.name, _attribute(one, "profile") or "-", memory]
        row.append(_attribute(one, "productName") or "-")
        if wide:
            row.append(_attribute(one, "parentUUID") or _attribute(one, "uuid") or "-")
        table.add_row(*map(Text, row))
    return table


def _refusals(verdict: Verdict) -> Iterator[Text]:
    """Why each kind of node cannot have it, the closest first, and what would help."""
    for refused in verdict.refused[:_SHOWN]:
        explanation = refused.explanation
        who = "every node" if explanation.fatal else listed(refused.nodes)
        yield Text(f"  {who}", style="bold") + Text(f": {explanation.error}" if explanation.error else "", style="")
        for pool in explanation.pools:
            yield Text(f"    {pool}")
        for request in explanation.requests:
            qualify = f"{request.left} of {_counted(request.considered, 'device')} qualify"
            yield Text(f"    request {request.request} wants {request.wanted}, {qualify}")
            yield from (Text(f"      {line}") for removal in request.removals for line in _removal(removal))
    more = len(verdict.refused) - _SHOWN
    if more > 0:
        yield Text(f"  and {_counted(more, 'more kind')} of nodes (all of them with -o json)")
    if verdict.changes:
        yield Text("  it would fit after one of these changes:")
        yield from (Text(f"    {change.text} (then on {change.node})", style="green") for change in verdict.changes)


def _removal(removal: Removal) -> Iterator[str]:
    yield f"{removal.devices:4} {removal.text}"
    if removal.saw:
        seen = "; ".join(value if count == removal.devices else f"{value} ({count})" for value, count in removal.saw)
        yield f"     saw {seen}" if removal.check is Check.SELECTOR else f"     {seen}"


def plain_console() -> Console:
    """Standard output, as wide as it has to be."""
    console = Console(highlight=False)
    console.width = _WIDEST
    return console


def plain_table(*headings: str) -> Table:
    """A table without lines whose cells are never cut."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _attribute(placed: Placed, name: str) -> str:
    value = placed.device.attributes.get(name) if placed.device is not None else None
    return shown(value) if value is not None else ""


def _encode(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.demand.name,
        "fits": verdict.node is not None,
        "node": verdict.node,
        "fittingNodes": list(verdict.fitting),
        "devices": [
            {"claim": one.claim, "request": one.request, "pool": one.pool, "device": one.name} for one in verdict.placed
        ],
        "refused": [{"nodes": list(one.nodes), **_encode_explanation(one.explanation)} for one in verdict.refused],
        "changes": [{"change": one.text, "node": one.node} for one in verdict.changes],
    }


def _encode_explanation(explanation: Explanation) -> dict[str, Any]:
    return {
        "error": explanation.error or None,
        "fatal": explanation.fatal,
        "pools": list(explanation.pools),
        "requests": [
            {
                "claim": request.claim,
                "request": request.request,
                "wanted": request.wanted,
                "considered": request.considered,
                "qualify": request.left,
                "removed": [
                    {
                        "check": removal.check.value,
                        "reason": removal.text,
                        "devices": removal.devices,
                        "saw": [{"value": value, "devices": count} for value, count in removal.saw],
                    }
                    for removal in request.removals
                ],
            }
            for request in explanation.requests
        ],
    }
