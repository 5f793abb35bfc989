# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun nodes` and `dra-dryrun devices`: what there is."""

from collections.abc import Sequence
from typing import Any, Final

import click
from rich.text import Text

from ..allocation import Cluster
from ..command import output_option
from ..resource import Node, ResourceSlice
from .options import Subcommand, general_options
from .progress import progress
from .report import PlainTable, plain_console, to_json
from .report.devices import attribute, memory
from .sources import Origin, Source, opened, origin_options
from .whatif import WhatIf, what_if_options

_FORMATS: Final = ("table", "json")
_NODES: Final = ("dra-dryrun nodes", "dra-dryrun nodes --context production -o json")
_DEVICES: Final = ("dra-dryrun devices", "dra-dryrun devices --built-in -o json")

Row = dict[str, Any]


@click.command("nodes", cls=Subcommand, examples=_NODES, short_help="List the nodes with how much of them is free.")
@origin_options
@what_if_options
@output_option(_FORMATS, None, "How the nodes are printed.")
@general_options
def nodes(origin: Origin, what_if: WhatIf, output: str) -> None:
    """List the nodes: how many devices they publish, and how many of these are in use."""
    source = _read(origin, what_if)
    by_node = {one.name: [0, 0] for one in source.objects if isinstance(one, Node)}
    for row in _devices(source):
        if row["node"] in by_node:
            by_node[row["node"]][0] += 1
            by_node[row["node"]][1] += bool(row["heldBy"])
    rows = [{"node": name, "devices": total, "inUse": used} for name, (total, used) in by_node.items()]
    _print(source, rows, output)


@click.command("devices", cls=Subcommand, examples=_DEVICES, short_help="List the devices with who holds them.")
@origin_options
@what_if_options
@output_option(_FORMATS, None, "How the devices are printed.")
@general_options
def devices(origin: Origin, what_if: WhatIf, output: str) -> None:
    """List the devices of ResourceSlices, what they are, and the claims that hold them."""
    source = _read(origin, what_if)
    _print(source, _devices(source), output)


def _read(origin: Origin, what_if: WhatIf) -> Source:
    with progress("reading the devices"), opened(origin) as place:
        return place.gather(what_if)


def _devices(source: Source) -> list[Row]:
    held: dict[tuple[str, str, str], list[str]] = {}
    for claim in Cluster.of(source.objects).claims:
        for one in claim.allocation.results if claim.allocation is not None else ():
            held.setdefault((one.driver, one.pool, one.device), []).append(str(claim.metadata))
    return [
        {
            "node": one.node_name or device.node_name or "",
            "driver": one.driver,
            "pool": one.pool.name,
            "device": device.name,
            "model": attribute(device, "productName"),
            "profile": attribute(device, "profile"),
            "memory": memory(device),
            "heldBy": held.get((one.driver, one.pool.name, device.name), []),
        }
        for one in source.objects
        if isinstance(one, ResourceSlice)
        for device in one.devices
    ]


def _print(source: Source, rows: Sequence[Row], output: str) -> None:
    if output == "json":
        click.echo(to_json({"source": source.where, "items": list(rows)}))
        return
    console = plain_console()
    console.print(Text(f"from {source.where}", style="bold"))
    for warning in source.warnings:
        console.print(Text(warning, style="yellow"))
    if not rows:
        console.print(Text("there are none"))
        return
    columns = [name for name in rows[0] if name not in _told_elsewhere(rows)]
    table = PlainTable(*("".join(f" {c}" if c.isupper() else c for c in name).upper() for name in columns))
    for row in rows:
        cells = [row[name] for name in columns]
        table.add_row(*(", ".join(cell) if isinstance(cell, list) else str(cell) or "-" for cell in cells))
    console.print(table)


def _told_elsewhere(rows: Sequence[Row]) -> set[str]:
    """Columns that a person does not need: pools with the names of their nodes, and one driver for all devices."""
    if "driver" not in rows[0]:
        return set()
    same_names = all(row["pool"] == row["node"] for row in rows)
    one_driver = len({row["driver"] for row in rows}) == 1
    return {name for name, left_out in (("pool", same_names), ("driver", one_driver)) if left_out}
