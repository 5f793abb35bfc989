# SPDX-License-Identifier: Apache-2.0
"""Writing to a terminal: lines are as long as they have to be, without blanks at their ends."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_WIDEST: Final = 10_000
"""Columns. Longer than any line: cells are never cut or folded, so that output can be searched and cut."""
_GAP: Final = 2
_NAMED: Final = 3
"""Nodes or devices named one by one, of those of which the same is said."""


class PlainTable:
    """A table without lines whose cells are never cut."""

    def __init__(self, *headings: str) -> None:
        self._rows = [[Text(heading, style="dim") for heading in headings]] if headings else []

    def add_row(self, *cells: str | Text) -> None:
        """A row; text is taken as it is."""
        self._rows.append([Text(cell) if isinstance(cell, str) else cell for cell in cells])

    def lines(self) -> list[Text]:
        """The rows with their columns aligned."""
        columns = max(map(len, self._rows), default=0)
        widths = [max((row[at].cell_len for row in self._rows if at < len(row)), default=0) for at in range(columns)]
        lines = []
        for row in self._rows:
            line = Text()
            for cell, width in zip(row, widths, strict=False):
                line.append(cell).append(" " * (width - cell.cell_len + _GAP))
            line.rstrip()
            lines.append(line)
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.lines()


def plain_console() -> Console:
    """Standard output, as wide as it has to be."""
    console = Console(highlight=False)
    console.width = _WIDEST
    return console


def plain_table(*headings: str) -> PlainTable:
    """A table without lines whose cells are never cut."""
    return PlainTable(*headings)


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
