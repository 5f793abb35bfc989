# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun nodes`, `devices`, `capacity` and `node-template`: what a cluster has, how much of it is free, and what a
new node would have.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
from rich.text import Text

from ..kube.resource import Node, ResourceSlice
from ..process.command import InputError, output_option
from ..scheduler.allocator import Cluster
from .completion import complete_values, types_of_nodes
from .explain import HEALTH, listed_taint
from .nodetypes import is_node_type, like, simulated_nodes
from .options import Subcommand, general_options, release_options
from .progress import progress
from .release import Rules
from .report import PlainTable, counted, listed, plain_console, to_json
from .report.picture import attribute, memory
from .snapshot import encoded, written
from .sources import Origin, Source, opened, origin_options
from .stock import Amount, DeviceKind, Gap, PoolStock, Stocktaker, totals
from .whatif import WhatIf, what_if_options

_FORMATS: Final = ("table", "json")
_NODES: Final = (
    "dra-dryrun nodes",
    "dra-dryrun nodes --context production -o json",
)
_TEMPLATES: Final = (
    "dra-dryrun node-template h100x8 --policy policy.yaml > template.yaml",
    "dra-dryrun node-template node-1 --context production",
)
_DEVICES: Final = ("dra-dryrun devices", "dra-dryrun devices --built-in -o json")

Row = dict[str, Any]

_SHOWN: Final = 10
"""The number of reasons that are printed, unless the output is wide."""
_HEADINGS: Final = ("TOTAL", "IN USE", "FREE", "STRANDED", "PROFILE", "MODEL")

JSON = Mapping[str, Any]


@click.command("nodes", cls=Subcommand, examples=_NODES)
@click.argument("name", default="", shell_complete=complete_values(types_of_nodes))
@origin_options
@what_if_options
@output_option(_FORMATS, None, "How the nodes are printed.")
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
    _print(source, rows, output, "nodes")


@click.command("devices", cls=Subcommand, examples=_DEVICES)
@origin_options
@what_if_options
@output_option(_FORMATS, None, "How the devices are printed.")
@general_options
def devices(origin: Origin, what_if: WhatIf, output: str) -> None:
    """List the devices of the ResourceSlices, with their model, their profile, their taints, and the claims that hold
    them. A taint that tells of the health of a GPU begins with `health:`.
    """
    source = _read(origin, what_if)
    _print(source, _devices(source), output, "devices")


@click.command("node-template", cls=Subcommand, examples=_TEMPLATES)
@click.argument("name", shell_complete=complete_values(types_of_nodes))
@origin_options
@what_if_options
@output_option(("yaml", "json"), None, "How the slices are written.")
@general_options
def node_template(name: str, origin: Origin, what_if: WhatIf, output: str) -> None:
    """Print the ResourceSlices that a new node like NAME will publish, for an autoscaler that simulates nodes.

    NAME is a node of the cluster, or a built-in type such as h100x8 or a file that describes one, which needs no
    cluster.
    """
    click.echo(written(list(encoded(_template(name, origin, what_if))), output), nl=False)


def _template(name: str, origin: Origin, what_if: WhatIf) -> list[ResourceSlice]:
    """The slices of a new node. Raises InputError."""
    if is_node_type(name):
        return [object_ for object_ in simulated_nodes(name, 1, what_if.policy) if isinstance(object_, ResourceSlice)]
    if what_if.policy is not None:
        raise InputError(f"--policy: {name} is not a built-in type of nodes, whose slices follow from a policy")
    source = _read(origin, what_if)
    found = [object_ for object_ in source.objects if isinstance(object_, ResourceSlice) and object_.node_name == name]
    if not found:
        raise InputError(f"there is no node {name!r} with slices in {source.where}, and no built-in type of this name")
    return [like(slice_, f"new-{name}-1") for slice_ in found]


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


def _print(source: Source, rows: Sequence[Row], output: str, what: str) -> None:
    """Print the rows. `what` are the listed objects in plural, for the text if there are none."""
    if output == "json":
        click.echo(to_json({"source": source.where, "items": list(rows)}))
        return
    console = plain_console()
    console.print(Text(f"from {source.where}", style="bold"))
    for warning in source.warnings:
        console.print(Text(warning, style="yellow"))
    if not rows:
        console.print(Text(f"there are no {what} to list"))
        return
    columns = [name for name in rows[0] if name not in _told_elsewhere(rows)]
    table = PlainTable(*("".join(f" {c}" if c.isupper() else c for c in name).upper() for name in columns))
    for row in rows:
        cells = [row[name] for name in columns]
        table.add_row(*(", ".join(cell) if isinstance(cell, list) else str(cell) or "-" for cell in cells))
    console.print(table)


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


@click.command(
    "capacity",
    cls=Subcommand,
    examples=[
        "dra-dryrun capacity",
        "dra-dryrun capacity -o wide --context production",
        "dra-dryrun capacity --with-node h100x8=3",
    ],
)
@origin_options
@what_if_options
@release_options
@output_option(("table", "wide", "json"), None, "How the amounts are printed: wide has every node.")
@general_options
def capacity(origin: Origin, what_if: WhatIf, rules: Rules, output: str) -> None:
    """Count the devices of each model and profile: in total, in use, free and stranded.

    TOTAL is the number on an idle cluster. The rows of one GPU model exclude each other. FREE is the number of claims
    for one device each that would get their device now. STRANDED devices are not free, but would be free if the devices
    in use were placed elsewhere on the same GPU, or if taints were removed.
    """
    with progress("reading the devices") as say, opened(origin, rules) as place:
        source = place.gather(what_if)
        say("counting")
        pools = Stocktaker(place.features).count(Cluster.of(source.objects))
    if output == "json":
        click.echo(json.dumps(_document(source, pools), indent=2))
    else:
        _print_capacity(source, pools, wide=output == "wide")


