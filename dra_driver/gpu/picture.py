# SPDX-License-Identifier: Apache-2.0
"""Pictures of the GPUs of a node: their free and held memory slices, drawn at a terminal.

In a terminal, a cell is as wide as the memory slices that it stands for, and neighbouring GPUs that look alike share a
line:

    gpu-0           |1g.10gb *|1g.10gb *|     2g.20gb a     |      |      |      |      |
    gpu-1 to gpu-7  |         |         |         |         |      |      |      |      |
    * this demand   a ns/train-7

Lines have no trailing blanks.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from string import ascii_lowercase
from typing import Final

from rich.text import Text

from ..process.words import listed

Claims = tuple[str, ...]
"""Names of claims."""

_MOST_GPUS: Final = 13
"""The number of lines with GPUs: a picture is smaller than a screen."""
_MOST_HOLDERS: Final = 8
_NARROWEST: Final = 5
"""The columns of a memory slice, if the terminal is wide enough."""
_GAP: Final = 2
_BETWEEN: Final = 3
"""Blanks between two entries of the legend."""
_PROPOSED: Final = "bold green"
_COLOURS: Final = ("cyan", "magenta", "yellow", "blue", "red")


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


def joined_cells(parts: Sequence[Sequence[Cell]]) -> Iterator[Cell]:
    """The cells of a GPU. `parts` has for each memory slice a cell for each device that draws on it.

    Neighbouring slices that the same devices draw on are one cell.
    """
    for _, run in groupby(range(len(parts)), lambda number: [part.devices for part in parts[number]]):
        first, *more = run
        yield Cell(
            first,
            1 + len(more),
            tuple(name for part in parts[first] for name in part.devices),
            " + ".join(part.label for part in parts[first]),
            tuple(dict.fromkeys(claim for part in parts[first] for claim in part.held_by)),
            tuple(dict.fromkeys(claim for part in parts[first] for claim in part.proposed_for)),
        )


def natural(name: str) -> list[tuple[str, int]]:
    """An order in which gpu-10 is after gpu-9."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]*)", name)]


def letters_of(picture: NodePicture) -> dict[str, str]:
    """The letters that stand for claims in the picture. Claims that hold whole GPUs are drawn by name."""
    cells = [cell for gpu in picture.gpus if gpu.slices for cell in gpu.cells]
    claims = dict.fromkeys(claim for cell in cells for claim in cell.held_by_others)
    return {claim: _letters(index) for index, claim in enumerate(claims)}


def drawn(picture: NodePicture, columns: int, *, every: bool = False) -> Iterator[Text]:
    """The lines of a picture: the GPUs, then the claims that the letters stand for. At most 13 lines have GPUs, and 8
    claims are named, unless `every` GPU and claim is asked for.

    If `columns` are not enough, cells become narrower and their labels shorter.
    """
    letters = letters_of(picture)
    rows = picture.rows
    shown = rows if every else _first(rows)
    needed = max((_needed(cell, letters) for row in shown for cell in row.cells if cell.count), default=0)
    names = max((len(row.name) for row in shown), default=0)
    slices = max((row.slices for row in shown), default=0) or 1
    room = (columns - names - _GAP - 1) // slices - 1
    width = max(1, min(room, max(needed, _NARROWEST)))
    for row in shown:
        yield Text(row.name.ljust(names + _GAP)).append_text(_gpu(row, width, letters))
    if len(shown) < len(rows):
        yield Text(f"and {len(rows) - len(shown)} more lines (all GPUs with -o html)", style="dim")
    yield from _legend(picture, letters, len(letters) if every else _MOST_HOLDERS, columns)


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


def _letters(index: int) -> str:
    """The letters for a number: a to z, then aa, ab and so on."""
    more, last = divmod(index, len(ascii_lowercase))
    return (_letters(more - 1) if more else "") + ascii_lowercase[last]


def _legend(picture: NodePicture, letters: Mapping[str, str], most: int, columns: int) -> Iterator[Text]:
    """What the letters stand for. An entry is never broken."""
    entries = [Text("* this demand", style=_PROPOSED)] if any(gpu.proposed for gpu in picture.gpus) else []
    for index, (claim, letter) in enumerate(list(letters.items())[:most]):
        entries.append(Text(f"{letter} {claim}", style=_COLOURS[index % len(_COLOURS)]))
    more = len(letters) - most
    if more > 0:
        entries.append(Text(f"and {more} more claims"))
    lines: list[list[Text]] = []
    for entry in entries:
        if lines and sum(part.cell_len + _BETWEEN for part in lines[-1]) + entry.cell_len <= columns:
            lines[-1].append(entry)
        else:
            lines.append([entry])
    yield from (Text(" " * _BETWEEN).join(line) for line in lines)
