# SPDX-License-Identifier: Apache-2.0
"""Errors of single fields of an object: the causes in a 422 answer.

Reasons and texts follow the package validation/field of k8s.io/apimachinery, because clients and people match on them.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FieldError:
    """One violated rule. `field` is the JSON path. `message` is the text without the path."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def required(field: str, detail: str = "") -> FieldError:
    """Return the error of a missing field."""
    return FieldError("FieldValueRequired", field, f"Required value: {detail}" if detail else "Required value")


def invalid(field: str, value: Any, detail: str) -> FieldError:
    """Return the error of a value that breaks a rule."""
    return FieldError("FieldValueInvalid", field, f"Invalid value: {_shown(value)}: {detail}")


def not_supported(field: str, value: Any, supported: Iterable[str]) -> FieldError:
    """Return the error of a value outside of an enumeration."""
    choices = ", ".join(_shown(choice) for choice in supported)
    return FieldError(
        "FieldValueNotSupported", field, f"Unsupported value: {_shown(value)}: supported values: {choices}"
    )


def forbidden(field: str, detail: str) -> FieldError:
    """Return the error of a field that must not be set here."""
    return FieldError("FieldValueForbidden", field, f"Forbidden: {detail}")


def duplicate(field: str, value: Any) -> FieldError:
    """Return the error of a value that occurs twice."""
    return FieldError("FieldValueDuplicate", field, f"Duplicate value: {_shown(value)}")


def too_long(field: str, limit: int) -> FieldError:
    """Return the error of a text above its limit in bytes."""
    return FieldError("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> FieldError:
    """Return the error of a list or map above its limit."""
    return FieldError("FieldValueTooMany", field, f"Too many: {count}: must have at most {limit} items")


def not_found(field: str, value: Any) -> FieldError:
    """Return the error of a reference to something that does not exist."""
    return FieldError("FieldValueNotFound", field, f"Not found: {_shown(value)}")
