# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a request to JSON: JSON or YAML, and fields given twice.

Python's reader keeps the last of two fields of one name, as Go's does; the API server also
tells the client about them.
"""

import json
from typing import Any

import yaml


class TextError(Exception):
    """The bytes are not JSON or YAML."""


class _TwiceError(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _TwiceError
    return result


class _Marked(dict[str, Any]):
    """An object that remembers which of its fields were given twice."""

    twice: list[str]


def _mark(pairs: list[tuple[str, Any]]) -> _Marked:
    result = _Marked(pairs)
    seen: set[str] = set()
    result.twice = [name for name, _ in pairs if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    return result


def read_json(data: bytes) -> tuple[Any, list[str]]:
    """The JSON value, and a complaint for each field given twice. Raises TextError."""
    try:
        return json.loads(data, object_pairs_hook=_once), []
    except _TwiceError:
        marked = json.loads(data, object_pairs_hook=_mark)
        paths: list[str] = []
        _twice(marked, "", paths)
        return json.loads(data), [f'duplicate field "{path}"' for path in paths]
    except ValueError as error:
        raise TextError(str(error)) from error


def _twice(value: Any, path: str, paths: list[str]) -> None:
    if isinstance(value, _Marked):
        prefix = f"{path}." if path else ""
        paths += [prefix + name for name in value.twice]
        for key, item in value.items():
            _twice(item, prefix + key, paths)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _twice(item, f"{path}[{index}]", paths)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as JSON: times stay text."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read_yaml(data: bytes) -> Any:
    """The value of a YAML document; JSON is YAML too. Raises TextError."""
    if data.lstrip()[:1] == b"{":
        return read_json(data)[0]
    try:
        return yaml.load(data, Loader=_Loader)  # noqa: S506 - derived from the safe loader
    except yaml.YAMLError as error:
        raise TextError(str(error)) from error
