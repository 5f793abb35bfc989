# SPDX-License-Identifier: Apache-2.0
"""The report of `dra-dryrun gpus`, in every format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from ...gpu.picture import Cell, NodePicture, drawn
from ...process.words import counted
from ..report import API_VERSION, Drawing, Json, Line
from .groups import NodeGroup, joined_by_numbers, joined_by_use
from .model import DeviceConsumer, GpuCounts, OtherDevices, Taint, UsedDevice, UsedGpu, UsedNode
from .page import gpus_page
from .tables import node_table, others_table, shown_time, sums_table, tree_table

KIND: Final = "GpuReport"
_MOST_NODES: Final = 4
"""The number of different nodes of which the GPUs are listed, and memory slices drawn, without being asked for."""


@dataclass(frozen=True, slots=True)
class GpusReport:
    """The selected nodes. `detailed` asks for the GPUs of all of them. `by` is the label by which they are counted."""

    where: str
    nodes: Sequence[UsedNode]
    notes: Sequence[str] = ()
    detailed: bool = False
    by: str = ""

    @property
    def counts(self) -> GpuCounts:
        """The numbers of the GPUs of all nodes."""
        return GpuCounts.sum(node.counts for node in self.nodes)

    @property
    def title(self) -> str:
        """The numbers in words."""
        counts = self.counts
        nodes = [node for node in self.nodes if node.name and node.gpus]
        parts = [f"{counts.free} free", f"{counts.partly} partly used", f"{counts.used} used"]
        parts += [f"{counts.unavailable} unavailable"] if counts.unavailable else []
        parts += [f"{counts.unhealthy} unhealthy"] if counts.unhealthy else []
        return f"{counted(counts.total, 'GPU')} of {counted(len(nodes), 'node')}: {', '.join(parts)}"

    @property
    def sums(self) -> list[tuple[str, int, GpuCounts]]:
        """For each value of the label `by`, the numbers of nodes and of GPUs. Nodes without the label come last."""
        values: dict[str, list[UsedNode]] = {}
        for node in self.nodes:
            if node.name and node.gpus:
                values.setdefault(node.labels.get(self.by, ""), []).append(node)
        ordered = sorted(values.items(), key=lambda item: (not item[0], item[0]))
        return [(value, len(nodes), GpuCounts.sum(node.counts for node in nodes)) for value, nodes in ordered]

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """The report for a terminal."""
        yield Text(f"{self.title}, from {self.where}", style="bold")
        for note in self.notes:
            yield Text(note, style="yellow")
        if self.by:
            yield Text(f"by {self.by}:", style="dim")
            yield sums_table(self.sums)
            return
        groups = joined_by_use(self.nodes)
        if wide or self.detailed or len(groups) <= _MOST_NODES:
            yield from _details(groups, wide=wide)
        else:
            yield node_table(joined_by_numbers(node for node in self.nodes if node.gpus))
            yield from _problems(groups)
            yield Text(
                "`dra-dryrun gpus NODE` lists the users of its GPUs, and -o wide those of all nodes", style="dim"
            )

    def document(self) -> Json:
        """The report for programs."""
        found: Json = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "source": self.where,
            "notes": list(self.notes),
            "gpus": _counts(self.counts),
            "nodes": [_node(node) for node in self.nodes],
        }
        if self.by:
            sums = [
                {"value": value or None, "nodes": nodes, "gpus": _counts(counts)} for value, nodes, counts in self.sums
            ]
            found |= {"by": {"label": self.by, "sums": sums}}
        return found

    def page(self) -> str:
        """The report as an HTML page."""
        return gpus_page(self.title, self.where, self.notes, joined_by_use(self.nodes))


def _details(groups: Sequence[NodeGroup], *, wide: bool) -> Iterator[Line]:
    tree = tree_table(groups, wide=wide)
    if tree.rows:
        yield tree
    for group in groups:
        for gpu in group.first.gpus:
            for taint in gpu.taints:
                yield Text(
                    f"{group.name}/{gpu.name}: {taint_text(taint)}", style="red" if taint.unhealthy else "yellow"
                )
    pictured = [group for group in groups if any(gpu.picture.slices for gpu in group.first.gpus)]
    for group in pictured if wide or len(pictured) <= _MOST_NODES else ():
        divided = tuple(gpu.picture for gpu in group.first.gpus if gpu.picture.slices)
        yield Text(f"memory slices of {group.name}:", style="dim")
        yield _drawing(NodePicture(group.first.name, divided))
    others = others_table(groups, wide=wide)
    if others.rows:
        yield Text("devices of other drivers:", style="dim")
        yield others
    if not tree.rows and not others.rows:
        yield Text("there are no GPUs to show")
    yield from _problems(groups)


def _drawing(picture: NodePicture) -> Drawing:
    return Drawing(lambda columns: (Text("  ").append(line) for line in drawn(picture, columns - 2, every=True)))


def _problems(groups: Sequence[NodeGroup]) -> Iterator[Line]:
    for group in groups:
        for problem in group.first.problems:
            yield Text(f"{group.name}: {problem}", style="bold yellow")


def taint_text(taint: Taint) -> str:
    """A taint with its time."""
    return f"{taint.text} since {shown_time(taint.since)}" if taint.since else taint.text


def _counts(counts: GpuCounts) -> Json:
    return {
        "total": counts.total,
        "free": counts.free,
        "partlyUsed": counts.partly,
        "used": counts.used,
        "unavailable": counts.unavailable,
        "unhealthy": counts.unhealthy,
    }


def _node(node: UsedNode) -> Json:
    return {
        "name": node.name or None,
        "gpus": [_gpu(gpu) for gpu in node.gpus],
        "otherDevices": [_other(other) for other in node.others],
        "problems": list(node.problems),
    }


def _gpu(gpu: UsedGpu) -> Json:
    return {
        "name": gpu.name,
        "model": gpu.model or None,
        "uuid": gpu.uuid or None,
        "memory": gpu.memory or None,
        "state": gpu.state.value,
        "unhealthy": gpu.is_unhealthy,
        "free": list(gpu.free),
        "memorySlices": gpu.picture.slices,
        "cells": [_cell(cell) for cell in gpu.picture.cells] if gpu.picture.slices else [],
        "devices": [_device(device) for device in gpu.devices],
    }


def _cell(cell: Cell) -> Json:
    return {
        "firstSlice": cell.first,
        "slices": cell.count,
        "devices": list(cell.devices),
        "label": cell.label,
        "heldBy": list(cell.held_by),
    }


def _other(other: OtherDevices) -> Json:
    return {
        "driver": other.driver,
        "total": other.total,
        "inUse": other.in_use,
        "devices": [_device(device) for device in other.devices],
    }


def _device(device: UsedDevice) -> Json:
    return {
        "name": device.name,
        "kind": device.kind or None,
        "memory": device.memory or None,
        "taints": [
            {"taint": taint.text, "since": taint.since or None, "unhealthy": taint.unhealthy} for taint in device.taints
        ],
        "usedBy": [_use(use) for use in device.uses],
    }


def _use(use: DeviceConsumer) -> Json:
    return {
        "claim": use.claim,
        "request": use.request,
        "pods": list(use.pods),
        "owner": use.owner or None,
        "since": use.since or None,
        "consumed": dict(use.amounts) or None,
        "adminAccess": use.admin,
    }
