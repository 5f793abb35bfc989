# SPDX-License-Identifier: Apache-2.0
"""docs/reference/values.md, made from values.yaml: `python -m tests.charts.values_table` writes it anew.

The comment right above a value is its description.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from .rendering import CHART

PAGE = Path(__file__).parents[2] / "docs/reference/values.md"

_LONGEST_DEFAULT = 60
_HEAD = """\
<!-- Made from charts/dra-driver-gpu/values.yaml by `python -m tests.charts.values_table`; edit that file. -->
# Values of the chart

Set these values with `--set` or in a values file. The chart refuses unknown values, wrong types, and values that
contradict each other. [Migrating](../how-to/migrating.md) compares them with NVIDIA's chart, the device plugin and
the GPU Operator.
"""
_TABLE = """
## {name}
{text}
| value | default | meaning |
|---|---|---|
"""
_GENERAL = "General"


class Value(NamedTuple):
    """One value: where it is, its default (None: it only holds others), and what is said about it."""

    path: tuple[str, ...]
    default: str | None
    text: str


def values() -> Iterator[Value]:
    """All values, in the file's order; a mapping with values that have descriptions comes before them."""
    source = (CHART / "values.yaml").read_text(encoding="utf-8")
    root = yaml.compose(source)
    assert isinstance(root, yaml.MappingNode)
    yield from _values(root, (), source.splitlines())


def _values(node: yaml.MappingNode, path: tuple[str, ...], lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        here, text = (*path, str(key.value)), _comment(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and _describes(value, lines):
            yield Value(here, None, text)
            yield from _values(value, here, lines)
        else:
            yield Value(here, json.dumps(yaml.safe_load(yaml.serialize(value))), text)


def _describes(node: yaml.MappingNode, lines: list[str]) -> bool:
    """Whether anything in a mapping has a description of its own."""
    return not node.flow_style and any(
        _comment(lines, key.start_mark.line) or (isinstance(value, yaml.MappingNode) and _describes(value, lines))
        for key, value in node.value
    )


def _comment(lines: list[str], line: int) -> str:
    """The comment that ends right above a line, on one line."""
    found: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].strip().removeprefix("#").strip())
    return " ".join(found)


def page() -> str:
    """The text of the page: a table for each mapping at the top, and one before them for everything else."""
    tables: dict[str, list[Value]] = {_GENERAL: []}
    texts = {_GENERAL: ""}
    for value in values():
        if len(value.path) == 1 and value.default is None:
            tables[value.path[0]], texts[value.path[0]] = [], value.text
        elif value.default is not None:
            tables[value.path[0] if len(value.path) > 1 else _GENERAL].append(value)
    parts = [_HEAD]
    for name, rows in tables.items():
        text = f"\n{texts[name]}\n" if texts[name] else ""
        parts += [_TABLE.format(name=name, text=text), *map(_row, rows)]
    return "".join(parts)


def _row(value: Value) -> str:
    default = value.default if value.default and len(value.default) <= _LONGEST_DEFAULT else "see values.yaml"
    text = value.text.replace("|", "\\|")
    return f"| `{'.'.join(value.path)}` | `{default}` | {text} |\n"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
