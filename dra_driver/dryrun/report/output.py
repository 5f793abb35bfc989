# SPDX-License-Identifier: Apache-2.0
"""The output formats that all subcommands have, and the one place that prints them.

A subcommand makes a report, which is a value with the results, and prints it with `print_report`:

    @click.command("spare", cls=Subcommand, examples=[...])
    @origin_options
    @format_option("How the devices are printed.")
    @general_options
    def spare(origin: Origin, output: str) -> int:
        ...
        report = SpareDevices(source.where, found)
        print_report(report, output)
        return report.status

    @dataclass(frozen=True, slots=True)
    class SpareDevices:
        def lines(self, *, wide: bool) -> Iterator[Line]:      # -o table, and -o wide with all rows and columns
            yield Text(f"{counted(self.nodes, 'node')}, from {self.where}", style="bold")
            table = PlainTable("Node", "Devices", optional=["Devices"])
            table.add_row("node-1", 7)
            yield table

        def document(self) -> Json:                            # -o json and -o yaml
            return {"apiVersion": API_VERSION, "kind": "SpareDevices", "source": self.where, ...}

        def page(self) -> str:                                 # -o html, only with `format_option(..., html=True)`
            return html_page(title, header, sections)

A line is a `Text` (broken at the width of the terminal), a `PlainTable`, a `Drawing`, or a `Verbatim` (never broken).
Texts of clusters and files need no escaping: control characters are replaced in every format. Messages about the work
go to standard error, with `click.echo(printable(text), err=True)`. `options` makes documents of errors. A report with
a page is printed by `print_picture_report`.

| format | made from | subcommands without it |
|---|---|---|
| table, wide | `lines` | `node-template` and `snapshot`, which write Kubernetes objects |
| json, yaml | `document`, or the objects | the YAML of `drain` is only its objects, for kubectl |
| html | `page` | all that draw no picture |
| github, script | lines for another program | all but `lint` and `repack` |
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import click
from rich.text import Text

from ...process.command import output_option
from ...process.streams import printable
from ..status import Note
from .document import Json, to_json, to_yaml
from .terminal import Drawing, PlainTable, Verbatim, plain_console

F = TypeVar("F", bound=Callable[..., Any])

Line = Text | PlainTable | Drawing | Verbatim

FORMATS: Final = ("table", "wide", "json", "yaml")
"""The formats of all reports. The first is the default."""
OBJECT_FORMATS: Final = ("yaml", "json")
"""The formats of subcommands that write Kubernetes objects."""
DOCUMENTS: Final = ("json", "yaml")
"""The formats for programs. An error is a document in them, too."""


class CommandReport(Protocol):
    """The results of a subcommand."""

    def lines(self, *, wide: bool) -> Iterable[Line]:
        """The lines for a terminal. `wide` has all rows and columns."""

    def document(self) -> Json:
        """The results as plain dicts and lists."""


class PictureReport(CommandReport, Protocol):
    """Results with a picture."""

    def page(self) -> str:
        """The results as an HTML page."""


def format_option(what: str, *, html: bool = False, more: Sequence[str] = ()) -> Callable[[F], F]:
    """Adds -o with FORMATS, given to the command as `output`. `what` is the help. `html` is for a PictureReport, and
    `more` has formats that the subcommand prints itself.
    """
    return output_option((*FORMATS, *(("html",) if html else ()), *more), None, what)


def object_format_option(what: str) -> Callable[[F], F]:
    """Adds -o with OBJECT_FORMATS, given to the command as `output`. `what` is the help."""
    return output_option(OBJECT_FORMATS, None, what)


def print_report(report: CommandReport, output: str) -> None:
    """Prints a report to standard output, in one of FORMATS."""
    if output in DOCUMENTS:
        print_document(report.document(), output)
    else:
        print_lines(report.lines(wide=output == "wide"))


def print_picture_report(report: PictureReport, output: str) -> None:
    """Prints a report to standard output, in one of FORMATS or as HTML."""
    if output == "html":
        click.echo(report.page())
    else:
        print_report(report, output)


def print_document(document: Json, output: str) -> None:
    """Prints a document to standard output as JSON, or as a document of a YAML stream."""
    click.echo(to_json(document) if output == "json" else f"---\n{to_yaml(document)}")


def print_errors(errors: Iterable[Note]) -> None:
    """Prints errors about objects to standard error. The other objects have their answers nevertheless."""
    for error in errors:
        click.echo(printable(f"error: {error}"), err=True)


def print_lines(lines: Iterable[Line], *, stderr: bool = False) -> None:
    """Prints lines to standard output or standard error."""
    console = plain_console(stderr=stderr)
    for line in lines:
        console.print(line)
