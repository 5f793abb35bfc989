# SPDX-License-Identifier: Apache-2.0
"""Lines and tables that fit the width of the terminal, without control characters.

The width is COLUMNS (the environment variable), else that of the terminal. Output to a file or a pipe has no
width, so that every line can be searched and cut, unless COLUMNS is set. Nothing is cut off: a line that is too long
continues in the next line, indented, and so does a cell in its column.
"""

import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import click
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ...process.streams import printable

_UNLIMITED: Final = 10_000
"""A width that no line exceeds."""
_NARROWEST: Final = 30
"""The smallest width. A narrower terminal breaks the lines itself."""
_NARROWEST_CELL: Final = 6
_GAP: Final = 2
"""Blanks between two columns of a table."""
_CONTINUED: Final = 2
"""Additional blanks before the continuation of a line."""
_WORDS: Final = re.compile(r"[^\s/,.-]*[\s/,.-]|[^\s/,.-]+")
_LEADING: Final = re.compile(r" *([0-9]+ )?")


class PlainTable:
    """A table without lines between its rows and columns. A terminal shows the headings in capitals, and a cell without
    text as `-`.

    If the table is wider than the terminal, columns whose headings are in `optional` are left out in this order until
    the table fits. Then the cells of the widest columns are continued in further lines,
    unless the table is `unbroken`: its rows are longer than the terminal then, so that names can be copied.
    """

    def __init__(self, *headings: str, optional: Sequence[str] = (), unbroken: bool = False) -> None:
        self.headings = headings
        self.rows: list[list[Text]] = []
        self._optional = optional
        self._unbroken = unbroken

    def add_row(self, *cells: str | int | Text) -> None:
        """Adds a row, with a cell for each heading. Markup in text is not interpreted."""
        self.rows.append([_cell(cell) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [[Text(heading.upper(), style="dim") for heading in self.headings], *self.rows]
        columns = list(range(len(self.headings)))
        needed = [max(row[column].cell_len for row in rows) for column in columns]
        for heading in self._optional:
            if sum(needed[column] + _GAP for column in columns) - _GAP > options.max_width:
                columns.remove(self.headings.index(heading))
        widths = [needed[column] for column in columns]
        if not self._unbroken:
            widths = _fitted(widths, options.max_width - _GAP * (len(columns) - 1))
        for row in ([row[column] for column in columns] for row in rows):
            folded = [
                _folded(cell.plain, width) if cell.cell_len > width else [cell.plain]
                for cell, width in zip(row, widths, strict=True)
            ]
            for parts in zip_longest(*folded, fillvalue=""):
                line = Text(no_wrap=True, overflow="ignore")
                for part, cell, width in zip(parts, row, widths, strict=True):
                    line.append(part, cell.style).append(" " * (width - cell_len(part) + _GAP))
                line.rstrip()
                yield line


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lines that depend on the width: `draw` gives them for a number of columns."""

    draw: Callable[[int], Iterable[Text]]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A line that is never broken, so that it can be copied, or read by an editor."""

    text: str


def _cell(content: str | int | Text) -> Text:
    cell = content if isinstance(content, Text) else Text(str(content))
    return _one_line(cell) if cell.plain else Text("-")


def _fitted(needed: Sequence[int], room: int) -> list[int]:
    """The widths of the columns: the widest become narrower until all columns fit."""
    most = max(needed, default=0)
    while sum(min(width, most) for width in needed) > room and most > _NARROWEST_CELL:
        most -= 1
    return [min(width, most) for width in needed]


def _folded(cell: str, width: int) -> list[str]:
    """The lines of a cell, broken after blanks, hyphens, dots, slashes or commas if possible."""
    lines = [""]
    for word in _WORDS.findall(cell):
        if lines[-1] and cell_len(lines[-1] + word.rstrip()) > width:
            lines.append("")
        *full, last = chop_cells(lines[-1] + word, width) if cell_len(word.rstrip()) > width else [lines[-1] + word]
        lines[-1:] = [*full, last]
    return [line.rstrip() for line in lines]


class _PlainConsole(Console):
    """A console that breaks long lines of a Text, and prints no control characters."""

    def print(self, *objects: Any, **settings: Any) -> None:
        for object_ in objects:
            for line in _parts(self, object_):
                if isinstance(line, Verbatim):
                    click.echo(printable(line.text))
                else:
                    super().print(line, crop=False, **settings)


def _parts(console: Console, object_: Any) -> Iterator[Any]:
    """What is printed one after the other for a line."""
    if isinstance(object_, Drawing):
        for text in object_.draw(console.width):
            yield from _lines(console, text)
    elif isinstance(object_, Text):
        yield from _lines(console, object_)
    else:
        yield object_


def _lines(console: Console, text: Text) -> Iterator[Text]:
    """The lines of a text. Lines after the first are indented more than the first."""
    first, *more = _harmless(text).split("\n", allow_blank=True)
    leading = _LEADING.match(first.plain)
    assert leading is not None
    continued = leading.end() + (0 if leading[1] else _CONTINUED)
    yield from _broken(console, first, continued)
    for line in textwrap.dedent("\n".join(text.plain for text in more)).splitlines():
        yield from _broken(console, Text(" " * (continued + _CONTINUED) + line, style=text.style), continued)


def _broken(console: Console, line: Text, continued: int) -> Iterator[Text]:
    """The parts of a line that fit. All parts but the first begin with at least `continued` blanks."""
    if line.cell_len <= console.width:
        yield line
        return
    indent = len(line.plain) - len(line.plain.lstrip(" "))
    deeper = max(indent, continued)
    for number, part in enumerate(line[indent:].wrap(console, console.width - deeper, overflow="fold")):
        part.rstrip()
        yield Text(" " * (deeper if number else indent)).append(part)


def _one_line(text: Text) -> Text:
    """The text of a cell in one line."""
    return Text(" ").join(_harmless(text).split("\n")) if "\n" in text.plain else _harmless(text)


def _harmless(text: Text) -> Text:
    plain = printable(text.plain)
    return text if plain == text.plain else Text(plain, spans=text.spans, style=text.style)


def plain_console(*, stderr: bool = False) -> Console:
    """Standard output, or standard error, with the colors that --color asks for."""
    context = click.get_current_context(silent=True)
    color = context.color if context is not None else None
    no_color = True if color is False else None
    console = _PlainConsole(stderr=stderr, highlight=False, force_terminal=color, no_color=no_color)
    limited = (sys.stderr if stderr else sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdecimal()
    console.width = max(_NARROWEST, console.width) if limited else _UNLIMITED
    return console
