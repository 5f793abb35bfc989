# SPDX-License-Identifier: Apache-2.0
"""The fields that the published schemas require, for kinds without rules of their own."""

from collections.abc import Iterator
from typing import Any

from .. import field_errors as errors
from ..field_errors import FieldError
from .types import Shape, Type


def missing_fields(value: Any, node: Type, path: str = "") -> Iterator[FieldError]:
    """The required fields that are absent, or texts that are empty. Neither metadata nor status is looked into."""
    if node.shape is Shape.STRUCT and isinstance(value, dict):
        for name in node.required:
            if not path and name in ("metadata", "status"):
                continue
            if name not in value or (value[name] == "" and node.fields[name].shape is Shape.STRING):
                yield errors.required(f"{path}.{name}" if path else name)
        for name, item in value.items():
            if path or name not in ("metadata", "status"):
                here = f"{path}.{name}" if path else name
                yield from missing_fields(item, node.child(name), here)
    elif node.shape is Shape.LIST and isinstance(value, list):
        for index, item in enumerate(value):
            yield from missing_fields(item, node.item, f"{path}[{index}]")
    elif node.shape is Shape.MAP and isinstance(value, dict) and node.item.shape is not Shape.STRING:
        for key, item in value.items():
            yield from missing_fields(item, node.item, f"{path}[{key}]")
