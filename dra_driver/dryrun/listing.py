# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun nodes` and `dra-dryrun devices`: what a cluster has, and what of it is in use."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.text import Text

from ..kube.resource import Node, ResourceSlice
from ..process.command import InputError
from ..scheduler.allocator import Cluster
from .completion import complete_values, types_of_nodes
from .explain import HEALTH, listed_taint
from .options import Subcommand, general_options
from .progress import progress
from .report import Json, Line, PlainTable, format_option, print_report
from .report.picture import attribute, memory
from .sources import Origin, Source, opened, origin_options
from .whatif import WhatIf, what_if_options

_NODES: Final = (
    "dra-dryrun nodes",
    "dra-dryrun nodes --context production -o json",
)
_DEVICES: Final = ("dra-dryrun devices", "dra-dryrun devices --built-in -o json")

Row = dict[str, Any]


@click.command("nodes", cls=Subcommand, examples=_NODES)
@click.argument("name", default="", shell_complete=complete_values(types_of_nodes))
@origin_options
@what_if_options
@format_option("How the nodes are printed.")
@general_options
def nodes(name: str, origin: Origin, what_if: WhatIf, output: str) -> None:
    """List the nodes, with the number of their devices, of devices in use and of unhealthy ones. NAME selects one."""
    source = _read(origin, what_if)
    by_node = {
        object_.name: [0, 0, 0]
        for object_ in source.objects
        if isinstance(object_, Node) and name in ("", object_.name)
    }
    if name and not by_node:
        raise InputError(f"there is no node {name!r} in {source.where}")
    for row in _devices(source):
        if row["node"] in by_node:
            by_node[row["node"]][0] += 1
            by_node[row["node"]][1] += bool(row["heldBy"])
            by_node[row["node"]][2] += any(text.startswith(HEALTH) for text in row["taints"])
    rows = [
        {"node": name, "devices": total, "inUse": used, "unhealthy": unhealthy}
        for name, (total, used, unhealthy) in by_node.items()
    ]
    print_report(Listing(source, rows, "nodes"), output)


@click.command("devices", cls=Subcommand, examples=_DEVICES)
@origin_options
@what_if_options
@format_option("How the devices are printed.")
@general_options
def devices(origin: Origin, what_if: WhatIf, output: str) -> None:
    """List the devices of the ResourceSlices, with their model, their profile, their taints, and the claims that hold
    them. A taint that tells of the health of a GPU begins with `health:`.
    """
    source = _read(origin, what_if)
    print_report(Listing(source, _devices(source), "devices"), output)


def _read(origin: Origin, what_if: WhatIf) -> Source:
    with progress("reading the devices"), opened(origin) as place:
        return place.gather(what_if)


def _devices(source: Source) -> list[Row]:
    held: dict[tuple[str, str, str], list[str]] = {}
    for claim in Cluster.of(source.objects).claims:
        for allocated in claim.allocation.results if claim.allocation is not None else ():
            held.setdefault((allocated.driver, allocated.pool, allocated.device), []).append(str(claim.metadata))
    return [
        {
            "node": object_.node_name or device.node_name or "",
            "driver": object_.driver,
            "pool": object_.pool.name,
            "device": device.name,
            "model": attribute(device, "productName"),
            "profile": attribute(device, "profile"),
            "memory": memory(device),
            "heldBy": held.get((object_.driver, object_.pool.name, device.name), []),
            "taints": [listed_taint(taint) for taint in device.taints],
        }
        for object_ in source.objects
        if isinstance(object_, ResourceSlice)
        for device in object_.devices
    ]


@dataclass(frozen=True, slots=True)
class Listing:
    """A row for each of the objects that `what` names in plural."""

    source: Source
    rows: Sequence[Row]
    what: str

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """The rows as a table. `wide` has all columns."""
        yield Text(f"from {self.source.where}", style="bold")
        for warning in self.source.warnings:
            yield Text(warning, style="yellow")
        if not self.rows:
            yield Text(f"there are no {self.what} to list")
            return
        left_out = set() if wide else _told_elsewhere(self.rows)
        columns = [name for name in self.rows[0] if name not in left_out]
        table = PlainTable(*("".join(f" {c}" if c.isupper() else c for c in name) for name in columns))
        for row in self.rows:
            cells = [row[name] for name in columns]
            table.add_row(*(", ".join(cell) if isinstance(cell, list) else cell for cell in cells))
        yield table

    def document(self) -> Json:
        """The rows as they are."""
        return {"source": self.source.where, "items": list(self.rows)}


def _told_elsewhere(rows: Sequence[Row]) -> set[str]:
    """Columns that tell nothing new: pools with the names of their nodes, the driver if there is only one, and taints
    and unhealthy devices if there are none.
    """
    empty = {name for name in ("taints", "unhealthy") if not any(row.get(name) for row in rows)}
    if "driver" not in rows[0]:
        return empty
    same_names = all(row["pool"] == row["node"] for row in rows)
    one_driver = len({row["driver"] for row in rows}) == 1
    return empty | {name for name, left_out in (("pool", same_names), ("driver", one_driver)) if left_out}
