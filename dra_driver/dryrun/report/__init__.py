# SPDX-License-Identifier: Apache-2.0
"""The report of a dry run, for people (tables, HTML) and for programs (JSON, YAML).

`Report.of` collects everything once (`model`, `picture`). The printers only choose words and layout: `tables` and
`terminal` for terminals, `page` for HTML, `document` for programs.
"""

from .document import error_document, to_document, to_json, to_yaml
from .model import Report
from .page import to_html
from .tables import print_report
from .terminal import PlainTable, counted, listed, plain_console

__all__ = [
    "PlainTable",
    "Report",
    "counted",
    "error_document",
    "listed",
    "plain_console",
    "print_report",
    "to_document",
    "to_html",
    "to_json",
    "to_yaml",
]
