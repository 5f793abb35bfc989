# SPDX-License-Identifier: Apache-2.0
"""Schemas of CustomResourceDefinitions: defaults, and the rules that are checked.

Types and unknown fields are checked with the types that are made of the schemas. The rules here are those for the size
and form of values, required fields, unique items, combinations of schemas, and that a value is immutable. Other
expressions in `x-kubernetes-validations`, and `format`, are ignored.

The texts are those of k8s.io/apiextensions-apiserver/pkg/apiserver/validation and k8s.io/kube-openapi.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from .. import field_errors as errors
from ..field_errors import FieldError
from ..objects import canonical, clone

Schema = dict[str, Any]

IMMUTABLE: Final = "self == oldSelf"
"""The only rule of `x-kubernetes-validations` that is understood."""

Broken = Callable[[Any, Any, Schema], bool]
"""Whether a value breaks the rule with this limit. The schema has the other rules."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _matches(pattern: str, value: str) -> bool:
    """Return whether a part of the value matches. Every value matches a pattern that is not valid."""
    import re2  # type: ignore[import-untyped]  # compiled code, needed by few schemas

    try:
        return re2.search(pattern, value) is not None
    except re2.error:
        return True


def _below(value: Any, limit: Any, schema: Schema) -> bool:
    return _is_number(value) and (value < limit or (value == limit and bool(schema.get("exclusiveMinimum"))))


def _above(value: Any, limit: Any, schema: Schema) -> bool:
    return _is_number(value) and (value > limit or (value == limit and bool(schema.get("exclusiveMaximum"))))


_RULES: Final[Mapping[str, tuple[Broken, str]]] = {
    "minimum": (_below, "should be greater than or equal to {}"),
    "maximum": (_above, "should be less than or equal to {}"),
    "multipleOf": (
        lambda value, limit, schema: _is_number(value) and value % limit != 0,
        "should be a multiple of {}",
    ),
    "minLength": (
        lambda value, limit, schema: isinstance(value, str) and len(value) < limit,
        "should be at least {} chars long",
    ),
    "pattern": (
        lambda value, limit, schema: isinstance(value, str) and not _matches(limit, value),
        "should match '{}'",
    ),
    "minItems": (
        lambda value, limit, schema: isinstance(value, list) and len(value) < limit,
        "should have at least {} items",
    ),
    "minProperties": (
        lambda value, limit, schema: isinstance(value, dict) and len(value) < limit,
        "should have at least {} properties",
    ),
}
"""The rules whose error is `Invalid value`, with its text."""
_EXCLUSIVE: Final = {
    "minimum": ("exclusiveMinimum", "should be greater than {}"),
    "maximum": ("exclusiveMaximum", "should be less than {}"),
}


def set_defaults(value: Any, schema: Schema) -> None:
    """Set the defaults of absent fields, in place."""
    for name, field in (schema.get("properties") or {}).items() if isinstance(value, dict) else ():
        if name not in value and "default" in field:
            value[name] = clone(field["default"])
    for _, child, _, declared in _children(value, None, schema, ""):
        set_defaults(child, declared)


def problems(new: Any, old: Any, schema: Schema, path: str = "") -> Iterator[FieldError]:
    """Yield the violated rules of an object, which replaces `old` (None: there was none)."""
    if "enum" in schema and new not in schema["enum"]:
        yield errors.not_supported(path, new, schema["enum"])
    yield from _form_problems(new, schema, path)
    yield from _length_problems(new, schema, path)
    yield from _duplicate_problems(new, schema, path)
    yield from _combination_problems(new, schema, path)
    for rule in schema.get("x-kubernetes-validations") or ():
        if rule.get("rule") == IMMUTABLE and old is not None and new != old:
            text = rule.get("message") or f"failed rule: {IMMUTABLE}"
            yield FieldError("FieldValueInvalid", path, f"Invalid value: {text}")
    for name in schema.get("required") or () if isinstance(new, dict) else ():
        if name not in new:
            yield errors.required(f"{path}.{name}" if path else name)
    for here, child, before, declared in _children(new, old, schema, path):
        if here != "metadata":
            yield from problems(child, before, declared, here)


def _form_problems(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    for rule, (is_broken, text) in _RULES.items():
        if rule in schema and is_broken(value, schema[rule], schema):
            flag, exclusive = _EXCLUSIVE.get(rule, ("", ""))
            expected = (exclusive if schema.get(flag) else text).format(schema[rule])
            yield errors.invalid(path, value, f"{path} in body {expected}")


def _length_problems(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    match value:
        case str() if len(value) > schema.get("maxLength", len(value)):
            yield errors.too_long(path, schema["maxLength"])
        case list() if len(value) > schema.get("maxItems", len(value)):
            yield errors.too_many(path, len(value), schema["maxItems"])
        case dict() if len(value) > schema.get("maxProperties", len(value)):
            yield errors.too_many(path, len(value), schema["maxProperties"])


def _duplicate_problems(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    """Yield errors for items of a set, or items with the keys of a map, that occur twice."""
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or ()
    if kind not in ("set", "map") or not isinstance(value, list):
        return
    seen: set[str] = set()
    for index, item in enumerate(value):
        identity = {key: item[key] for key in keys if key in item} if kind == "map" else item
        text = canonical(identity)
        if text in seen:
            yield errors.duplicate(f"{path}[{index}]", identity)
        seen.add(text)


def _combination_problems(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    for part in schema.get("allOf") or ():
        yield from problems(value, None, part, path)
    if "anyOf" in schema and not _fitting(value, schema["anyOf"]):
        yield errors.invalid(path, value, f'"{path}" must validate at least one schema (anyOf)')
    if "oneOf" in schema and (count := _fitting(value, schema["oneOf"])) != 1:
        found = "none valid" if count == 0 else f"{count} valid alternatives"
        yield errors.invalid(path, value, f'"{path}" must validate one and only one schema (oneOf). Found {found}')
    if "not" in schema and _fitting(value, [schema["not"]]):
        yield errors.invalid(path, value, f'"{path}" must not validate the schema (not)')


def _fitting(value: Any, schemas: Iterable[Schema]) -> int:
    """Return the number of schemas whose rules the value fulfils."""
    return sum(not any(problems(value, None, schema)) for schema in schemas)


def _children(value: Any, old: Any, schema: Schema, path: str) -> Iterator[tuple[str, Any, Any, Schema]]:
    """Yield the values below a value: their paths, what they replace, and their schemas."""
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        declared, others = schema.get("properties") or {}, schema.get("additionalProperties")
        for name in (*(name for name in declared if name in value), *(name for name in value if name not in declared)):
            found = declared.get(name, others)
            if isinstance(found, dict):
                yield f"{path}.{name}" if path else name, value[name], before.get(name), found
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item, None, schema["items"]
