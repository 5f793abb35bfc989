# SPDX-License-Identifier: Apache-2.0
"""Descriptions of kinds: their names, their versions, and how their objects behave.

A `ServedKind` is data. Its behaviour is a `KindStrategy`: functions over raw objects that the verbs call at fixed
points, like the strategies in the registry of k8s.io/kubernetes. `groups` lists the built-in kinds. A
CustomResourceDefinition adds kinds at run time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from . import names
from .field_errors import FieldError
from .objects import Object, encode, pick
from .release import Release
from .schema import SchemaType
from .users import User

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

FieldSelectors = Mapping[str, Callable[[Object], str]]

Conversion = Callable[[Object, str], Object]
"""Convert an object from or to a version. Conversions never change their argument; the result may share parts with it.
"""


@dataclass(slots=True)
class Context:
    """The request and the cluster, as far as strategies use them."""

    release: Release
    now: datetime
    user: User
    get: Callable[[str, str], Object | None]
    """Return an object of another collection by its key: `get("namespaces", "default")`."""
    warnings: list[str] = field(default_factory=list)
    check_cel: Callable[[str], str | None] | None = None
    """Return the problem of a device selector's CEL expression, or None. None: expressions are not checked."""
    authorize: Callable[[str, str, str, str], str | None] | None = None
    """Return why the user lacks a permission on claims, or None (prefix of the verb, subresource, namespace, name)."""


def nothing(obj: Object, context: Context) -> None:
    """Changes nothing."""


def no_preparation(new: Object, old: Object | None, context: Context) -> None:
    """Changes nothing."""


def no_problems(new: Object, old: Object | None, context: Context) -> Iterable[FieldError]:
    """Accepts everything."""
    return ()


def no_warnings(new: Object, context: Context) -> Iterable[str]:
    """Warns of nothing."""
    return ()


@dataclass(frozen=True, slots=True, eq=False)
class KindStrategy:
    """How objects of a kind behave when they are written. The functions may change only the new object."""

    default: Callable[[Object, Context], None] = nothing
    """Set defaults. The server calls it for every decoded object."""
    prepare: Callable[[Object, Object | None, Context], None] = no_preparation
    """Runs before the validation of a create (old is None) or an update. Drops fields that clients may not set."""
    prepare_status: Callable[[Object, Object | None, Context], None] = no_preparation
    validate: Callable[[Object, Object | None, Context], Iterable[FieldError]] = no_problems
    validate_status: Callable[[Object, Object | None, Context], Iterable[FieldError]] = no_problems
    warn: Callable[[Object, Context], Iterable[str]] = no_warnings
    checks_required: bool = True
    """Whether the server checks the fields that the published schema requires. False where `validate` does this."""
    name_rule: names.NameRule = names.SUBDOMAIN
    generation: tuple[str, ...] = ()
    """Top-level fields whose change increments metadata.generation. Empty: the kind has no generation."""
    first_status: Mapping[str, Any] | None = None
    """The status of created objects, whatever the client sent. None: the server keeps the client's status."""
    status_keeps_metadata: bool = False
    """Whether a write to /status may also change labels and annotations."""
    unconditional_update: bool = True
    """Whether an update may leave out metadata.resourceVersion."""
    returns_deleted: bool = False
    """Whether a delete answers with the object instead of a Status."""
    begin_deletion: Callable[[Object, datetime], None] | None = None
    """Mark an object as being deleted, if a controller of the server has to clean up before."""
    held: Callable[[Object], bool] | None = None
    """Return whether a marked object must wait for that controller, besides its finalizers."""
    grace_period: Callable[[Object, int | None], int] | None = None
    """Return the seconds of a graceful deletion, from the object and the requested seconds. None: no grace period."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`. `cell` makes the cell from an object and the current time."""

    name: str
    cell: Callable[[Object, datetime], Any]
    type: str = "string"
    priority: int = 0
    """0: kubectl always shows the column. 1: kubectl shows it with `-o wide`."""
    format: str = ""


def text_at(*path: str, absent: str = "") -> Callable[[Object], str]:
    """Return a function that reads the text at `path`, for field selectors."""

    def read(obj: Object) -> str:
        value = pick(obj, *path)
        if isinstance(value, bool):
            return "true" if value else "false"
        return absent if value is None else str(value)

    return read


def same_shape(obj: Object, version: str) -> Object:
    """Return the object unchanged: the versions of the kind do not differ."""
    return obj


@dataclass(frozen=True, slots=True, eq=False)
class ServedKind:
    """A kind, and the resource that serves it."""

    group: str
    name: str
    plural: str
    versions: tuple[str, ...] = ("v1",)
    """API versions, the preferred one first."""
    namespaced: bool = True
    short: tuple[str, ...] = ()
    in_all: bool = False
    """Whether `kubectl get all` lists it."""
    subresources: tuple[str, ...] = ()
    """The subresources. `status` is added to built-in kinds whose published schema has a status."""
    strategy: KindStrategy = field(default_factory=KindStrategy)
    selectors: FieldSelectors = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    collection: str = ""
    """The collection that stores the objects. Two kinds may share one. Empty: the qualified plural."""
    to_stored: Conversion = same_shape
    from_stored: Conversion = same_shape
    singular: str = ""
    categories: tuple[str, ...] = ()
    list_name: str = ""
    verbs: tuple[str, ...] = ALL_VERBS
    schema: Object | None = None
    """The schema in the CustomResourceDefinition of the kind. None: the kind is built-in."""

    @property
    def custom(self) -> bool:
        """Whether a CustomResourceDefinition defines the kind."""
        return self.schema is not None

    @property
    def stored_in(self) -> str:
        """The name of the collection."""
        return self.collection or self.qualified_plural

    @property
    def qualified_plural(self) -> str:
        """The plural with the group: `resourceslices.resource.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def singular_name(self) -> str:
        """The singular name: `resourceslice`."""
        return self.singular or self.name.lower()

    @property
    def list_kind(self) -> str:
        """The kind of lists: `ResourceSliceList`."""
        return self.list_name or f"{self.name}List"

    @property
    def all_categories(self) -> tuple[str, ...]:
        """The categories of the kind: `kubectl get CATEGORY` lists it."""
        return (*(("all",) if self.in_all else ()), *self.categories)


@dataclass(frozen=True, eq=False)
class Served:
    """A kind in one of its versions. A URL names it."""

    kind: ServedKind
    version: str
    type: SchemaType

    @property
    def api_version(self) -> str:
        """The group and version: `resource.k8s.io/v1`."""
        return f"{self.kind.group}/{self.version}" if self.kind.group else self.version

    @cached_property
    def prefix(self) -> bytes:
        """The start of every encoded object: `{"kind":"Pod","apiVersion":"v1",`."""
        return encode({"kind": self.kind.name, "apiVersion": self.api_version})[:-1] + b","
