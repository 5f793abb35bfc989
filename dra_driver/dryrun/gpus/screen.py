# SPDX-License-Identifier: Apache-2.0
"""The live view of GPUs on a whole terminal: what is shown, and what each key does."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text

from ...gpu.picture import natural
from ...process.streams import printable
from ..report import PlainTable
from .model import UsedNode
from .tables import shown_time

_HEADINGS: Final = ("GPU", "State", "Device", "Pod", "Owner", "Since", "Claim")
_SORTS: Final = {"n": "GPU", "s": "State", "d": "Device", "p": "Pod", "o": "Owner", "t": "Since"}
"""The columns to sort by, and their keys."""
_PAGE: Final = 10
_MOVES: Final = {
    "\x1b[A": -1,
    "k": -1,
    "\x1b[B": 1,
    "j": 1,
    "\x1b[5~": -_PAGE,
    "\x1b[6~": _PAGE,
    " ": _PAGE,
}
"""Keys that move the rows, and by how many: arrows, PageUp and PageDown, blank, and the keys of less."""
_ESCAPE, _ENTER, _BACKSPACE = "\x1b", ("\r", "\n"), ("\x7f", "\b")
_QUIT: Final = ("q", "\x03")
_HELP: Final = "q quit   / filter   sort by n GPU, s state, d device, p pod, o owner, t since   arrows move"
_FRAME: Final = 4
"""Lines that are no rows: title, state of the view, headings, help."""

Row = tuple[str, ...]


def rows_of(nodes: Iterable[UsedNode]) -> list[Row]:
    """A row for each use of a GPU, and for each GPU without a use, with a cell for each heading."""
    return [row for node in nodes for row in _rows(node)]


def _rows(node: UsedNode) -> Iterator[Row]:
    for gpu in node.gpus:
        name = f"{node.name}/{gpu.name}"
        state = f"{gpu.state.value}{', unhealthy' if gpu.is_unhealthy else ''}"
        for device, use in gpu.uses:
            yield (name, state, device.kind, ", ".join(use.pods), use.owner, shown_time(use.since), use.claim)
        if not any(gpu.uses):
            yield (name, state, "MIG" if gpu.picture.slices else ", ".join(gpu.free), "", "", "", "")


@dataclass(frozen=True, slots=True)
class ScreenView:
    """What the screen shows: the rows that contain `text`, sorted by a column, from row `first` on.

    While the user `types` a text, keys are characters of it.
    """

    rows: Sequence[Row] = ()
    sort: str = "GPU"
    text: str = ""
    types: bool = False
    first: int = 0
    ended: bool = False

    @property
    def selected(self) -> list[Row]:
        """The rows that are shown, in their order."""
        column = _HEADINGS.index(self.sort)
        found = [row for row in self.rows if self.text.lower() in " ".join(row).lower()]
        # Cells without a text come last.
        return sorted(found, key=lambda row: (not row[column], natural(row[column]), natural(row[0])))

    def with_rows(self, rows: Sequence[Row]) -> "ScreenView":
        """The view after the cluster has changed."""
        return replace(self, rows=rows)

    def after(self, key: str) -> "ScreenView":
        """The view after a key was pressed. Unknown keys do nothing."""
        if self.types:
            return self._typed(key)
        if key in _QUIT:
            return replace(self, ended=True)
        if key == "/":
            return replace(self, types=True, text="", first=0)
        if key == _ESCAPE:
            return replace(self, text="", first=0)
        if key in _SORTS:
            return replace(self, sort=_SORTS[key], first=0)
        last = max(0, len(self.selected) - 1)
        return replace(self, first=min(max(0, self.first + _MOVES.get(key, 0)), last))

    def _typed(self, key: str) -> "ScreenView":
        if key == "\x03":
            return replace(self, ended=True)
        if key in _ENTER:
            return replace(self, types=False)
        if key == _ESCAPE:
            return replace(self, types=False, text="")
        if key in _BACKSPACE:
            return replace(self, text=self.text[:-1])
        return replace(self, text=self.text + key) if key.isprintable() else self

    def lines(self, title: str, height: int) -> Iterator[Text | PlainTable]:
        """The lines for a terminal of that height."""
        rows = self.selected
        yield _line(title, "bold")
        end = min(len(rows), self.first + max(1, height - _FRAME))
        shown = f"rows {min(self.first + 1, len(rows))} to {end} of {len(rows)}, by {self.sort}"
        wanted = f"   filter: {self.text}{'_' if self.types else ''}" if self.text or self.types else ""
        yield _line(f"{shown}{wanted}", "dim")
        table = PlainTable(*_HEADINGS, optional=("Claim", "Device", "Since", "Owner"), unbroken=True)
        for row in rows[self.first : end]:
            table.add_row(*(Text(cell, style=_style(row[1])) if index == 1 else cell for index, cell in enumerate(row)))
        yield table
        yield _line(_HELP, "dim")


def _line(text: str, style: str) -> Text:
    """A line that ends with the screen: a second line would push the last one out."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def _style(state: str) -> str:
    if "unhealthy" in state:
        return "bold red"
    return {"free": "green", "partly used": "yellow"}.get(state, "")


def keys_of(data: bytes) -> Iterator[str]:
    """The keys that a terminal sends: characters, and sequences that begin with Escape."""
    text = data.decode(errors="ignore")
    while text:
        known = next((key for key in _MOVES if len(key) > 1 and text.startswith(key)), text[0])
        yield known
        text = text.removeprefix(known)
