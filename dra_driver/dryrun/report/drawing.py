# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node in a terminal.

    gpu-0           |1g.10gb *|1g.10gb *|     2g.20gb a     |      |      |      |      |
    gpu-1 to gpu-7  |         |         |         |         |      |      |      |      |
    * this demand   a ns/train-7

A cell is as wide as the memory slices that it stands for. Neighbouring GPUs that look alike share a line.
"""

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase
from typing import Final

from rich.text import Text

from .console import PlainTable, listed
from .picture import Cell, GpuPicture, NodePicture, Row

_MOST_GPUS: Final = 13
"""Lines of GPUs, so that a picture is a glance and not a screen."""
_MOST_HOLDERS: Final = 8
_NARROWEST: Final = 5
_PROPOSED: Final = "bold green"
_COLOURS: Final = ("cyan", "magenta", "yellow", "blue", "red")


def drawn(picture: NodePicture) -> Iterator[Text]:
    """The lines of a picture: GPUs, then who the letters are. At most 16."""
    letters = {claim: _letters(index) for index, claim in enumerate(_in_slices(picture))}
    rows = picture.rows
    shown = _first(rows)
    width = max((_needed(cell, letters) for row in shown for cell in row.gpu.cells if cell.count), default=0)
    table = PlainTable()
    for row in shown:
        table.add_row(row.name, _gpu(row.gpu, max(width, _NARROWEST), letters))
    yield from table.lines()
    if len(shown) < len(rows):
        yield Text(f"and {len(rows) - len(shown)} more lines (all GPUs with -o html)", style="dim")
    if any(gpu.proposed for gpu in picture.gpus) or letters:
        yield _legend(picture, letters)


def _first(rows: Sequence[Row]) -> Sequence[Row]:
    """As many as there is room for, those that the demand gets something of before others, in their order."""
    ranked = sorted(range(len(rows)), key=lambda at: (not rows[at].gpu.proposed, at))[:_MOST_GPUS]
    return [rows[at] for at in sorted(ranked)]


def _gpu(gpu: GpuPicture, width: int, letters: Mapping[str, str]) -> Text:
    if not gpu.slices:
        (cell,) = gpu.cells
        who = listed([*(f"* {claim}" for claim in cell.proposed_for), *cell.held_by])
        return Text.assemble(f"{cell.label}  ", (who or "free", _style(cell, letters)))
    text = Text("|")
    for cell in gpu.cells:
        boxes = 1 if cell.devices else cell.count
        room = (width + 1) * (cell.count // boxes) - 1
        for _ in range(boxes):
            text.append(_label(cell, letters).center(room), style=_style(cell, letters))
            text.append("|")
    return text


def _needed(cell: Cell, letters: Mapping[str, str]) -> int:
    """How wide a memory slice has to be for the cell's label, which goes over the lines between slices."""
    return -(-(len(_label(cell, letters)) - (cell.count - 1)) // cell.count)


def _label(cell: Cell, letters: Mapping[str, str]) -> str:
    marks = ["*"] * bool(cell.proposed_for) + [letters[claim] for claim in cell.held_by]
    return f"{cell.label} {','.join(marks)}".rstrip()


def _style(cell: Cell, letters: Mapping[str, str]) -> str:
    if cell.proposed_for:
        return _PROPOSED
    if not cell.held_by:
        return "dim"
    order = list(letters)
    claim = cell.held_by[0]
    return _COLOURS[order.index(claim) % len(_COLOURS)] if claim in letters else ""


def _in_slices(picture: NodePicture) -> list[str]:
    """The claims that hold memory slices. Elsewhere is room for their names."""
    cells = [cell for gpu in picture.gpus if gpu.slices for cell in gpu.cells]
    return list(dict.fromkeys(claim for cell in cells for claim in cell.held_by))


def _letters(index: int) -> str:
    """a to z, then aa, ab and so on."""
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
