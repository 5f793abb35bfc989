# SPDX-License-Identifier: Apache-2.0
"""Schemas of CustomResourceDefinitions: defaults, and the rules that are checked.

These are required fields, enumerations, `minimum`, and the rule that a value is immutable. Types and unknown fields are
checked with the types that are made of the schemas. All other rules are ignored.
"""

from collections.abc import Iterator
from typing import Any, Final

from .. import field_errors as errors
from ..field_errors import FieldError
from ..objects import clone

Schema = dict[str, Any]

IMMUTABLE: Final = "self == oldSelf"
"""The only rule of `x-kubernetes-validations` that is understood."""


def set_defaults(value: Any, schema: Schema) -> None:
    """Set the defaults of absent fields, in place."""
    for name, field in _fields(value, schema):
        if name not in value and "default" in field:
            value[name] = clone(field["default"])
        set_defaults(value.get(name), field)
    for item in _items(value, schema):
        set_defaults(item, schema["items"])


def problems(new: Any, old: Any, schema: Schema, path: str = "") -> Iterator[FieldError]:
    """Yield the violated rules of an object, which replaces `old` (None: there was none)."""
    if "enum" in schema and new not in schema["enum"]:
        yield errors.not_supported(path, new, schema["enum"])
    if "minimum" in schema and new < schema["minimum"]:
        text = f"{path} in body should be greater than or equal to {schema['minimum']}"
        yield errors.invalid(path, new, text)
    for rule in schema.get("x-kubernetes-validations") or ():
        if rule.get("rule") == IMMUTABLE and old is not None and new != old:
            text = rule.get("message") or f"failed rule: {IMMUTABLE}"
            yield FieldError("FieldValueInvalid", path, f"Invalid value: {text}")
    for name in schema.get("required") or () if isinstance(new, dict) else ():
        if name not in new:
            yield errors.required(f"{path}.{name}" if path else name)
    before = old if isinstance(old, dict) else {}
    for name, field in _fields(new, schema):
        if name in new and name != "metadata":
            yield from problems(new[name], before.get(name), field, f"{path}.{name}" if path else name)
    for index, item in enumerate(_items(new, schema)):
        yield from problems(item, None, schema["items"], f"{path}[{index}]")


def _fields(value: Any, schema: Schema) -> Iterator[tuple[str, Schema]]:
    if isinstance(value, dict):
        yield from (schema.get("properties") or {}).items()


def _items(value: Any, schema: Schema) -> list[Any]:
    return value if isinstance(value, list) and isinstance(schema.get("items"), dict) else []
