# SPDX-License-Identifier: Apache-2.0
"""Reading a JSON object field by field, with errors that name the place; and where the served versions differ.

A `Fields` hands out each field once, checked for its JSON type, and `finish` reports the fields that nothing has read.
null is absence, as in the Kubernetes API.

v1 and v1beta2 have one form. v1beta1 nests a device's fields under `basic` and writes an exact request's fields
directly into the request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import DriverError
from ..quantity import Quantity, QuantityError

T = TypeVar("T")

_INT64 = range(-(1 << 63), 1 << 63)


class DecodeError(DriverError, ValueError):
    """The object is not of the form that its apiVersion and kind promise. `path` is where."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


class Fields:
    """The fields of one JSON object that have not been read yet."""

    __slots__ = ("_known", "_left", "_parent", "_step", "strict")

    def __init__(self, value: object, step: str = "", parent: "Fields | None" = None, strict: bool = True) -> None:
        self._parent = parent
        self._step = step
        self.strict: bool = strict if parent is None else parent.strict
        if not isinstance(value, Mapping):
            raise DecodeError(self.path(), f"must be an object, not {json_type(value)}")
        self._left: dict[str, Any] = {key: item for key, item in value.items() if item is not None}
        self._known: list[str] = []

    def path(self, field: str = "") -> str:
        """Where `field` is, e.g. `spec.devices[3].name`."""
        parts = [self._step, field] if field else [self._step]
        parent = self._parent
        while parent is not None:
            parts.insert(0, parent._step)
            parent = parent._parent
        return ".".join(part for part in parts if part).replace(".[", "[")

    def error(self, field: str, problem: str) -> DecodeError:
        """An error about `field` of this object."""
        return DecodeError(self.path(field), problem)

    def __contains__(self, field: str) -> bool:
        return field in self._left

    def take(self, field: str) -> Any:
        """The raw value of `field`, None when absent."""
        self._known.append(field)
        return self._left.pop(field, None)

    def _typed(self, field: str, kind: type[T], wanted: str) -> T | None:
        value = self.take(field)
        if value is None or type(value) is kind:
            return value
        raise self.error(field, f"must be {wanted}, not {json_type(value)}")

    def text(self, field: str, default: str = "") -> str:
        """A string field."""
        value = self._typed(field, str, "a string")
        return default if value is None else value

    def optional_text(self, field: str) -> str | None:
        """A string field, None when absent."""
        return self._typed(field, str, "a string")

    def required_text(self, field: str) -> str:
        """A string field that must be there and not be empty."""
        value = self._typed(field, str, "a string")
        if not value:
            raise self.error(field, "is required")
        return value

    def flag(self, field: str) -> bool:
        """A boolean field, false when absent."""
        return self._typed(field, bool, "true or false") or False

    def integer(self, field: str) -> int | None:
        """A 64-bit integer field, None when absent."""
        value = self.take(field)
        if type(value) is float and value.is_integer():
            value = int(value)  # as the API server, which is sent 1 for 1.0
        if value is not None and type(value) is not int:
            raise self.error(field, f"must be an integer, not {json_type(value)}")
        if value is not None and value not in _INT64:
            raise self.error(field, "does not fit a 64-bit integer")
        return value

    def required_integer(self, field: str) -> int:
        """A 64-bit integer field that must be there."""
        value = self.integer(field)
        if value is None:
            raise self.error(field, "is required")
        return value

    def quantity(self, field: str) -> Quantity | None:
        """A quantity field (a string, or a number as YAML authors write it), None when absent."""
        value = self.take(field)
        return None if value is None else self.as_quantity(field, value)

    def as_quantity(self, field: str, value: object) -> Quantity:
        """`value`, found at `field`, as a quantity."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.error(field, f'must be a quantity such as "40Gi", not {json_type(value)}')
        try:
            return Quantity.parse(str(value))
        except QuantityError as error:
            raise self.error(field, str(error)) from None

    def object(self, field: str) -> "Fields | None":
        """A nested object, None when absent."""
        value = self.take(field)
        return None if value is None else Fields(value, field, self)

    def required_object(self, field: str) -> "Fields":
        """A nested object that must be there."""
        value = self.take(field)
        if value is None:
            raise self.error(field, "is required")
        return Fields(value, field, self)

    def raw_object(self, field: str) -> Mapping[str, Any] | None:
        """A nested object whose content is nobody's business here."""
        return self._typed(field, dict, "an object")

    def array(self, field: str) -> list[Any]:
        """A list field, empty when absent."""
        return self._typed(field, list, "a list") or []

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self.array(field)
        for index, value in enumerate(values):
            if type(value) is not str:
                raise self.error(f"{field}[{index}]", f"must be a string, not {json_type(value)}")
        return tuple(values)

    def objects(self, field: str, decode: "Callable[[Fields], T]") -> tuple[T, ...]:
        """A list of objects, each decoded."""
        return tuple(decode(Fields(value, f"{field}[{index}]", self)) for index, value in enumerate(self.array(field)))

    def text_map(self, field: str) -> dict[str, str]:
        """An object whose values are strings (labels)."""
        values: dict[str, Any] = self._typed(field, dict, "an object") or {}
        for key, value in values.items():
            if type(value) is not str:
                raise self.error(f"{field}[{key}]", f"must be a string, not {json_type(value)}")
        return values

    def ignore(self, *fields: str) -> None:
        """Fields that are known and of no concern."""
        for field in fields:
            self.take(field)

    def ignore_rest(self) -> None:
        """Whatever else is there is of no concern."""
        self._left.clear()

    def finish(self) -> None:
        """Refuse what was not read. Objects read leniently (from a newer server, say) may hold more."""
        if not self._left or not self.strict:
            return
        field = next(iter(self._left))
        import difflib  # only for those who make a mistake

        close = difflib.get_close_matches(str(field), self._known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f" (known here: {', '.join(sorted(self._known))})"
        raise self.error(str(field), f"unknown field{hint}")


def json_type(value: object) -> str:
    """What a JSON author would call the type of `value`."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
    return type(value).__name__


GROUP = "resource.k8s.io"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One version's JSON form."""

    version: str
    nested_device: bool = False  # devices[].basic
    flat_request: bool = False  # no requests[].exactly

    @property
    def api_version(self) -> str:
        return f"{GROUP}/{self.version}"


V1 = Dialect("v1")
V1BETA2 = Dialect("v1beta2")
V1BETA1 = Dialect("v1beta1", nested_device=True, flat_request=True)

DIALECTS: tuple[Dialect, ...] = (V1, V1BETA2, V1BETA1)
"""Newest first: the order in which a client should prefer them."""

BY_API_VERSION = {dialect.api_version: dialect for dialect in DIALECTS}
