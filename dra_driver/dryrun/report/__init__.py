# SPDX-License-Identifier: Apache-2.0
"""What a dry run found, for people (tables, a page) and for programs (JSON, YAML).

`Report.of` gathers everything once (`model`, `picture`); each printer only chooses words and layout.
"""

from .document import to_document, to_json, to_yaml
from .model import Answer, Inputs, Item, Report
from .page import to_html
from .picture import Cell, GpuPicture, NodePicture
from .tables import print_report
from .terminal import PlainTable, counted, listed, plain_console

__all__ = [
    "Answer",
    "Cell",
    "GpuPicture",
    "Inputs",
    "Item",
    "NodePicture",
    "PlainTable",
    "Report",
    "counted",
    "listed",
    "plain_console",
    "print_report",
    "to_document",
    "to_html",
    "to_json",
    "to_yaml",
]
