# SPDX-License-Identifier: Apache-2.0
"""Checking the values of a custom resource against its structural schema.

The keywords are those of JSON schema that CRDs allow; the texts are those of the validator that
the API server uses (kube-openapi's).
"""

import re
from collections.abc import Iterator
from datetime import date
from functools import lru_cache
from typing import Any, Final

from .. import field_errors as errors
from ..field_errors import FieldError
from ..objects import canonical, parse_timestamp
from .types import ListKind, Shape, Type

Problems = Iterator[FieldError]

_ENVELOPE: Final = ("apiVersion", "kind", "metadata")


def object_problems(value: Any, node: Type) -> Problems:
    """What is wrong with the values of a custom resource (its metadata is checked elsewhere)."""
    yield from _required(value, node, "")
    for name, item in value.items():
        if name not in _ENVELOPE and name in node.fields:
            yield from value_problems(item, node.fields[name], name)
    if node.rules is not None:
        yield from _logic_problems(value, node.rules.constraints, "")


def value_problems(value: Any, node: Type, path: str) -> Problems:
    """What is wrong with one value and everything below it."""
    rules = node.rules
    if rules is None:
        return
    if value is None and rules.nullable:
        return
    wrong = _type_problem(value, node, path)
    if wrong is not None:
        yield wrong
        return
    yield from keyword_problems(value, rules.constraints, path)
    if isinstance(value, dict):
        yield from _required(value, node, path)
        for name, item in value.items():
            if name in node.fields or node.element is not None:
                yield from value_problems(item, node.child(name), f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from value_problems(item, node.item, f"{path}[{index}]")
        yield from _list_problems(value, node, path)


def _required(value: Any, node: Type, path: str) -> Problems:
    for name in node.required:
        if name not in value:
            yield errors.required(f"{path}.{name}" if path else name)


def _list_problems(value: list[Any], node: Type, path: str) -> Problems:
    if node.list_kind is ListKind.ATOMIC:
        return
    seen = set()
    for index, item in enumerate(value):
        if node.list_kind is ListKind.MAP:
            if not isinstance(item, dict) or not all(key in item for key in node.list_keys):
                continue
            item = {key: item[key] for key in node.list_keys}
        identity = canonical(item)
        if identity in seen:
            yield errors.duplicate(f"{path}[{index}]", item)
        seen.add(identity)


def type_name(value: Any) -> str:
    """The JSON schema name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    if isinstance(value, float):
        return "number"
    names: dict[type, str] = {dict: "object", list: "array"}
    return names.get(type(value), "string")


def _type_problem(value: Any, node: Type, path: str) -> FieldError | None:
    found = type_name(value)
    if node.shape is Shape.INT_OR_STRING:
        wanted, fits = "integer,string", found in ("integer", "string")
    else:
        assert node.rules is not None
        wanted = node.rules.constraints.get("type", "")
        fits = not wanted or found == wanted or (wanted == "number" and found == "integer")
    if fits:
        return None
    return errors.wrong_type(path, found, f'{path} in body must be of type {wanted}: "{found}"')


def keyword_problems(value: Any, keywords: dict[str, Any], path: str) -> Problems:
    """What the keywords of one schema node hold against a value of the right type."""
    if "enum" in keywords and not any(_equal(value, choice) for choice in keywords["enum"]):
        yield errors.not_supported(path, value, [str(choice) for choice in keywords["enum"]])
    if isinstance(value, str):
        yield from _string_problems(value, keywords, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_problems(value, keywords, path)
    elif isinstance(value, list):
        yield from _size_problems(len(value), keywords, path, "Items", "items")
        if keywords.get("uniqueItems") and len({canonical(item) for item in value}) != len(value):
            yield errors.invalid(path, value, f"{path} in body shouldn't contain duplicates")
    elif isinstance(value, dict):
        yield from _size_problems(len(value), keywords, path, "Properties", "properties")
    yield from _logic_problems(value, keywords, path)


def _equal(left: Any, right: Any) -> bool:
    return canonical(left) == canonical(right)


def _string_problems(value: str, keywords: dict[str, Any], path: str) -> Problems:
    """The first rule that a text breaks; the format besides."""
    if "maxLength" in keywords and len(value) > keywords["maxLength"]:
        yield errors.too_long(path, keywords["maxLength"])
    elif "minLength" in keywords and len(value) < keywords["minLength"]:
        text = f"{path} in body should be at least {keywords['minLength']} chars long"
        yield errors.invalid(path, value, text)
    elif "pattern" in keywords and _pattern(keywords["pattern"]).search(value) is None:
        yield errors.invalid(path, value, f"{path} in body should match '{keywords['pattern']}'")
    if "format" in keywords and not _has_format(value, keywords["format"]):
        name = keywords["format"]
        yield errors.wrong_type(path, value, f'{path} in body must be of type {name}: "{value}"')


@lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.ASCII)


def _has_format(value: str, name: str) -> bool:
    try:
        match name:
            case "date-time" | "datetime":
                parse_timestamp(value)
            case "date":
                date.fromisoformat(value)
            case "uuid":
                return re.fullmatch(r"(?i)[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", value) is not None
            case "email":
                return re.fullmatch(r"[^@\s]+@[^@\s]+", value) is not None
            case "duration":
                return re.fullmatch(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h|d|w))+|0", value) is not None
    except ValueError:
        return False
    return True


def _number_problems(value: float, keywords: dict[str, Any], path: str) -> Problems:
    least, most = keywords.get("minimum"), keywords.get("maximum")
    if least is not None:
        open_end = keywords.get("exclusiveMinimum") is True
        if value < least or (open_end and value == least):
            words = "greater than" if open_end else "greater than or equal to"
            yield errors.invalid(path, value, f"{path} in body should be {words} {_number(least)}")
    if most is not None:
        open_end = keywords.get("exclusiveMaximum") is True
        if value > most or (open_end and value == most):
            words = "less than" if open_end else "less than or equal to"
            yield errors.invalid(path, value, f"{path} in body should be {words} {_number(most)}")
    step = keywords.get("multipleOf")
    if step and value % step:
        yield errors.invalid(path, value, f"{path} in body should be a multiple of {_number(step)}")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _size_problems(size: int, keywords: dict[str, Any], path: str, suffix: str, word: str) -> Problems:
    most, least = keywords.get(f"max{suffix}"), keywords.get(f"min{suffix}")
    if most is not None and size > most:
        yield errors.too_many(path, size, most)
    if least is not None and size < least:
        yield errors.invalid(path, size, f"{path} in body should have at least {least} {word}")


def _logic_problems(value: Any, keywords: dict[str, Any], path: str) -> Problems:
    one, some = keywords.get("oneOf"), keywords.get("anyOf")
    if one:
        matching = sum(satisfies(value, schema) for schema in one)
        if matching != 1:
            found = "none valid" if matching == 0 else f"{matching} valid alternatives"
            text = f'"{path}" must validate one and only one schema (oneOf). Found {found}'
            yield errors.invalid("<nil>", "", text)
    if some and not any(satisfies(value, schema) for schema in some):
        yield errors.invalid("<nil>", "", f'"{path}" must validate at least one schema (anyOf)')
    for schema in keywords.get("allOf") or ():
        if not satisfies(value, schema):
            yield errors.invalid("<nil>", "", f'"{path}" must validate all the schemas (allOf)')
    if "not" in keywords and satisfies(value, keywords["not"]):
        yield errors.invalid("<nil>", "", f'"{path}" must not validate the schema (not)')


def satisfies(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value fits a schema fragment, as they stand inside oneOf and the like."""
    wanted = schema.get("type")
    found = type_name(value)
    if wanted and found != wanted and not (wanted == "number" and found == "integer"):
        return False
    if next(keyword_problems(value, schema, ""), None) is not None:
        return False
    if isinstance(value, dict):
        if any(name not in value for name in schema.get("required", ())):
            return False
        extra = schema.get("additionalProperties")
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, extra if isinstance(extra, dict) else None)
            if inner is not None and not satisfies(item, inner):
                return False
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return all(satisfies(item, schema["items"]) for item in value)
    return True
