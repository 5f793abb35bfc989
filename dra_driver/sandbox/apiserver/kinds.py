# SPDX-License-Identifier: Apache-2.0
"""What the server has to know of a kind: names, versions, and how its objects behave.

A `ServedKind` is data; its behaviour is a `Strategy`, a handful of plain functions over raw objects
that the verbs call at fixed points, as the strategies of k8s.io/kubernetes' registry are.
`table.py` lists the kinds that are built in; a CustomResourceDefinition makes more at run time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from . import names
from .field_errors import FieldError
from .objects import Object, pick
from .release import Release
from .schema import Type
from .users import User

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(slots=True)
class Context:
    """What a strategy may know of the request and the cluster besides the object itself."""

    release: Release
    now: datetime
    user: User
    get: Callable[[str, str], Object | None]
    """`get("namespaces", "default")`: an object of another collection by key."""
    warnings: list[str] = field(default_factory=list)
    check_cel: Callable[[str], str | None] | None = None
    """The problem of a device selector's CEL expression; None when it compiles or nothing checks it."""
    authorize: Callable[[str, str, str, str], str | None] | None = None
    """(verb, subresource, namespace, name) of a synthetic resourceclaims check: why not, or None."""


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


def subdomain_name(name: str, prefix: bool) -> Iterable[str]:
    """What is wrong with the name of most objects."""
    return names.subdomain_problems(name, prefix=prefix)


@dataclass(frozen=True, slots=True, eq=False)
class Strategy:
    """How a kind's objects behave when they are written. Functions may change the new object only."""

    default: Callable[[Object, Context], None] = nothing
    """Fills in what the client left out; runs on every decoded object."""
    prepare: Callable[[Object, Object | None, Context], None] = no_preparation
    """Before validation of a create (old is None) or update; drops what the client may not set."""
    prepare_status: Callable[[Object, Object | None, Context], None] = no_preparation
    validate: Callable[[Object, Object | None, Context], Iterable[FieldError]] = no_problems
    validate_status: Callable[[Object, Object | None, Context], Iterable[FieldError]] = no_problems
    warn: Callable[[Object, Context], Iterable[str]] = no_warnings
    checks_required: bool = True
    """Whether fields that the published schema requires must be there; not where `validate` knows better."""
    name_problems: Callable[[str, bool], Iterable[str]] = subdomain_name
    """What is wrong with a name; the flag says that it is a generateName prefix."""
    generation: tuple[str, ...] = ()
    """Top-level fields whose change raises metadata.generation; none: the kind has no generation."""
    first_status: Mapping[str, Any] | None = None
    """The status that a created object gets whatever the client sent; None leaves the client's."""
    status_keeps_metadata: bool = False
    """Whether a write to /status may change labels and annotations too."""
    unconditional_update: bool = True
    """Whether an update may leave out metadata.resourceVersion."""
    returns_deleted: bool = False
    """Whether a delete answers with the object instead of a Status."""
    orphans_dependents: bool = False
    """Whether a delete without a policy orphans."""
    collects_garbage: bool = True
    """Whether deletion policies put finalizers on the object."""
    begin_deletion: Callable[[Object, datetime], None] | None = None
    """Marks an object as going that a controller of the server has to clean up after."""
    held: Callable[[Object], bool] | None = None
    """Whether a marked object must wait for that controller, besides its finalizers."""
    grace_period: Callable[[Object, int | None], int | None] | None = None
    """(object, asked seconds) -> seconds until a graceful deletion ends; None deletes at once."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`. `cell` makes the cell from an object and the current time."""

    name: str
    cell: Callable[[Object, datetime], Any]
    type: str = "string"
    priority: int = 0
    """0 is always shown, 1 with `-o wide`."""
    format: str = ""
    description: str = ""


FieldSelectors = Mapping[str, Callable[[Object], str]]


def text_at(*path: str, absent: str = "") -> Callable[[Object], str]:
    """A field selector's value: the text at `path`."""

    def read(obj: Object) -> str:
        value = pick(obj, *path)
        if isinstance(value, bool):
            return "true" if value else "false"
        return absent if value is None else str(value)

    return read


Conversion = Callable[[Object, str], Object]
"""(object, version): never changes its argument, may share parts with it."""


def same_shape(obj: Object, version: str) -> Object:
    """The conversion between versions that differ in nothing."""
    return obj


@dataclass(frozen=True, slots=True, eq=False)
class ServedKind:
    """One kind and the resource that serves it."""

    group: str
    name: str
    plural: str
    versions: tuple[str, ...] = ("v1",)
    """Most preferred first."""
    namespaced: bool = True
    short: tuple[str, ...] = ()
    in_all: bool = False
    """Whether `kubectl get all` lists it."""
    subresources: tuple[str, ...] = ()
    strategy: Strategy = field(default_factory=Strategy)
    selectors: FieldSelectors = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    collection: str = ""
    """Where objects are stored; two kinds may share one. Empty: the qualified plural."""
    to_stored: Conversion = same_shape
    from_stored: Conversion = same_shape
    singular: str = ""
    categories: tuple[str, ...] = ()
    list_name: str = ""
    verbs: tuple[str, ...] = ALL_VERBS
    custom: bool = False
    """Made by a CustomResourceDefinition."""

    @property
    def stored_in(self) -> str:
        """The name of the collection."""
        return self.collection or self.qualified_plural

    @property
    def qualified_plural(self) -> str:
        """`resourceslices.resource.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def singular_name(self) -> str:
        """`resourceslice`."""
        return self.singular or self.name.lower()

    @property
    def list_kind(self) -> str:
        """`ResourceSliceList`."""
        return self.list_name or f"{self.name}List"

    @property
    def all_categories(self) -> tuple[str, ...]:
        """`kubectl get CATEGORY` lists it."""
        return (*(("all",) if self.in_all else ()), *self.categories)


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A kind in one of its versions: what a URL leads to."""

    kind: ServedKind
    version: str
    type: Type
    prefix: bytes = b""
    """The start of every encoded object: `{"kind":"Pod","apiVersion":"v1",`."""
    columns: tuple[Column, ...] = ()

    @property
    def api_version(self) -> str:
        """`resource.k8s.io/v1`."""
        return f"{self.kind.group}/{self.version}" if self.kind.group else self.version
