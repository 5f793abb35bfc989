# SPDX-License-Identifier: Apache-2.0
"""Verdicts for people (tables) and for programs (JSON)."""

import json
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..resource import AttributeValue, Version
from .evaluate import Placed, Verdict

_WIDEST: Final = 10_000
"""Columns. Longer than any line: cells are never cut or folded, so that output can be searched and cut."""
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
            console.print(_refusals(verdict))


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


def _refusals(verdict: Verdict) -> Table:
    table = plain_table("NODES", "WHY")
    nodes_of: dict[tuple[str, bool], list[str]] = {}
    for one in verdict.refused:
        nodes_of.setdefault((one.reason, one.fatal), []).append(one.node)
    for (reason, fatal), nodes in nodes_of.items():
        table.add_row(Text("every node" if fatal else listed(nodes)), Text(reason))
    return table


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
    return _plain(value) if value is not None else ""


def _plain(value: AttributeValue) -> str:
    return value.text if isinstance(value, Version) else str(value)


def _encode(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.demand.name,
        "fits": verdict.node is not None,
        "node": verdict.node,
        "fittingNodes": list(verdict.fitting),
        "devices": [
            {"claim": one.claim, "request": one.request, "pool": one.pool, "device": one.name} for one in verdict.placed
        ],
        "refused": [{"node": one.node, "reason": one.reason, "fatal": one.fatal} for one in verdict.refused],
    }
