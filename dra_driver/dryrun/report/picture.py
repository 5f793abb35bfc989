# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node with their free and held memory slices, and their drawing at a terminal.

The picture is made from ResourceSlices and allocated claims, so it is the same for every driver that publishes GPUs as
NVIDIA's does. A GPU is one of three things:

- MIG devices of one `parentUUID` with capacities `memorySliceN` (existing MIG instances);
- a counter set with counters `memory-slice-N` (dynamic MIG), which the whole GPU and MIG devices consume;
- a device of type `gpu`, which is not divided, even if it has a counter set that no other device consumes.

In a terminal, a cell is as wide as the memory slices that it stands for, and neighbouring GPUs that look alike share a
line:

    gpu-0           |1g.10gb *|1g.10gb *|     2g.20gb a     |      |      |      |      |
    gpu-1 to gpu-7  |         |         |         |         |      |      |      |      |
    * this demand   a ns/train-7

Lines have no trailing blanks.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from string import ascii_lowercase
from typing import Final, Literal

from rich.text import Text

from ...gpu.devices import ENFORCED_BY
from ...kube.resource import Device, Node
from ...scheduler.allocator import Cluster, Features
from ...scheduler.allocator.nodes import is_at
from ...scheduler.allocator.pools import PoolView
from ..selectors import shown
from ..verdict import Placed
from .terminal import listed

DeviceKey = tuple[str, str, str]
"""(driver, pool, device)."""

Claims = tuple[str, ...]
"""Names of claims."""

_MEMORY_SLICE: Final = re.compile(r"memory(?:-s|S)lice-?([0-9]{1,2})")
_WHOLE_GPU: Final = "gpu"

_By = Literal["counters", "capacities", "device"]
"""What describes a GPU in a pool: a set of counters, the capacities of its MIG devices, or one device as a whole."""

_MOST_GPUS: Final = 13
"""The number of lines with GPUs: a picture is smaller than a screen."""
_MOST_HOLDERS: Final = 8
_NARROWEST: Final = 5
"""The columns of a memory slice, if the terminal is wide enough."""
_GAP: Final = 2
_PROPOSED: Final = "bold green"
_COLOURS: Final = ("cyan", "magenta", "yellow", "blue", "red")


def attribute(device: Device | None, name: str) -> str:
    """An attribute of a device as text; empty if the device has none of this name."""
    value = device.attributes.get(name) if device is not None else None
    return shown(value) if value is not None else ""


def memory(device: Device | None) -> str:
    """The memory of a device as published, such as `80Gi`; empty if it publishes none."""
    capacity = device.capacity.get("memory") if device is not None else None
    return str(capacity.value) if capacity is not None else ""


def placed_memory(placed: Placed) -> str:
    """The memory that a demand gets. For a share, such as `12Gi of 80Gi, limited by mps`: how much of it is counted,
    and what limits it.
    """
    device, whole = placed.device, memory(placed.device)
    if device is None or not device.allow_multiple_allocations or not whole:
        return whole
    counted = placed.consumed.get("memory")
    text = f"{counted} of {whole}" if counted is not None and counted.nanos else f"{whole}, shared"
    by = attribute(device, ENFORCED_BY)
    return f"{text}, limited by {by}" if by else text


@dataclass(frozen=True, slots=True)
class Cell:
    """`count` neighbouring memory slices of a GPU from number `first` on, or a GPU that is not divided (count 0).

    `devices` draw on them, or could. Without devices, the slices are free. `label` is their profile, else their name.
    """

    first: int
    count: int
    devices: tuple[str, ...] = ()
    label: str = ""
    held_by: Claims = ()
    proposed_for: Claims = ()

    @property
    def state(self) -> str:
        """`proposed`, `held` or `free`."""
        return "proposed" if self.proposed_for else "held" if self.held_by else "free"

    @property
    def held_by_others(self) -> Claims:
        """The holders, without the claims of the demand, which hold their devices if the pod is running."""
        return tuple(claim for claim in self.held_by if claim not in self.proposed_for)


@dataclass(frozen=True, slots=True)
class GpuPicture:
    """One GPU. `slices` is its number of memory slices. It is 0 for a GPU that is not divided, which has one cell."""

    name: str
    model: str
    slices: int
    cells: tuple[Cell, ...]

    @property
    def proposed(self) -> bool:
        """Whether the demand would get some of it."""
        return any(cell.proposed_for for cell in self.cells)

    @property
    def look(self) -> tuple[object, ...]:
        """The properties that are drawn: all except the names of the GPU and of its devices."""
        return (self.model, *((cell.count, cell.label, cell.held_by) for cell in self.cells))


