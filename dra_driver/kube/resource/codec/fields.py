# SPDX-License-Identifier: Apache-2.0
"""Reading JSON objects field by field, with errors that name the field. Also the parts that several kinds have.

`Fields` returns the value of each field once and checks its JSON type. As in the Kubernetes API, null means that the
field is absent. `finish` reports fields that have not been read: to a user as an error, of an object that a server has
stored as one of the fields that a newer Kubernetes has (`unread`).

The served versions differ in few points (`Dialect`): v1 and v1beta2 have the same form. In v1beta1 the fields of a
device are under `basic`, and the fields of an exact request are directly in the request.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from ....errors import DriverError, QuantityError
from ..claim import DeviceClass, OpaqueConfiguration, ResourceClaim, ResourceClaimTemplate
from ..device import DeviceTaintRule, DeviceToleration, ResourceSlice
from ..meta import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectMeta, OwnerReference
from ..quantity import Quantity

T = TypeVar("T")
Stored = TypeVar("Stored", ResourceSlice, DeviceTaintRule, DeviceClass, ResourceClaim, ResourceClaimTemplate)

_INT64 = range(-(1 << 63), 1 << 63)
_INDEX: Final = re.compile(r"\[[0-9]+\]")


_LONGEST: Final = 1000

GROUP = "resource.k8s.io"


def _short(text: str) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"


class DecodeError(DriverError, ValueError):
    """The object does not have the form of its apiVersion and kind. `path` is the place of the error.

    Both may contain texts of a user. In the message, they are shortened.
    """

    def __init__(self, path: str, problem: str) -> None:
        shown = _short("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in path))
        super().__init__(f"{shown}: {_short(problem)}" if path else _short(problem))
        self.path = path
        self.problem = problem


class Fields:
    """The fields of one JSON object that have not been read yet."""

    __slots__ = ("_known", "_left", "_parent", "_step", "_unread", "strict")

    def __init__(self, value: object, step: str = "", parent: "Fields | None" = None, strict: bool = True) -> None:
        self._parent = parent
        self._step = step
        self.strict: bool = strict if parent is None else parent.strict
        self._unread: dict[str, None] = {} if parent is None else parent._unread
        if type(value) is not dict and not isinstance(value, Mapping):  # the second check takes long
            raise DecodeError(self.path(), f"must be an object, not {json_type(value)}")
        self._left: dict[str, Any] = {key: item for key, item in value.items() if item is not None}
        self._known: list[str] = []

    def path(self, field: str = "") -> str:
        """The path of a field, such as `spec.devices[3].name`."""
        parts = [self._step, field] if field else [self._step]
        parent = self._parent
        while parent is not None:
            parts.insert(0, parent._step)
            parent = parent._parent
        return ".".join(part for part in parts if part).replace(".[", "[")

    def error(self, field: str, problem: str) -> DecodeError:
        """An error in a field of this object."""
        return DecodeError(self.path(field), problem)

    def __contains__(self, field: str) -> bool:
        return field in self._left

    def take(self, field: str) -> Any:
        """The value of a field without any check, None if it is absent."""
        self._known.append(field)
        return self._left.pop(field, None)

    def _typed(self, field: str, kind: type[T], wanted: str) -> T | None:
        self._known.append(field)
        value = self._left.pop(field, None)
        if value is None or type(value) is kind:
            return value
        raise self.error(field, f"must be {wanted}, not {json_type(value)}")

    def text(self, field: str, default: str = "") -> str:
        """A string field."""
        value = self._typed(field, str, "a string")
        return default if value is None else value

    def optional_text(self, field: str) -> str | None:
        """A string field, None if it is absent."""
        return self._typed(field, str, "a string")

    def required_text(self, field: str) -> str:
        """A string field that is required and must not be empty."""
        value = self._typed(field, str, "a string")
        if not value:
            raise self.error(field, "is required")
        return value

    def flag(self, field: str) -> bool:
        """A boolean field, false if it is absent."""
        return self._typed(field, bool, "true or false") or False

    def integer(self, field: str) -> int | None:
        """A 64-bit integer field, None if it is absent."""
        value = self.take(field)
        if type(value) is float and value.is_integer():
            value = int(value)  # clients send 1 to the API server for 1.0
        if value is not None and type(value) is not int:
            raise self.error(field, f"must be an integer, not {json_type(value)}")
        if value is not None and value not in _INT64:
            raise self.error(field, "does not fit a 64-bit integer")
        return value

    def required_integer(self, field: str) -> int:
        """A 64-bit integer field that is required."""
        value = self.integer(field)
        if value is None:
            raise self.error(field, "is required")
        return value

    def quantity(self, field: str) -> Quantity | None:
        """A quantity field, None if it is absent. It is a string, or a number, which is usual in YAML."""
        value = self.take(field)
        return None if value is None else self.as_quantity(field, value)

    def as_quantity(self, field: str, value: object) -> Quantity:
        """The value of a field as a quantity."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.error(field, f'must be a quantity such as "40Gi", not {json_type(value)}')
        try:
            return Quantity.parse(str(value))
        except QuantityError as error:
            raise self.error(field, str(error)) from None

    def object(self, field: str) -> "Fields | None":
        """A nested object, None if it is absent."""
        value = self.take(field)
        return None if value is None else Fields(value, field, self)

    def required_object(self, field: str) -> "Fields":
        """A nested object that is required."""
        value = self.take(field)
        if value is None:
            raise self.error(field, "is required")
        return Fields(value, field, self)

    def raw_object(self, field: str) -> Mapping[str, Any] | None:
        """A nested object whose fields are not read, None if it is absent."""
        return self._typed(field, dict, "an object")

    def array(self, field: str) -> list[Any]:
        """A list field, empty if it is absent."""
        return self._typed(field, list, "a list") or []

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self.array(field)
        for index, value in enumerate(values):
            if type(value) is not str:
                raise self.error(f"{field}[{index}]", f"must be a string, not {json_type(value)}")
        return tuple(values)

    def objects(self, field: str, decode: "Callable[[Fields], T]") -> tuple[T, ...]:
        """A list of objects, each converted by `decode`."""
        values = self.array(field)
        if not values:
            return ()
        return tuple(decode(Fields(value, f"{field}[{index}]", self)) for index, value in enumerate(values))

    def decode_all(self, field: str, decode: "Callable[[Fields], T]") -> tuple[T, ...]:
        """Like `objects`, but `decode` must read all fields of an object."""
        return self.objects(field, lambda inner: inner.decoded_by(decode))

    def decode_one(self, field: str, decode: "Callable[[Fields], T]") -> T | None:
        """A nested object, None if it is absent. `decode` must read all of its fields."""
        inner = self.object(field)
        return None if inner is None else inner.decoded_by(decode)

    def decoded_by(self, decode: "Callable[[Fields], T]") -> T:
        """This object, converted by `decode`, which must read all fields."""
        decoded = decode(self)
        self.finish()
        return decoded

    def decode_whole(self, decode: "Callable[[Fields], Stored]") -> Stored:
        """The object of a kind, converted by `decode`, with the fields that were not read."""
        decoded = self.decoded_by(decode)
        return replace(decoded, unread=self.unread) if self._unread else decoded

    def text_map(self, field: str) -> dict[str, str]:
        """An object whose values are strings, such as labels."""
        values: dict[str, Any] = self._typed(field, dict, "an object") or {}
        for key, value in values.items():
            if type(key) is not str:
                raise self.error(f"{field}[{key}]", f"must be named by a string, not {json_type(key)}")
            if type(value) is not str:
                raise self.error(f"{field}[{key}]", f"must be a string, not {json_type(value)}")
        return values

    def ignore(self, *fields: str) -> None:
        """Accept fields without reading their values."""
        for field in fields:
            self.take(field)

    @property
    def unread(self) -> tuple[str, ...]:
        """The paths of the fields of the whole object that `finish` found unread, each once: the indices of lists are
        left out, as in `spec.devices[].name`. Empty if the object is read strictly.
        """
        return tuple(self._unread)

    def is_newer(self, *fields: str) -> bool:
        """Whether the object has none of these fields and others that are left: a server has stored a form of it that
        only a newer Kubernetes knows. Never if it is read strictly.
        """
        return not self.strict and bool(self._left) and not any(field in self._left for field in fields)

    def skip(self, field: str) -> None:
        """Count a field that may not be read as one of the unread ones."""
        self._unread[_INDEX.sub("[]", self.path(field))] = None

    def finish(self) -> None:
        """Raise DecodeError if a field has not been read. Without `strict`, add these fields to the unread ones."""
        if not self._left:
            return
        if not self.strict:
            for unknown in self._left:
                self.skip(str(unknown))
            return
        field = next(iter(self._left))
        import difflib  # only needed for the error

        close = difflib.get_close_matches(str(field), self._known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f" (known here: {', '.join(sorted(self._known))})"
        raise self.error(str(field), f"unknown field{hint}")


def json_type(value: object) -> str:
    """The name of the JSON type of a value, for messages."""
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


@dataclass(frozen=True, slots=True)
class Dialect:
    """The JSON form of one version."""

    version: str
    nested_device: bool = False  # devices[].basic
    flat_request: bool = False  # no requests[].exactly

    @property
    def api_version(self) -> str:
        """Group and version, as in `apiVersion`."""
        return f"{GROUP}/{self.version}"


V1 = Dialect("v1")
V1BETA2 = Dialect("v1beta2")
V1BETA1 = Dialect("v1beta1", nested_device=True, flat_request=True)

DIALECTS: tuple[Dialect, ...] = (V1, V1BETA2, V1BETA1)
"""The newest version first. Clients should prefer newer versions."""

BY_API_VERSION = {dialect.api_version: dialect for dialect in DIALECTS}


# Parts that several kinds have


def object_meta(top: Fields) -> ObjectMeta:
    """`metadata` of an object, without the fields that only the API server uses."""
    top.ignore("apiVersion", "kind")
    return top.decode_one("metadata", _metadata) or ObjectMeta()


def _metadata(fields: Fields) -> ObjectMeta:
    fields.ignore("generation", "managedFields", "selfLink", "deletionGracePeriodSeconds")
    return ObjectMeta(
        name=fields.text("name"),
        namespace=fields.text("namespace"),
        uid=fields.text("uid"),
        generate_name=fields.text("generateName"),
        resource_version=fields.text("resourceVersion"),
        creation_timestamp=timestamp(fields, "creationTimestamp"),
        deletion_timestamp=timestamp(fields, "deletionTimestamp"),
        labels=fields.text_map("labels"),
        annotations=fields.text_map("annotations"),
        owner_references=fields.decode_all("ownerReferences", _owner),
        finalizers=fields.texts("finalizers"),
    )


def timestamp(fields: Fields, name: str) -> str:
    """An RFC 3339 time. Loaders of YAML return a datetime if it has no quotes."""
    value = fields.take(name)
    if value is None or isinstance(value, str):
        return value or ""
    if hasattr(value, "isoformat"):
        return str(value.isoformat()).replace("+00:00", "Z")
    raise fields.error(name, f"must be a time, not {json_type(value)}")


def _owner(fields: Fields) -> OwnerReference:
    fields.ignore("blockOwnerDeletion")
    return OwnerReference(
        fields.text("apiVersion"),
        fields.text("kind"),
        fields.text("name"),
        fields.text("uid"),
        fields.flag("controller"),
    )


def node_selector(fields: Fields | None) -> NodeSelector | None:
    """A NodeSelector, None if it is absent."""
    if fields is None:
        return None
    selector = NodeSelector(fields.decode_all("nodeSelectorTerms", _node_selector_term))
    fields.finish()
    return selector


def _node_selector_term(fields: Fields) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        fields.decode_all("matchExpressions", _node_requirement), fields.decode_all("matchFields", _node_requirement)
    )


