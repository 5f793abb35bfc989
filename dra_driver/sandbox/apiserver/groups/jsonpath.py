# SPDX-License-Identifier: Apache-2.0
"""JSONPath as the columns of CustomResourceDefinitions use it (k8s.io/client-go/util/jsonpath).

A path consists of these steps: `.name` and `['name']` (a dot in a name is written as `\\.`), `[2]`, `[-1:]`, `[*]`,
and a filter such as `[?(@.type=="Ready")]`, which compares a field with a text or a number. Other steps are not
supported.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

_STEP: Final = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\\s])+)
    | \[\s*'(?P<quoted>[^']*)'\s*\]
    | \[\s*(?P<all>\*)\s*\]
    | \[\s*(?P<index>-?\d+)\s*\]
    | \[\s*(?P<first>-?\d+)?\s*:\s*(?P<end>-?\d+)?\s*\]
    | \[\s*\?\s*\(\s*@(?P<field>(?:\.[^.\[\]=!\s]+)+)\s*(?P<operator>==|!=)
      \s*(?P<literal>"[^"]*"|'[^']*'|-?\d+|true|false)\s*\)\s*\]
    """,
    re.VERBOSE,
)

Step = Callable[[Any], Iterable[Any]]
"""A function from a value to the values below it that a step selects."""


class JsonPathError(ValueError):
    """The text is not a path, or has a step that is not supported."""


def parse(text: str) -> tuple[Step, ...]:
    """Return the steps of a path such as `.status.conditions[0].type`. Raises JsonPathError."""
    path = text.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    steps: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise JsonPathError(f"{path[position:]!r} is not supported in a path")
        steps.append(_step(match))
        position = match.end()
    if not steps:
        raise JsonPathError("the path is empty")
    return tuple(steps)


def find(value: Any, steps: Iterable[Step]) -> list[Any]:
    """Return all values that the path selects. Absent fields select nothing."""
    found = [value]
    for step in steps:
        found = [selected for item in found for selected in step(item)]
    return found


def _step(match: re.Match[str]) -> Step:
    if match["name"] is not None:
        return partial(_field, re.sub(r"\\(.)", r"\1", match["name"]))
    if match["quoted"] is not None:
        return partial(_field, match["quoted"])
    if match["field"] is not None:
        text = match["literal"]
        literal = text[1:-1] if text[0] in "\"'" else json.loads(text)
        return partial(_filtered, match["field"][1:].split("."), match["operator"] == "==", literal)
    if match["index"] is not None:
        index = int(match["index"])
        return partial(_items, slice(index, index + 1 or None))
    return partial(_items, slice(*(None if match[end] is None else int(match[end]) for end in ("first", "end"))))


def _field(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and name in value:
        yield value[name]


def _items(selected: slice, value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values() if selected == slice(None) else ()
    return value[selected] if isinstance(value, list) else ()


def _filtered(path: list[str], equal: bool, literal: Any, value: Any) -> Iterator[Any]:
    for item in value if isinstance(value, list) else ():
        found = find(item, [partial(_field, name) for name in path])
        if found and (found[0] == literal) is equal:
            yield item
