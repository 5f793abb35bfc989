# SPDX-License-Identifier: Apache-2.0
"""What subcommands print. `output` describes how a subcommand prints a report in every format.

| module | |
|---|---|
| `output` | the formats, and the functions that print a report in one of them |
| `terminal` | lines and tables at a terminal |
| `document` | JSON and YAML |
| `page` | HTML |
| `picture` | the GPUs of a node, as data and as lines |
| `model`, `tables` | the report of `dra-dryrun fit`, collected once (`Report.of`), and its lines |
"""

from ...process.words import counted, listed
from .document import API_VERSION, Json, error_document, to_document, to_json, to_yaml
from .model import Report
from .output import (
    DOCUMENTS,
    FORMATS,
    CommandReport,
    Line,
    format_option,
    object_format_option,
    print_document,
    print_errors,
    print_lines,
    print_picture_report,
    print_report,
)
from .page import html_page, html_table, to_html
from .tables import report_lines
from .terminal import Drawing, PlainTable, Verbatim, plain_console

__all__ = [
    "API_VERSION",
    "DOCUMENTS",
    "FORMATS",
    "CommandReport",
    "Drawing",
    "Json",
    "Line",
    "PlainTable",
    "Report",
    "Verbatim",
    "counted",
    "error_document",
    "format_option",
    "html_page",
    "html_table",
    "listed",
    "object_format_option",
    "plain_console",
    "print_document",
    "print_errors",
    "print_lines",
    "print_picture_report",
    "print_report",
    "report_lines",
    "to_document",
    "to_html",
    "to_json",
    "to_yaml",
]
