# SPDX-License-Identifier: Apache-2.0
"""The state of one server: its settings, its objects, and the kinds that it serves now.

Only the event loop changes this state.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from .kinds import Context, Served, ServedKind
from .objects import Object, now
from .release import Release
from .schema import SchemaType
from .schema.published import PublishedSchemas
from .store import Store
from .users import INTERNAL, User

CelCheck = Callable[[str], str | None]
"""A function that returns the problem of a device selector's CEL expression, or None."""

Admission = Callable[[str, Object], None]
"""A function that gets the resource and the stored form of an object before it is created or updated. Like an admission
webhook, it may change the object, or refuse it with a RequestError.
"""


class ServedKinds:
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
            found = {version: schemas.find(kind.group, version, kind.name) for version in kind.versions}
            nodes = {version: node for version, node in found.items() if node is not None}
            complete = _with_status(kind, nodes.values())
            for version, node in nodes.items():
                if release.serves(kind.group, version):
                    self.add(complete, version, node)

    def add(self, kind: ServedKind, version: str, node: SchemaType) -> None:
        """Start to serve `kind` in `version`."""
        served = Served(kind, version, node)
        self._served[kind.group, version, kind.plural] = served
        self._by_kind[kind.group, version, kind.name] = served
        self._own.setdefault(kind.stored_in, served)
        self.generation += 1

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

    def of_collection(self, collection: str) -> Served:
        """Return the kind, in the version in which the server's own controllers handle the objects of a collection."""
        return self._own[collection]

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())


def _with_status(kind: ServedKind, nodes: Iterable[SchemaType]) -> ServedKind:
    """Return the kind with the subresource `status` if its schemas have a status."""
    if not any("status" in node.fields for node in nodes):
        return kind
    return replace(kind, subresources=tuple(sorted({*kind.subresources, "status"})))


def admit_everything(resource: str, obj: Object) -> None:
    """Accept the object unchanged."""


@dataclass(slots=True)
class ServedCluster:
    """The objects, kinds and settings of a running server."""

    release: Release
    catalog: ServedKinds
    rbac: bool = False
    check_cel: CelCheck | None = None
    admit: Admission = admit_everything
    check_new: Admission = admit_everything
    """Gets each new object after its validation, like a validating admission plugin: it may only refuse."""
    no_programs: str = ""
    """What is said to clients that want something of the program of a container."""
    store: Store = field(default_factory=Store)
    users: dict[str, User] = field(default_factory=dict)
    """The users by their bearer tokens."""

    def context(self, user: User = INTERNAL) -> Context:
        """Return the context that strategies get for a request of `user`."""
        return Context(self.release, now(), user, self.object, check_cel=self.check_cel)

    def object(self, collection: str, key: str) -> Object | None:
        """Return a stored object, or None. Callers must not change it."""
        record = self.store.get(collection, key)
        return record.object if record else None
