# SPDX-License-Identifier: Apache-2.0
"""What is wrong with one field of an object: the causes inside a 422 answer.

Reasons and texts follow k8s.io/apimachinery's validation/field package, because clients and
people match on them.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FieldError:
    """One violated rule. `field` is the JSON path, `message` the text without it."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def required(field: str, detail: str = "") -> FieldError:
    """A field that must be there is not."""
    return FieldError("FieldValueRequired", field, f"Required value: {detail}" if detail else "Required value")


def invalid(field: str, value: Any, detail: str) -> FieldError:
    """A value that breaks a rule."""
    return FieldError("FieldValueInvalid", field, f"Invalid value: {_shown(value)}: {detail}")


def not_supported(field: str, value: Any, supported: Iterable[str]) -> FieldError:
    """A value outside an enumeration."""
    choices = ", ".join(_shown(choice) for choice in supported)
    return FieldError(
        "FieldValueNotSupported", field, f"Unsupported value: {_shown(value)}: supported values: {choices}"
    )


def forbidden(field: str, detail: str) -> FieldError:
    """A field that must not be set here."""
    return FieldError("FieldValueForbidden", field, f"Forbidden: {detail}")


def duplicate(field: str, value: Any) -> FieldError:
    """A value that must be unique is not."""
    return FieldError("FieldValueDuplicate", field, f"Duplicate value: {_shown(value)}")


def too_long(field: str, limit: int) -> FieldError:
    """A text above its limit in bytes."""
    return FieldError("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> FieldError:
    """A list or map above its limit."""
    return FieldError("FieldValueTooMany", field, f"Too many: {count}: must have at most {limit} items")


def not_found(field: str, value: Any) -> FieldError:
    """A reference to something that does not exist."""
    return FieldError("FieldValueNotFound", field, f"Not found: {_shown(value)}")