@dataclass(frozen=True, slots=True)
class NodePicture:
    """The GPUs of a node, with what one demand would get there."""

    node: str
    gpus: tuple[GpuPicture, ...]

    @property
    def model(self) -> str:
        """The model of all GPUs; empty if the models differ."""
        models = {gpu.model for gpu in self.gpus}
        return models.pop() if len(models) == 1 else ""

    @property
    def rows(self) -> tuple[GpuPicture, ...]:
        """The GPUs to draw. Adjacent GPUs with equal contents are one row, unless the demand uses one of them.

        The name of several is `gpu-1 to gpu-7`.
        """
        rows = []
        for _, run in groupby(enumerate(self.gpus), lambda one: one[0] if one[1].proposed else one[1].look):
            first, *more = (gpu for _, gpu in run)
            rows.append(replace(first, name=f"{first.name} to {more[-1].name}") if more else first)
        return tuple(rows)

    @property
    def divided(self) -> bool:
        """Whether any GPU has memory slices to share."""
        return any(gpu.slices for gpu in self.gpus)


def node_picture(
    cluster: Cluster,
    features: Features,
    node: Node,
    held: Mapping[DeviceKey, Claims],
    proposed: Mapping[DeviceKey, Claims],
) -> NodePicture:
    """The picture of `node`, where claims hold `held` and others would get `proposed`.

    Raises AllocationError if a node selector of a slice cannot be evaluated.
    """
    gpus: list[GpuPicture] = []
    for pool in cluster.survey(features).view(node).pools:
        found: dict[tuple[_By, str], _Gpu] = {}
        divided = _divided_sets(pool)
        for device in _devices_at(node, pool):
            for share in _shares(device, divided):
                gpu = found.setdefault((share.by, share.of), _Gpu(share.by, _gpu_name(share, device)))
                gpu.model = gpu.model or attribute(device, "productName")
                gpu.numbers |= share.numbers
                if share.by == "counters" and share.of in pool.counter_sets:  # not while their gate is off
                    gpu.numbers |= _numbers(pool.counter_sets[share.of].counters)
        for device in chain.from_iterable(slice_.devices for slice_ in (*pool.slices, *pool.elsewhere)):
            key = (*pool.key, device.name)
            claims = held.get(key, ()), proposed.get(key, ())
            for share in _shares(device, divided):
                if (share.by, share.of) in found and (any(claims) or share.by != "counters"):
                    part = Cell(0, 1, (device.name,), _device_label(device), *claims)
                    for number in share.numbers:
                        found[share.by, share.of].parts[number].append(part)
        gpus += [gpu.picture() for gpu in sorted(found.values(), key=lambda gpu: _natural(gpu.name))]
    return NodePicture(node.name, tuple(gpus))


@dataclass(frozen=True, slots=True)
class _Share:
    """Memory slices that a device takes of a GPU: `of` is a counter set, a UUID, or the device itself."""

    by: _By
    of: str
    numbers: frozenset[int]


@dataclass(slots=True)
class _Gpu:
    """A GPU while its parts are collected: for each memory slice, a cell for each device that draws on it."""

    by: _By
    name: str
    model: str = ""
    numbers: frozenset[int] = frozenset()
    parts: dict[int, list[Cell]] = field(default_factory=lambda: defaultdict(list))

    def picture(self) -> GpuPicture:
        """The GPU. Neighbouring slices that the same devices draw on are one cell."""
        cells = []
        for _, run in groupby(range(max(self.numbers) + 1), lambda one: [part.devices for part in self.parts[one]]):
            first, *more = run
            parts = self.parts[first]
            cells.append(
                Cell(
                    first,
                    0 if self.by == "device" else 1 + len(more),
                    tuple(name for part in parts for name in part.devices),
                    " + ".join(part.label for part in parts),
                    _distinct(claim for part in parts for claim in part.held_by),
                    _distinct(claim for part in parts for claim in part.proposed_for),
                )
            )
        return GpuPicture(self.name, self.model, sum(cell.count for cell in cells), tuple(cells))


def _device_label(device: Device) -> str:
    whole = attribute(device, "type") == _WHOLE_GPU
    return attribute(device, "profile") or ("whole" if whole else device.name)


def _devices_at(node: Node, pool: PoolView) -> Iterator[Device]:
    """The devices of the pool that the node can reach."""
    for index, device in enumerate(pool.devices):
        if index not in pool.places or is_at(pool.places[index], node):
            yield device


def _divided_sets(pool: PoolView) -> frozenset[str]:
    """The counter sets of GPUs that can be divided. Devices with a profile consume them."""
    partitions = (device for device in pool.devices if attribute(device, "profile"))
    return frozenset(consumed.counter_set for device in partitions for consumed in device.consumes_counters)


def _shares(device: Device, divided: frozenset[str]) -> Sequence[_Share]:
    parent, numbers = attribute(device, "parentUUID"), _numbers(device.capacity)
    if parent and numbers:
        return [_Share("capacities", parent, numbers)]
    counted = [
        _Share("counters", consumption.counter_set, numbers)
        for consumption in device.consumes_counters
        if consumption.counter_set in divided and (numbers := _numbers(consumption.counters))
    ]
    if counted:
        return counted
    return [_Share("device", device.name, frozenset({0}))] if attribute(device, "type") == _WHOLE_GPU else []


def _numbers(amounts: Iterable[str]) -> frozenset[int]:
    """The memory slices among the names of counters or capacities. Drivers name only the counters that a device
    consumes.
    """
    return frozenset(int(match[1]) for name in amounts if (match := _MEMORY_SLICE.fullmatch(name)))


