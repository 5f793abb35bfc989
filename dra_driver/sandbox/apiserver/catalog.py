# SPDX-License-Identifier: Apache-2.0
"""The state of one server: its options, its objects, and the kinds that it serves now (built-in and custom).

Everything that handles a request gets this state. Only the event loop changes it.
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
    """Finds a served kind by its URL parts. Changes only when a CustomResourceDefinition does."""

    def __init__(self, release: Release, schemas: PublishedSchemas, kinds: Iterable[ServedKind]) -> None:
        self.release = release
        self.schemas = schemas
        self.generation = 0
        """Rises with every change; discovery documents are kept by it."""
        self._served: dict[tuple[str, str, str], Served] = {}
        self._by_kind: dict[tuple[str, str, str], Served] = {}
        self._own: dict[str, Served] = {}
        for kind in kinds:
            for version in kind.versions:
                if release.serves(kind.group, version, kind.name):
                    self._add_published(kind, version)

    def _add_published(self, kind: ServedKind, version: str) -> None:
        found = self.schemas.find(kind.group, version, kind.name)
        if found is not None:
            self.add(kind, version, found)

    def add(self, kind: ServedKind, version: str, node: Type) -> Served:
        """Serves `kind` in `version` from now on."""
        served = Served(kind, version, node, encoded_prefix(kind, version), kind.columns)
        self._served[kind.group, version, kind.plural] = served
        self._by_kind[kind.group, version, kind.name] = served
        self._own.setdefault(kind.stored_in, served)
        self.generation += 1
        return served

    def withdraw(self, group: str, plural: str) -> None:
        """Serves the resource `plural` of `group` no longer."""
        for key, old in list(self._served.items()):
            if key[0] == group and key[2] == plural:
                del self._served[key]
                self._by_kind.pop((group, old.version, old.kind.name), None)
                self._own.pop(old.kind.stored_in, None)
        self.generation += 1

    def find(self, group: str, version: str, plural: str) -> Served | None:
        """What `/apis/GROUP/VERSION/PLURAL` serves."""
        return self._served.get((group, version, plural))

    def find_kind(self, group: str, version: str, name: str) -> Served | None:
        """What serves objects of this apiVersion and kind."""
        return self._by_kind.get((group, version, name))

    def has_group(self, group: str) -> bool:
        """Whether anything of the group is served."""
        return any(key[0] == group for key in self._served)

    def of_collection(self, collection: str) -> Served:
        """The version in which the server itself handles the objects of a collection, served or not."""
        return self._own[collection]

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())


def encoded_prefix(kind: ServedKind, version: str) -> bytes:
    """The start of every encoded object of the kind in that version."""
    api_version = f"{kind.group}/{version}" if kind.group else version
    return encode({"kind": kind.name, "apiVersion": api_version})[:-1] + b","


CelCheck = Callable[[str], str | None]
"""What is wrong with a device selector's CEL expression; None when nothing is."""


@dataclass(slots=True)
class Cluster:
    """Objects, kinds and settings of a running server."""

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
        """What strategies may know, for a request of `user`."""
        return Context(self.release, self.clock(), user, self.object, check_cel=self.check_cel)

    def object(self, collection: str, key: str) -> Object | None:
        """A stored object, which must not be changed."""
        record = self.store.get(collection, key)
        return record.object if record else None
