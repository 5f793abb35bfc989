# SPDX-License-Identifier: Apache-2.0
"""Specs as JSON, which YAML parsers can read too.

The JSON follows from the dataclasses of `spec`: a field has the same name in camelCase, a field with its default value
is not written, and a field without a default is required. Reading is strict, as in container runtimes: an unknown
field, a duplicate field or a value of the wrong type is a problem. A null value means that the field is absent, as for
the Go programs that read these files.
"""

import dataclasses
import functools
import json
import re
import typing
from collections.abc import Mapping
from typing import Any

from .spec import Problem, Spec, SpecError, minimum_version, validate

_VERSION = "cdiVersion"


def dumps(spec: Spec) -> bytes:
    """`spec` as a JSON document. Does not validate the spec."""
    return json.dumps(encode(spec), indent=2).encode() + b"\n"


def loads(data: bytes | str, source: str = "CDI spec") -> Spec:
    """The valid spec of a JSON document. Raises SpecError, which begins with `source` and lists all problems."""
    try:
        document = json.loads(data, object_pairs_hook=_unique_fields)
    except ValueError as error:
        raise SpecError([Problem("", f"is not a JSON document: {error}")], source) from None
    return decode(document, source)


def encode(spec: Spec) -> dict[str, Any]:
    """`spec` as JSON values."""
    return {_VERSION: spec.cdi_version or minimum_version(spec)} | _encode_object(spec)


def decode(document: object, source: str = "CDI spec") -> Spec:
    """The valid spec of JSON values. Raises SpecError, which begins with `source` and lists all problems."""
    problems: list[Problem] = []
    if isinstance(document, Mapping) and not document.get(_VERSION):
        problems.append(Problem(_VERSION, "is required"))
    spec = _decode_object(Spec, document, "", problems)
    if not problems:
        problems.extend(validate(spec))
    if problems:
        raise SpecError(problems, source)
    return typing.cast(Spec, spec)


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    json: str
    type: Any
    required: bool
    default: Any


@functools.cache
def _fields(kind: type) -> tuple[_Field, ...]:
    types = typing.get_type_hints(kind)
    fields = []
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        name = re.sub("_([a-z])", lambda match: match[1].upper(), field.name)
        fields.append(_Field(field.name, name, types[field.name], required, default))
    return tuple(fields)


def _encode_object(value: Any) -> dict[str, Any]:
    kind: type = type(value)
    document = {}
    for field in _fields(kind):
        item = getattr(value, field.name)
        if field.required or item != field.default:
            document[field.json] = _encode(item)
    return document


def _encode(value: Any) -> Any:
    match value:
        case str() | int():
            return value
        case tuple():
            return [_encode(item) for item in value]
        case Mapping():
            return dict(value)
    return _encode_object(value)


def _decode_object(kind: type, value: object, path: str, problems: list[Problem]) -> Any:
    """`value` as an object of type `kind`. If that is not possible, returns None and adds to `problems`."""
    if not isinstance(value, Mapping):
        problems.append(_mismatch(path, "an object", value))
        return None
    before = len(problems)
    left = {name: item for name, item in value.items() if item is not None}
    arguments = {}
    for field in _fields(kind):
        where = f"{path}.{field.json}" if path else field.json
        if field.json in left:
            arguments[field.name] = _decode(field.type, left.pop(field.json), where, problems)
        elif field.required:
            problems.append(Problem(where, "is required"))
    known = [field.json for field in _fields(kind)]
    for name in left:
        import difflib  # only needed after a mistake

        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f" (known here: {', '.join(known)})"
        problems.append(Problem(f"{path}.{name}" if path else str(name), f"unknown field{hint}"))
    return kind(**arguments) if len(problems) == before else None


def _decode(wanted: Any, value: object, path: str, problems: list[Problem]) -> Any:
    """`value` as the type `wanted` of a dataclass field."""
    if dataclasses.is_dataclass(wanted):
        return _decode_object(typing.cast(type, wanted), value, path, problems)
    origin = typing.get_origin(wanted)
    if origin is tuple:
        if not isinstance(value, list):
            problems.append(_mismatch(path, "a list", value))
            return ()
        item_type = typing.get_args(wanted)[0]
        return tuple(_decode(item_type, item, f"{path}[{index}]", problems) for index, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, Mapping):
            problems.append(_mismatch(path, "an object", value))
            return {}
        return {key: _decode(str, item, f"{path}[{key}]", problems) for key, item in value.items()}
    scalar, name = (str, "a string") if wanted is str else (int, "an integer")
    if type(value) is not scalar:
        problems.append(_mismatch(path, name, value))
    return value


def _mismatch(path: str, wanted: str, value: object) -> Problem:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return Problem(path, f"must be {wanted}, not {'null' if value is None else names[type(value)]}")


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return fields