def _gpu_name(share: _Share, device: Device) -> str:
    """`gpu-0`, as the drivers name it in the names of its counter set and of its MIG devices."""
    if share.by == "counters":
        return share.of.removesuffix("-counter-set")
    return device.name.partition("-mig-")[0]


def _natural(name: str) -> list[tuple[str, int]]:
    """An order in which gpu-10 is after gpu-9."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]*)", name)]


def _distinct(names: Iterable[str]) -> Claims:
    return tuple(dict.fromkeys(names))


def drawn(picture: NodePicture, columns: int) -> Iterator[Text]:
    """The lines of a picture, at most 16: the GPUs, then the claims that the letters stand for.

    If `columns` are not enough, cells become narrower and their labels shorter.
    """
    letters = {claim: _letters(index) for index, claim in enumerate(_in_slices(picture))}
    rows = picture.rows
    shown = _first(rows)
    needed = max((_needed(cell, letters) for row in shown for cell in row.cells if cell.count), default=0)
    names = max((len(row.name) for row in shown), default=0)
    slices = max((row.slices for row in shown), default=0) or 1
    room = (columns - names - _GAP - 1) // slices - 1
    width = max(1, min(room, max(needed, _NARROWEST)))
    for row in shown:
        yield Text(row.name.ljust(names + _GAP)).append_text(_gpu(row, width, letters))
    if len(shown) < len(rows):
        yield Text(f"and {len(rows) - len(shown)} more lines (all GPUs with -o html)", style="dim")
    if any(gpu.proposed for gpu in picture.gpus) or letters:
        yield _legend(picture, letters)


def _first(rows: Sequence[GpuPicture]) -> Sequence[GpuPicture]:
    """The rows that are drawn, in their order. GPUs that the demand gets a part of go first."""
    ranked = sorted(range(len(rows)), key=lambda at: (not rows[at].proposed, at))[:_MOST_GPUS]
    return [rows[at] for at in sorted(ranked)]


def _gpu(gpu: GpuPicture, width: int, letters: Mapping[str, str]) -> Text:
    if not gpu.slices:
        (cell,) = gpu.cells
        who = listed([*(f"* {claim}" for claim in cell.proposed_for), *cell.held_by_others])
        return Text.assemble(f"{cell.label}  ", (who or "free", _style(cell, letters)))
    text = Text("|")
    for cell in gpu.cells:
        boxes = 1 if cell.devices else cell.count
        room = (width + 1) * (cell.count // boxes) - 1
        for _ in range(boxes):
            text.append(_shortened(cell, letters, room).center(room), style=_style(cell, letters))
            text.append("|")
    return text


def _needed(cell: Cell, letters: Mapping[str, str]) -> int:
    """The width of a memory slice that the label of the cell needs. The label covers the lines between slices."""
    return -(-(len(_label(cell, letters)) - (cell.count - 1)) // cell.count)


def _label(cell: Cell, letters: Mapping[str, str]) -> str:
    return f"{cell.label} {_marks(cell, letters)}".rstrip()


def _marks(cell: Cell, letters: Mapping[str, str]) -> str:
    return ",".join(["*"] * bool(cell.proposed_for) + [letters[claim] for claim in cell.held_by_others])


def _shortened(cell: Cell, letters: Mapping[str, str], room: int) -> str:
    """The label of a cell. If it does not fit, only its marks are shown."""
    label = _label(cell, letters)
    if len(label) > room:
        label = _marks(cell, letters) or label
    return label if len(label) <= room else f"{label[: room - 1]}…"


def _style(cell: Cell, letters: Mapping[str, str]) -> str:
    if cell.proposed_for:
        return _PROPOSED
    if not cell.held_by:
        return "dim"
    order = list(letters)
    claim = cell.held_by[0]
    return _COLOURS[order.index(claim) % len(_COLOURS)] if claim in letters else ""


def _in_slices(picture: NodePicture) -> list[str]:
    """The claims that hold memory slices. Claims that hold whole GPUs are drawn by name."""
    cells = [cell for gpu in picture.gpus if gpu.slices for cell in gpu.cells]
    return list(dict.fromkeys(claim for cell in cells for claim in cell.held_by_others))


def _letters(index: int) -> str:
    """The letters for a number: a to z, then aa, ab and so on."""
    more, last = divmod(index, len(ascii_lowercase))
    return (_letters(more - 1) if more else "") + ascii_lowercase[last]


def _legend(picture: NodePicture, letters: Mapping[str, str]) -> Text:
    entries = [Text("* this demand", style=_PROPOSED)] if any(gpu.proposed for gpu in picture.gpus) else []
    for index, (claim, letter) in enumerate(list(letters.items())[:_MOST_HOLDERS]):
        entries.append(Text(f"{letter} {claim}", style=_COLOURS[index % len(_COLOURS)]))
    more = len(letters) - _MOST_HOLDERS
    if more > 0:
        entries.append(Text(f"and {more} more claims"))
    return Text("   ").join(entries)
