# SPDX-License-Identifier: Apache-2.0
"""The lines and columns of the fields of an object.

Fields have the paths that the codec writes, such as `spec.devices.requests[0].name` or `metadata.labels[app]`. Their
lines and columns come from the nodes of the YAML or JSON.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

Steps = tuple[str | int, ...]

_STEP = re.compile(r"\[([^\]]*)\]|([^.\[]+)")

MERGE: Final = "tag:yaml.org,2002:merge"


def resolve(value: Any, path: str) -> tuple[Steps, bool]:
    """The keys and indices of `path`, as far as `value` has them, and whether this is the whole path.

    A key may contain dots (`metadata.labels.app.kubernetes.io/name`). The shortest key that exists is used.
    """
    names = [bracketed or plain for bracketed, plain in _STEP.findall(path)]
    steps: list[str | int] = []
    while names:
        step, used = _step(value, names)
        if step is None:
            return tuple(steps), False
        steps.append(step)
        value = value[step]
        names = names[used:]
    return tuple(steps), True


def _step(value: Any, names: list[str]) -> tuple[str | int | None, int]:
    """The next step into `value`, and the number of names that it consists of."""
    if isinstance(value, dict):
        for used in range(1, len(names) + 1):
            key = ".".join(names[:used])
            if key in value:
                return key, used
    if isinstance(value, list) and names[0].isdecimal() and int(names[0]) < len(value):
        return int(names[0]), 1
    return None, 0


def is_within(path: str, outer: str) -> bool:
    """Whether `path` is `outer` or a place in it."""
    return path == outer or path.startswith((f"{outer}.", f"{outer}[")) or not outer


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Positions:
    """The places of the fields of one object."""

    node: yaml.Node
    lines: Sequence[str]

    def of(self, steps: Steps, offset: int | None = None) -> Position:
        """The place of a field's name or of a list's item; with `offset`, of this character of the field's text.

        If the steps do not exist, it is the place of the last step that does.
        """
        node, mark = self.node, self.node.start_mark
        for step in steps:
            found = _child(node, step)
            if found is None:
                break
            node, mark = found
        else:
            if offset is not None and isinstance(node, yaml.ScalarNode):
                return _inside(node, offset, self.lines)
        return position_of(mark)

    def item(self, field: str, index: int) -> "Positions":
        """The positions of one item of a list."""
        found = _child(self.node, field)
        assert found is not None
        item = _child(found[0], index)
        assert item is not None
        return Positions(item[0], self.lines)


def _child(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Mark] | None:
    """The value of a key or index, and the place of the key or item. Merged mappings count."""
    if isinstance(node, yaml.SequenceNode):
        if isinstance(step, int) and step < len(node.value):
            return node.value[step], node.value[step].start_mark
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    merged: list[yaml.Node] = []
    for key, value in node.value:
        if key.tag == MERGE:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        elif key.value == str(step):
            return value, key.start_mark
    return next((found for mapping in merged if (found := _child(mapping, step)) is not None), None)


def _inside(node: yaml.ScalarNode, offset: int, lines: Sequence[str]) -> Position:
    """The place of a character of a scalar in any style: characters other than blanks are counted."""
    ahead = sum(not character.isspace() for character in node.value[:offset])
    line, column = node.start_mark.line, node.start_mark.column
    if node.style in ("|", ">"):
        line, column = line + 1, 0
    elif node.style in ("'", '"'):
        column += 1
    while line <= node.end_mark.line and line < len(lines):
        text = lines[line]
        while column < len(text):
            width = _width(text, column, node.style)
            if not text[column : column + width].isspace():
                if ahead == 0:
                    return Position(line + 1, column + 1)
                ahead -= 1
            column += width
        line, column = line + 1, 0
    return position_of(node.start_mark)


def position_of(mark: yaml.Mark) -> Position:
    """The place of a mark of PyYAML, which counts from 0."""
    return Position(mark.line + 1, mark.column + 1)


def _width(text: str, column: int, style: str | None) -> int:
    """The number of characters in the file for one of the text: two for an escaped character."""
    pair = text[column : column + 2]
    return 2 if (style == "'" and pair == "''") or (style == '"' and pair[:1] == "\\" and len(pair) == 2) else 1
