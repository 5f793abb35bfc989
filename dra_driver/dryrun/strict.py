# SPDX-License-Identifier: Apache-2.0
"""Unknown fields in pods and in workloads, which the API server refuses."""

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from ..resource.codec import DecodeError
from .documents import Document

_CLOSE: Final = 0.6


def unknown_fields(document: Document) -> Iterator[DecodeError]:
    """The unknown fields of a Pod, Deployment, Job or similar object."""
    schema = _schema()
    root = schema["roots"].get(document.kind)
    if root is not None and not document.stored:
        yield from _unknown(document.value, root, "", schema["types"])


@cache
def _schema() -> dict[str, Any]:
    text = files(__package__).joinpath("workload-fields.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _unknown(value: Any, kind: str, path: str, types: Mapping[str, Mapping[str, str]]) -> Iterator[DecodeError]:
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield from _unknown(one, kind, f"{path}[{index}]", types)
        return
    known = types[kind]
    for name, inner in value.items() if isinstance(value, dict) else ():
        below = f"{path}.{name}" if path else name
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)
            yield DecodeError(below, "unknown field" + (f"; did you mean {close[0]!r}?" if close else ""))
        elif known[name]:
            yield from _unknown(inner, known[name], below, types)
