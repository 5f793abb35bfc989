# SPDX-License-Identifier: Apache-2.0
"""Two checks of the API server: unknown fields of pods and workloads, and names of objects, which must be unique."""

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from ..resource.codec import DecodeError
from .documents import JSON

_CLOSE: Final = 0.6


def unknown_fields(value: JSON) -> Iterator[DecodeError]:
    """The unknown fields of a Pod, Deployment, Job or similar object. Of other objects, none."""
    schema = _schema()
    root = schema["roots"].get(value.get("kind"))
    if root is not None:
        yield from _unknown(value, root, "", schema["types"])


Identity = tuple[str, str, str, str]
"""The API group, kind, namespace and name of an object."""


def identity_of(value: JSON) -> Identity | None:
    """The identity of an object. None for an object that gets its name from the API server."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        return None
    group = str(value["apiVersion"]).rpartition("/")[0]
    return group, str(value["kind"]), str(metadata.get("namespace") or "default"), str(metadata["name"])


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