def _print_capacity(source: Source, pools: Sequence[PoolStock], *, wide: bool) -> None:
    console = plain_console()
    nodes = {node for pool in pools for node in pool.nodes}
    console.print(Text(f"devices of {counted(len(nodes), 'node')}, from {source.where}", style="bold"))
    for warning in source.warnings:
        console.print(Text(warning, style="yellow"))
    for assumption in source.assumptions:
        console.print(Text(f"simulating {assumption}", style="yellow"))
    if not totals(pools):
        console.print(Text("there are no devices to count"))
        return
    console.print(_by_node(pools) if wide else _table(totals(pools)))
    reasons = list(_reasons(pools, apart=wide))
    if reasons:
        console.print(Text("stranded or unavailable:"))
    for who, why in reasons if wide else reasons[:_SHOWN]:
        console.print(Text.assemble("  ", (who, "bold"), f": {why}"))
    if len(reasons) > _SHOWN and not wide:
        console.print(Text(f"  and {len(reasons) - _SHOWN} more reasons (all of them with -o wide)"))


def _table(amounts: Mapping[DeviceKind, Amount]) -> PlainTable:
    table = PlainTable(*_HEADINGS)
    for kind, amount in amounts.items():
        table.add_row(*_cells(kind, amount))
    return table


def _by_node(pools: Sequence[PoolStock]) -> PlainTable:
    named = any(pool.pool != listed(pool.nodes) for pool in pools)
    table = PlainTable("NODE", *(("POOL",) if named else ()), *_HEADINGS)
    for pool in pools:
        for kind, amount in sorted(pool.amounts.items()):
            table.add_row(listed(pool.nodes), *((pool.pool,) if named else ()), *_cells(kind, amount))
    return table


def _cells(kind: DeviceKind, amount: Amount) -> list[str]:
    numbers = (amount.total, amount.used, amount.free, amount.stranded)
    return [*map(str, numbers), kind.profile or "-", kind.model or kind.driver]


def _reasons(pools: Iterable[PoolStock], *, apart: bool) -> Iterator[tuple[str, str]]:
    """GPUs, and why some of their devices are not available. With `apart`, GPUs with equal reasons are not joined."""
    alike: dict[object, list[tuple[str, Gap]]] = {}
    for pool in pools:
        nodes = listed(pool.nodes)
        if pool.problem:
            yield nodes, f"nothing of pool {pool.pool} of {pool.driver}: {pool.problem}"
        for gap in pool.gaps:
            who = " ".join(filter(None, (nodes, gap.gpu)))
            alike.setdefault(who if apart else (_lost(gap), gap.free, gap.taints), []).append((who, gap))
    for members in alike.values():
        first = members[0][1]
        holders = dict.fromkeys(claim for _, gap in members for claim, _ in gap.holders)
        why = [_lost(first)]
        if holders:
            why += [f"free {', '.join(first.free)}"] if first.free else []
            devices = dict.fromkeys(device for _, device in first.holders)
            where = f", on the first {' '.join(devices)}" if len(members) > 1 else f" ({' '.join(devices)})"
            why.append(f"the rest held by {listed(list(holders))}{where}")
        why += [f"taint {text}" for text in first.taints]
        yield listed([who for who, _ in members]), "; ".join(why)


def _lost(gap: Gap) -> str:
    return ", ".join(f"{count} x {kind.profile or kind.model or 'device'}" for kind, count in sorted(gap.lost.items()))


def _document(source: Source, pools: Sequence[PoolStock]) -> JSON:
    return {
        "source": source.where,
        "assumptions": list(source.assumptions),
        "kinds": [_encode(kind, amount) for kind, amount in totals(pools).items()],
        "pools": [
            {
                "driver": pool.driver,
                "pool": pool.pool,
                "nodes": list(pool.nodes),
                "problem": pool.problem or None,
                "kinds": [_encode(kind, amount) for kind, amount in sorted(pool.amounts.items())],
                "stranded": [_encode_gap(gap) for gap in pool.gaps],
            }
            for pool in pools
        ],
    }


def _encode(kind: DeviceKind, amount: Amount) -> JSON:
    return {
        "driver": kind.driver,
        "model": kind.model or None,
        "profile": kind.profile or None,
        "total": amount.total,
        "inUse": amount.used,
        "free": amount.free,
        "stranded": amount.stranded,
        "misplaced": amount.misplaced,
        "tainted": amount.tainted,
    }


def _encode_gap(gap: Gap) -> JSON:
    return {
        "gpu": gap.gpu or None,
        "lost": [
            {"model": kind.model or None, "profile": kind.profile or None, "devices": count}
            for kind, count in sorted(gap.lost.items())
        ],
        "free": list(gap.free),
        "heldBy": [{"claim": claim, "device": device} for claim, device in gap.holders],
        "taints": list(gap.taints),
    }
