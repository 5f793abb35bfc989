# SPDX-License-Identifier: Apache-2.0
"""The form of pods and workloads: which fields they have, and of which type each is, as the API server decodes them.

`workload-types.json` has a type for each field: the name of another type, `[X]` for a list and `{X}` for a map with
texts as keys, or one of `string`, `boolean`, `int32`, `int64`, `time`, `quantity`, `int-or-string` and `any`.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from ...errors import QuantityError
from ...kube.resource import Quantity
from ...kube.resource.codec import DecodeError, json_type

_CLOSE: Final = 0.6
_INTEGERS: Final = {"int32": range(-(1 << 31), 1 << 31), "int64": range(-(1 << 63), 1 << 63)}
_WANTED: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "string": ((str,), "a string"),
    "boolean": ((bool,), "true or false"),
    "int32": ((int,), "an integer"),
    "int64": ((int,), "an integer"),
    "quantity": ((str, int, float), 'a quantity such as "40Gi"'),
    "int-or-string": ((int, str), "an integer or a string"),
}
"""The JSON types of scalar fields, and their names in messages."""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_NOTHING: Final[Mapping[str, Any]] = {"string": "", "boolean": False, "int32": 0, "int64": 0, "quantity": "0"}
"""The value that null stands for as an item of a list or a map."""

UNKNOWN_FIELD: Final = "unknown field"
"""How the problem of a field that its kind does not have begins."""
_VERSIONS: Final = ("v1", "apps/v1", "batch/v1")
_POD_SPEC: Final = "PodSpec"


def form_errors(value: Mapping[str, Any]) -> Iterator[DecodeError]:
    """Unknown fields and values of wrong types in a Pod, Deployment, Job or similar object. In other kinds, none."""
    if has_form(value):
        walk = _Walk()
        walk.read(value, _table()["roots"][value["kind"]], "")
        yield from (error for error in walk.errors if id(error) not in walk.unknown or not _is_of_status(error))


def has_form(value: Mapping[str, Any]) -> bool:
    """Whether `form_errors` knows the kind of an object. Kinds of other API groups have the same names."""
    return value.get("kind") in _table()["roots"] and value.get("apiVersion") in _VERSIONS


def pod_spec_errors(spec: Mapping[str, Any]) -> Iterator[DecodeError]:
    """Unknown fields and values of wrong types in the spec of a pod. The paths begin in the spec."""
    walk = _Walk()
    walk.read(spec, _POD_SPEC, "")
    yield from walk.errors


def checked_pod(value: Mapping[str, Any]) -> dict[str, Any]:
    """A pod (JSON) whose known fields have their types, without other fields and without nulls. A copy.

    Raises DecodeError for the first value of a wrong type.
    """
    walk = _Walk()
    pod: dict[str, Any] = walk.read(value, _table()["roots"]["Pod"], "")
    for error in walk.errors:
        if id(error) not in walk.unknown:
            raise error
    return pod


def _is_of_status(error: DecodeError) -> bool:
    return error.path.startswith("status.")


@cache
def _table() -> dict[str, Any]:
    text = files(__package__).joinpath("workload-types.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


POD_FIELDS: Final = frozenset(_table()["types"][_POD_SPEC])
"""The names of the fields of the spec of a pod."""


class _Walk:
    """Copies the valid parts of a value, and collects the errors. `unknown` are ids of errors."""

    def __init__(self) -> None:
        self.errors: list[DecodeError] = []
        self.unknown: set[int] = set()
        self._types: Mapping[str, Mapping[str, str]] = _table()["types"]

    def read(self, value: Any, kind: str, path: str) -> Any:
        """The valid parts of the value. An empty object or list if the value has another type."""
        if kind == "any":
            return value
        if kind == "time":
            return self._time(value, path)
        if kind in _WANTED:
            return self._scalar(value, kind, path)
        if kind[0] == "[":
            return self._list(value, kind[1:-1], path)
        return self._map(value, kind[1:-1], path) if kind[0] == "{" else self._object(value, kind, path)

    def _object(self, value: Any, kind: str, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            self._refuse(path, "an object", value)
            return {}
        known = self._types[kind]
        result = {}
        for name, item in value.items():
            below = f"{path}.{name}" if path else str(name)
            if name not in known:
                close = difflib.get_close_matches(str(name), known, n=1, cutoff=_CLOSE)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                self._error(below, f"{UNKNOWN_FIELD}{hint}")
                self.unknown.add(id(self.errors[-1]))
            elif item is not None:
                result[name] = self.read(item, known[name], below)
        return result

    def _list(self, value: Any, kind: str, path: str) -> list[Any]:
        if not isinstance(value, list):
            self._refuse(path, "a list", value)
            return []
        return [self.read(self._present(item, kind), kind, f"{path}[{index}]") for index, item in enumerate(value)]

    def _map(self, value: Any, kind: str, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            self._refuse(path, "an object", value)
            return {}
        result = {}
        for key, item in value.items():
            if type(key) is not str:
                self._refuse(f"{path}[{json.dumps(key, default=str)}]", "named by a string", key)
            else:
                result[key] = self.read(self._present(item, kind), kind, f"{path}[{key}]")
        return result

    def _present(self, item: Any, kind: str) -> Any:
        return _NOTHING.get(kind, {} if kind in self._types else None) if item is None else item

    def _scalar(self, value: Any, kind: str, path: str) -> Any:
        kinds, wanted = _WANTED[kind]
        if kind in _INTEGERS and type(value) is float and value.is_integer():
            value = int(value)  # clients send 1 to the API server for 1.0
        if type(value) not in kinds:
            self._refuse(path, wanted, value)
        elif kind in _INTEGERS and value not in _INTEGERS[kind]:
            self._error(path, f"does not fit a {kind.removeprefix('int')}-bit integer")
        elif kind == "quantity":
            try:
                Quantity.parse(str(value))
            except QuantityError as error:
                self._error(path, str(error))
        return value

    def _time(self, value: Any, path: str) -> str:
        """The text of a time. Loaders of YAML return a datetime if it has no quotes."""
        if hasattr(value, "isoformat"):
            return str(value.isoformat()).replace("+00:00", "Z")
        if not isinstance(value, str):
            self._refuse(path, "a time", value)
        elif not _TIME.fullmatch(value):
            self._error(path, f"{value!r} is not a time such as 2026-01-31T12:00:00Z")
        return str(value)

    def _refuse(self, path: str, wanted: str, value: Any) -> None:
        self._error(path, f"must be {wanted}, not {json_type(value)}")

    def _error(self, path: str, problem: str) -> None:
        self.errors.append(DecodeError(path, problem))