def _node_requirement(fields: Fields) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(
        fields.required_text("key"), fields.required_text("operator"), fields.texts("values")
    )


def selectors(fields: Fields) -> tuple[str, ...]:
    """The expressions of the CEL selectors. Selectors of kinds that are not known are unread fields."""
    found = fields.decode_all("selectors", _selector)
    return tuple(expression for expression in found if expression is not None)


def _selector(fields: Fields) -> str | None:
    if fields.is_newer("cel"):
        return None
    return fields.required_object("cel").decoded_by(lambda cel: cel.required_text("expression"))


def opaque(fields: Fields) -> OpaqueConfiguration | None:
    """The field `opaque` of a configuration. None for a configuration of a kind that is not known."""
    if fields.is_newer("opaque"):
        return None
    return fields.required_object("opaque").decoded_by(_opaque)


def _opaque(fields: Fields) -> OpaqueConfiguration:
    parameters = fields.raw_object("parameters")
    if parameters is None:
        raise fields.error("parameters", "is required")
    return OpaqueConfiguration(fields.required_text("driver"), parameters)


def toleration(fields: Fields) -> DeviceToleration:
    """A toleration of device taints."""
    return DeviceToleration(
        key=fields.text("key"),
        operator=fields.text("operator") or "Equal",
        value=fields.text("value"),
        effect=fields.text("effect"),
        toleration_seconds=fields.integer("tolerationSeconds"),
    )


def decode_node(value: object, *, strict: bool = True) -> Node:
    """A core/v1 Node: its metadata, and the names of its allocatable extended resources."""
    top = Fields(value, strict=strict)
    metadata = object_meta(top)
    status = top.object("status")
    allocatable = (status.raw_object("allocatable") if status is not None else None) or {}
    offered = (name for name, amount in allocatable.items() if "/" in name and str(amount) != "0")
    return Node(metadata, frozenset(offered))
