# SPDX-License-Identifier: Apache-2.0
"""The JSONPath of printer columns and selectable fields: fields, indices, wildcards, equality filters.

A subset of k8s.io/client-go/util/jsonpath, which is what CRDs use it for.
"""

import json
import re
from functools import lru_cache
from typing import Any, Final

from ..objects import Object

_STEP: Final = re.compile(
    r"""\.(?P<field>(?:\\.|[^.\[\\])+)
      | \[\?\(\s*@\.(?P<key>[\w.\-/]+)\s*(?P<operator>==|!=)\s*(?P<quote>["'])(?P<wanted>.*?)(?P=quote)\s*\)\]
      | \[(?P<index>-?\d+|\*)\]
      | \[(?P<mark>["'])(?P<name>.*?)(?P=mark)\]""",
    re.VERBOSE,
)


@lru_cache(maxsize=512)
def _steps(path: str) -> tuple[re.Match[str], ...]:
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    text = text if text.startswith((".", "[")) else f".{text}"
    found, position = [], 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            return ()
        found.append(match)
        position = match.end()
    return tuple(found)


def find(path: str, obj: Object) -> list[Any]:
    """The values at a path; none when it leads nowhere or is not understood."""
    steps = _steps(path)
    if not steps:
        return []
    current: list[Any] = [obj]
    for step in steps:
        current = [value for item in current for value in _take(step, item)]
    return [value for value in current if value is not None]


def _take(step: re.Match[str], item: Any) -> list[Any]:
    name = step["field"] or step["name"]
    if name is not None:
        name = name.replace("\\.", ".")
        if name == "*" and isinstance(item, dict):
            return list(item.values())
        return [item[name]] if isinstance(item, dict) and name in item else []
    if not isinstance(item, list):
        return []
    if step["index"] == "*":
        return item
    if step["index"] is not None:
        index = int(step["index"])
        return item[index : index + 1] if index >= 0 else item[index:][:1]
    equal = step["operator"] == "=="
    return [
        element
        for element in item
        if isinstance(element, dict) and (shown(_deep(element, step["key"])) == step["wanted"]) is equal
    ]


def _deep(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def shown(value: Any) -> str:
    """A value in a cell: texts as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def text_at(path: str, obj: Object) -> str:
    """The value of a selectable field."""
    found = find(path, obj)
    return shown(found[0]) if found else ""
