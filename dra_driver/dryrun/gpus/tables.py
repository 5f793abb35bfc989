# SPDX-License-Identifier: Apache-2.0
"""The tables of `dra-dryrun gpus`: the nodes, their GPUs with the users, and the devices of other drivers."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from ...process.words import listed
from ..report import PlainTable
from .groups import NodeGroup, joined_gpus
from .model import DeviceConsumer, GpuCounts, UsedDevice, UsedGpu

_OPTIONAL: Final = ("Request", "Claim", "Memory", "Device", "Since", "Owner")
"""The columns that a narrow terminal leaves out, in this order."""
_BLANK: Final = " "
"""A cell in which nothing is missing."""
_COUNTS: Final = ("GPUs", "Free", "Partly used", "Used", "Unhealthy")


def tree_table(groups: Sequence[NodeGroup], *, wide: bool) -> PlainTable:
    """Nodes, GPUs, and the devices of GPUs that are in use, each with its users."""
    table = _empty_tree(wide=wide)
    for group in groups:
        node = group.first
        if not node.gpus:
            continue
        shown = f"{len(node.gpus)} of {node.total} GPUs" if len(node.gpus) != node.total else ""
        state = shown or f"{node.counts.free} of {node.total} free"
        cells: list[str | Text] = [Text(group.name, style="bold"), state, *[_BLANK] * 3, node.models, *[_BLANK] * 3]
        table.add_row(*cells, *([_BLANK] if wide else ()))
        _add_gpus(table, group, wide=wide)
    return table


def users_table(group: NodeGroup) -> PlainTable:
    """The `tree_table` of one node without the node itself, with all columns."""
    table = _empty_tree(wide=True)
    _add_gpus(table, group, wide=True)
    return table


def _empty_tree(*, wide: bool) -> PlainTable:
    headings = ("GPU", "State", "Pod", "Owner", "Since", "Device", "Memory", "Claim", "Request")
    more = ("UUID",) if wide else ()
    return PlainTable(*headings, *more, optional=(*more, *_OPTIONAL), unbroken=True)


def _add_gpus(table: PlainTable, group: NodeGroup, *, wide: bool) -> None:
    for name, gpu in joined_gpus(group.first.gpus):
        is_one = name == gpu.name and len(group.nodes) == 1
        for row in _gpu_rows(name, gpu, wide=wide):
            table.add_row(*row, *([gpu.uuid if is_one else _BLANK] if wide else ()))


def _gpu_rows(name: str, gpu: UsedGpu, *, wide: bool) -> Iterator[list[str | Text]]:
    """The row of a GPU, and rows for its users unless there is one of the whole GPU."""
    uses = list(gpu.uses)
    label = "MIG" if gpu.picture.slices else gpu.picture.cells[0].label
    state = _state(gpu)
    if len(uses) == 1 and not gpu.picture.slices:
        ((device, use),) = uses
        yield [f"  {name}", state, *_user(use, wide=wide), *_device(device, use)]
        return
    yield [f"  {name}", state, *[_BLANK] * 3, label, gpu.memory or _BLANK, _BLANK, _BLANK]
    for device, use in sorted(uses, key=lambda pair: _first_slice(gpu, pair[0])):
        place = f" at {_first_slice(gpu, device)}" if gpu.picture.slices else ""
        yield [f"    {device.kind}{place}", _BLANK, *_user(use, wide=wide), *_device(device, use)]


def _state(gpu: UsedGpu) -> Text:
    if gpu.is_unhealthy:
        return Text(f"{gpu.state.value}, unhealthy", style="bold red")
    return Text(gpu.state.value, style={"free": "green", "partly used": "yellow"}.get(gpu.state.value, ""))


def _user(use: DeviceConsumer, *, wide: bool) -> list[str]:
    """Pod, owner and since when."""
    return [listed(use.pods, len(use.pods)) if wide else listed(use.pods), use.owner, shown_time(use.since)]


def _device(device: UsedDevice, use: DeviceConsumer) -> list[str]:
    """Device, memory, claim and request."""
    kind = f"{device.kind} (admin access)" if use.admin else device.kind
    return [kind, dict(use.amounts).get("memory", device.memory), use.claim, use.request]


def _first_slice(gpu: UsedGpu, device: UsedDevice) -> int:
    """The number of the first memory slice of a device."""
    return next((cell.first for cell in gpu.picture.cells if device.name in cell.devices), 0)


def shown_time(time: str) -> str:
    """`2026-11-27 19:20Z` for a time in RFC 3339."""
    return f"{time[:10]} {time[11:16]}Z" if len(time) >= len("2026-11-27T19:20Z") else time


def node_table(groups: Sequence[NodeGroup]) -> PlainTable:
    """The numbers of GPUs of nodes. Of several nodes in one row, all numbers are sums."""
    table = PlainTable("Node", "Nodes", *_COUNTS, "Model", optional=("Model", "Nodes"), unbroken=True)
    for group in groups:
        table.add_row(group.name, len(group.nodes), *_numbers(group.counts), group.first.models)
    if len(groups) > 1:
        total = GpuCounts.sum(group.counts for group in groups)
        count = sum(len(group.nodes) for group in groups)
        table.add_row(Text("total", style="bold"), count, *_numbers(total), _BLANK)
    return table


def sums_table(sums: Sequence[tuple[str, int, GpuCounts]]) -> PlainTable:
    """The numbers of nodes and of GPUs by the value of a label. Nodes without the label are `(none)`."""
    table = PlainTable("Value", "Nodes", *_COUNTS, unbroken=True)
    for value, nodes, counts in sums:
        table.add_row(value or "(none)", nodes, *_numbers(counts))
    return table


def _numbers(counts: GpuCounts) -> list[int]:
    return [counts.total, counts.free, counts.partly, counts.used, counts.unhealthy]


def others_table(groups: Sequence[NodeGroup], *, wide: bool) -> PlainTable:
    """The devices of other drivers: a row for each that is in use or tainted, and one with the number of the others."""
    listed_devices = [device for group in groups for other in group.first.others for device in other.devices]
    headings = ["Node", "Driver", "Device"]
    headings += ["Pod", "Owner", "Since", "Claim"] if any(device.uses for device in listed_devices) else []
    headings += ["Taints"] if any(device.taints for device in listed_devices) else []
    optional = [heading for heading in ("Claim", "Since", "Owner", "Taints") if heading in headings]
    table = PlainTable(*headings, optional=optional, unbroken=True)

    def add(cells: dict[str, str]) -> None:
        table.add_row(*(cells.get(heading, _BLANK) for heading in headings))

    for group in groups:
        for other in group.first.others:
            whose = {"Node": group.name, "Driver": other.driver}
            for device in other.devices:
                cells = {**whose, "Device": device.name, "Taints": ", ".join(taint.text for taint in device.taints)}
                for use in device.uses:
                    pod, owner, since = _user(use, wide=wide)
                    add({**cells, "Pod": pod, "Owner": owner, "Since": since, "Claim": use.claim})
                if not device.uses:
                    add(cells)
            rest = other.total - len(other.devices)
            if rest:
                add({**whose, "Device": f"{rest} more" if other.devices else f"{rest}, none in use"})
    return table
