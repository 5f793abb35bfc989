# SPDX-License-Identifier: Apache-2.0
"""The state of one server: its settings, its objects, and the kinds that it serves now.

Only the event loop changes this state.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .faults import Faults
from .kinds import Context, Served, ServedKind
from .objects import Clock, Object, encode
from .release import Release
from .schema import Type
from .schema.published import PublishedSchemas
from .store import Store
from .users import INTERNAL, Tokens, User


class Catalog:
    """The kinds that the server serves, by the parts of their URLs. Only CustomResourceDefinitions change them."""

    def __init__(self, release: Release, schemas: PublishedSchemas, kinds: Iterable[ServedKind]) -> None:
        self.release = release
        self.schemas = schemas
        self.generation = 0
        """A counter of changes. The server caches discovery documents for each generation."""
        self._served: dict[tuple[str, str, str], Served] = {}
        self._by_kind: dict[tuple[str, str, str], Served] = {}
        self._own: dict[str, Served] = {}
        for kind in kinds:
            for version in kind.versions:
                if release.serves(kind.group, version):
                    self._add_published(kind, version)

    def _add_published(self, kind: ServedKind, version: str) -> None:
        found = self.schemas.find(kind.group, version, kind.name)
        if found is not None:
            self.add(kind, version, found)

    def add(self, kind: ServedKind, version: str, node: Type) -> Served:
        """Start to serve `kind` in `version`."""
        served = Served(kind, version, node, encoded_prefix(kind, version), kind.columns)
        self._served[kind.group, version, kind.plural] = served
        self._by_kind[kind.group, version, kind.name] = served
        self._own.setdefault(kind.stored_in, served)
        self.generation += 1
        return served

    def withdraw(self, group: str, plural: str) -> None:
        """Stop serving the resource `plural` of `group`."""
        for key, old in list(self._served.items()):
            if key[0] == group and key[2] == plural:
                del self._served[key]
                self._by_kind.pop((group, old.version, old.kind.name), None)
                self._own.pop(old.kind.stored_in, None)
        self.generation += 1

    def find(self, group: str, version: str, plural: str) -> Served | None:
        """Return the served kind of the URL `/apis/GROUP/VERSION/PLURAL`, or None."""
        return self._served.get((group, version, plural))

    def find_kind(self, group: str, version: str, name: str) -> Served | None:
        """Return the served kind of objects with this apiVersion and kind, or None."""
        return self._by_kind.get((group, version, name))

    def has_group(self, group: str) -> bool:
        """Return whether the server serves any kind of the group."""
        return any(key[0] == group for key in self._served)

    def of_collection(self, collection: str) -> Served:
        """Return the kind, in the version in which the server's own controllers handle the objects of a collection."""
        return self._own[collection]

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())


def encoded_prefix(kind: ServedKind, version: str) -> bytes:
    """Return the start of every encoded object of the kind in that version."""
    api_version = f"{kind.group}/{version}" if kind.group else version
    return encode({"kind": kind.name, "apiVersion": api_version})[:-1] + b","


CelCheck = Callable[[str], str | None]
"""A function that returns the problem of a device selector's CEL expression, or None."""


@dataclass(slots=True)
class Cluster:
    """The objects, kinds and settings of a running server."""

    release: Release
    catalog: Catalog
    clock: Clock
    rbac: bool = False
    check_cel: CelCheck | None = None
    bookmark_interval: float = 60.0
    store: Store = field(default_factory=Store)
    tokens: Tokens = field(default_factory=Tokens)
    faults: Faults = field(default_factory=Faults)

    def context(self, user: User = INTERNAL) -> Context:
        """Return the context that strategies get for a request of `user`."""
        return Context(self.release, self.clock(), user, self.object, check_cel=self.check_cel)

    def object(self, collection: str, key: str) -> Object | None:
        """Return a stored object, or None. Callers must not change it."""
        record = self.store.get(collection, key)
        return record.object if record else None
