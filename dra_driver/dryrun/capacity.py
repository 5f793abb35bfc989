# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun capacity`: how many devices of each kind there are, and how many of them are free."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import click
from rich.text import Text

from ..scheduler.allocator import Cluster
from .options import Subcommand, general_options, release_options
from .progress import progress
from .release import Rules
from .report import Json, Line, PlainTable, counted, format_option, listed, print_report
from .sources import Origin, Source, opened, origin_options
from .stock import Amount, DeviceKind, Gap, PoolStock, Stocktaker, totals
from .whatif import WhatIf, what_if_options

_SHOWN: Final = 10
"""The number of reasons that are printed, unless the output is wide."""
_HEADINGS: Final = ("Total", "In use", "Free", "Stranded", "Profile", "Model")


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
@format_option("How the amounts are printed: wide has every node.")
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
    print_report(Capacity(source, pools), output)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The devices of each pool, and where they are from."""

    source: Source
    pools: Sequence[PoolStock]

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """The amounts of each kind, and why devices are unusable or unavailable. `wide` has them for each pool."""
        nodes = {node for pool in self.pools for node in pool.nodes}
        yield Text(f"devices of {counted(len(nodes), 'node')}, from {self.source.where}", style="bold")
        for warning in self.source.warnings:
            yield Text(warning, style="yellow")
        for assumption in self.source.assumptions:
            yield Text(f"simulating {assumption}", style="yellow")
        if not totals(self.pools):
            yield Text("there are no devices to count")
            return
        yield _by_node(self.pools) if wide else _table(totals(self.pools))
        reasons = list(_reasons(self.pools, apart=wide))
        if reasons:
            yield Text("stranded or unavailable:")
        for who, why in reasons if wide else reasons[:_SHOWN]:
            yield Text.assemble("  ", (who, "bold"), f": {why}")
        if len(reasons) > _SHOWN and not wide:
            yield Text(f"  and {len(reasons) - _SHOWN} more reasons (all of them with -o wide)")

    def document(self) -> Json:
        """The amounts as plain dicts and lists."""
        return {
            "source": self.source.where,
            "assumptions": list(self.source.assumptions),
            "kinds": [_encode(kind, amount) for kind, amount in totals(self.pools).items()],
            "pools": [
                {
                    "driver": pool.driver,
                    "pool": pool.pool,
                    "nodes": list(pool.nodes),
                    "problem": pool.problem or None,
                    "kinds": [_encode(kind, amount) for kind, amount in sorted(pool.amounts.items())],
                    "stranded": [_encode_gap(gap) for gap in pool.gaps],
                }
                for pool in self.pools
            ],
        }


def _table(amounts: Mapping[DeviceKind, Amount]) -> PlainTable:
    table = PlainTable(*_HEADINGS)
    for kind, amount in amounts.items():
        table.add_row(*_cells(kind, amount))
    return table


def _by_node(pools: Sequence[PoolStock]) -> PlainTable:
    named = any(pool.pool != listed(pool.nodes) for pool in pools)
    table = PlainTable("Node", *(("Pool",) if named else ()), *_HEADINGS)
    for pool in pools:
        for kind, amount in sorted(pool.amounts.items()):
            table.add_row(listed(pool.nodes), *((pool.pool,) if named else ()), *_cells(kind, amount))
    return table


def _cells(kind: DeviceKind, amount: Amount) -> list[str | int]:
    numbers = (amount.total, amount.used, amount.free, amount.stranded)
    return [*numbers, kind.profile, kind.model or kind.driver]


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


def _encode(kind: DeviceKind, amount: Amount) -> Json:
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


def _encode_gap(gap: Gap) -> Json:
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
