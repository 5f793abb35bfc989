# SPDX-License-Identifier: Apache-2.0
"""The server's own controllers: they serve custom kinds, empty namespaces and collect garbage after each write.

In a real cluster, kube-controller-manager does part of this. The server creates no service accounts and has no node
lifecycle. `dra_driver.sandbox.workloads` creates pods.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

from .catalog import Cluster
from .groups.crds import GROUP, custom_kinds, custom_type
from .kinds import Served
from .objects import Object, clone, pick
from .store import Change, Event, Record
from .users import INTERNAL
from .verbs.delete import FOREGROUND, ORPHAN, DeleteOptions, delete_record
from .verbs.request import Call
from .verbs.write import replace

MANAGER = "kube-apiserver"


def internal_call(served: Served, namespace: str, name: str, subresource: str = "") -> Call:
    """Return a request that the server itself sends."""
    return Call("update", served, namespace, name, subresource, INTERNAL, user_agent=MANAGER)


def modify(
    cluster: Cluster, collection: str, record: Record, change: Callable[[Object], None], subresource: str = ""
) -> Record:
    """Change a stored object and return the new record, or the same record if `change` makes no difference."""
    obj: Object = clone(record.object)
    change(obj)
    if obj == record.object:
        return record
    meta = record.object["metadata"]
    call = internal_call(
        cluster.catalog.of_collection(collection), meta.get("namespace", ""), meta["name"], subresource
    )
    return replace(cluster, call, record, obj)


ObjectRef = tuple[str, str]
"""The collection and the key of an object."""


class GarbageCollector:
    """The garbage collector: it deletes objects whose owners are gone, or orphans them on request.

    Call `observe` with every event, then `collect` after the write. Each change of an object queues the object, its
    owners and its dependents. The results are those of kube-controller-manager's garbage collector.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_uid: dict[str, ObjectRef] = {}
        self._dependents: dict[str, set[ObjectRef]] = defaultdict(set)
        self._queue: deque[ObjectRef] = deque()

    def observe(self, collection: str, event: Event) -> None:
        """Record a change of an object."""
        ref = (collection, event.record.key)
        meta = event.record.object["metadata"]
        for owner in _owners(event.previous.object if event.previous else None):
            self._dependents[owner["uid"]].discard(ref)
        if event.change is Change.DELETED:
            self._by_uid.pop(meta["uid"], None)
            self._queue.extend(self._dependents.get(meta["uid"], ()))
            for owner in _owners(event.record.object):
                self._look_at_owner(owner["uid"])
            return
        self._by_uid[meta["uid"]] = ref
        for owner in _owners(event.record.object):
            self._dependents[owner["uid"]].add(ref)
            self._look_at_owner(owner["uid"])
        if meta.get("ownerReferences") or _is_going(meta):
            self._queue.append(ref)

    def _look_at_owner(self, uid: str) -> None:
        if uid in self._by_uid:
            self._queue.append(self._by_uid[uid])

    @property
    def idle(self) -> bool:
        """Whether the queue is empty."""
        return not self._queue

    def collect(self) -> None:
        """Process the queue, with the objects that this adds to it."""
        while self._queue:
            collection, key = self._queue.popleft()
            record = self._cluster.store.get(collection, key)
            if record is not None:
                self._look(collection, record)

    def _look(self, collection: str, record: Record) -> None:
        meta = record.object["metadata"]
        if meta.get("deletionTimestamp"):
            if FOREGROUND in meta.get("finalizers", ()):
                self._delete_in_foreground(collection, record)
            elif ORPHAN in meta.get("finalizers", ()):
                self._orphan(collection, record)
            return
        owners = list(_owners(record.object))
        if not owners:
            return
        alive = [owner for owner in owners if self._exists(owner)]
        if not alive:
            self._delete(collection, record, "Background")
        elif len(alive) < len(owners):
            modify(self._cluster, collection, record, partial(_set_owners, owners=alive))

    def _exists(self, owner: Object) -> bool:
        """Return whether the owner exists. An owner of a kind that is not served counts as existing."""
        if owner["uid"] in self._by_uid:
            return True
        group, _, version = owner.get("apiVersion", "").rpartition("/")
        return self._cluster.catalog.find_kind(group, version, owner.get("kind", "")) is None

    def _delete_in_foreground(self, collection: str, record: Record) -> None:
        uid = record.object["metadata"]["uid"]
        for ref in sorted(self._dependents.get(uid, ())):
            dependent = self._cluster.store.get(*ref)
            if dependent is not None and not dependent.object["metadata"].get("deletionTimestamp"):
                self._delete(ref[0], dependent, "Foreground")
        blocking = [ref for ref in self._dependents.get(uid, ()) if self._blocks(ref, uid)]
        if not blocking:
            modify(self._cluster, collection, record, partial(_drop_finalizer, name=FOREGROUND))

    def _blocks(self, ref: ObjectRef, uid: str) -> bool:
        record = self._cluster.store.get(*ref)
        return record is not None and any(
            owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in _owners(record.object)
        )

    def _orphan(self, collection: str, record: Record) -> None:
        uid = record.object["metadata"]["uid"]
        for ref in sorted(self._dependents.get(uid, ())):
            dependent = self._cluster.store.get(*ref)
            if dependent is not None:
                kept = [owner for owner in _owners(dependent.object) if owner["uid"] != uid]
                modify(self._cluster, ref[0], dependent, partial(_set_owners, owners=kept))
        modify(self._cluster, collection, record, partial(_drop_finalizer, name=ORPHAN))

    def _delete(self, collection: str, record: Record, policy: str) -> None:
        meta = record.object["metadata"]
        call = internal_call(self._cluster.catalog.of_collection(collection), meta.get("namespace", ""), meta["name"])
        delete_record(self._cluster, call, record, DeleteOptions(policy=policy))


def _owners(obj: Object | None) -> list[Object]:
    found: list[Object] = pick(obj, "metadata", "ownerReferences") or []
    return found


def _is_going(meta: Object) -> bool:
    return bool(meta.get("deletionTimestamp"))


def _set_owners(obj: Object, owners: list[Object]) -> None:
    if owners:
        obj["metadata"]["ownerReferences"] = owners
    else:
        obj["metadata"].pop("ownerReferences", None)


def _drop_finalizer(obj: Object, name: str) -> None:
    kept = [finalizer for finalizer in obj["metadata"].get("finalizers", ()) if finalizer != name]
    if kept:
        obj["metadata"]["finalizers"] = kept
    else:
        obj["metadata"].pop("finalizers", None)


NAMESPACES = "namespaces"


class NamespaceController:
    """The controller that empties namespaces that are being deleted. Call `observe` with every event, then `work`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._going: set[str] = set()
        self._dirty: set[str] = set()

    def observe(self, collection: str, event: Event) -> None:
        """Record a change of a namespace, or of an object inside a namespace that is being deleted."""
        if collection == NAMESPACES:
            name = event.record.key
            if event.change is Change.DELETED:
                self._going.discard(name)
            elif event.record.object["metadata"].get("deletionTimestamp"):
                self._going.add(name)
                self._dirty.add(name)
        elif self._going and event.record.namespace in self._going:
            self._dirty.add(event.record.namespace)

    @property
    def idle(self) -> bool:
        """Whether no namespace needs work."""
        return not self._dirty

    def work(self) -> None:
        """Delete the objects in namespaces that are being deleted, then the empty namespaces."""
        while self._dirty:
            name = self._dirty.pop()
            record = self._cluster.store.get(NAMESPACES, name)
            if record is None:
                continue
            if not self._empty(name):
                self._finish(record)

    def _empty(self, namespace: str) -> int:
        prefix = f"{namespace}/"
        remaining = 0
        for collection in self._cluster.store.names():
            records = self._cluster.store.collection(collection).records
            for key in [key for key in records if key.startswith(prefix)]:
                record = self._cluster.store.get(collection, key)
                if record is None:
                    continue
                served = self._cluster.catalog.of_collection(collection)
                call = internal_call(served, namespace, key.removeprefix(prefix))
                _, gone = delete_record(self._cluster, call, record, DeleteOptions(policy="Background"))
                remaining += not gone
        return remaining

    def _finish(self, record: Record) -> None:
        """Remove the finalizer `kubernetes`. The namespace is deleted if it has no other finalizer."""
        obj: Object = {**record.object, "metadata": dict(record.object["metadata"]), "spec": {}}
        if obj["metadata"].get("finalizers"):
            self._cluster.store.put(NAMESPACES, record.key, obj)
        else:
            self._cluster.store.delete(NAMESPACES, record.key, obj)


DEFINITIONS = f"customresourcedefinitions.{GROUP}"


class CustomKinds:
    """The controller that serves the kinds of CustomResourceDefinitions. Call `observe` with every event."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def observe(self, collection: str, event: Event) -> None:
        """Update the catalog for a new or changed definition. If it is deleted, delete its objects as well."""
        if collection != DEFINITIONS:
            return
        catalog, crd = self._cluster.catalog, event.record.object
        catalog.withdraw(crd["spec"]["group"], crd["spec"]["names"]["plural"])
        if event.change is Change.DELETED:
            self._cluster.store.drop(event.record.key)
            return
        namespace = catalog.find("", "v1", "namespaces")
        assert namespace is not None, "namespaces are always served"
        metadata = namespace.type.fields["metadata"]
        for kind, version, schema in custom_kinds(crd):
            catalog.add(kind, version, custom_type(metadata, catalog.schemas.type_of(schema)))


class Controllers:
    """All controllers of a server. They get every event of its store."""

    def __init__(self, cluster: Cluster) -> None:
        self._custom = CustomKinds(cluster)
        self._garbage = GarbageCollector(cluster)
        self._namespaces = NamespaceController(cluster)
        cluster.store.listeners.append(self._observe)
        self._scheduled = False

    def _observe(self, collection: str, event: Event) -> None:
        self._custom.observe(collection, event)
        self._garbage.observe(collection, event)
        self._namespaces.observe(collection, event)

    def settle(self) -> None:
        """Schedule the controllers. They run after the answer to the current request has been made."""
        if not self._scheduled and not self._idle:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._work)

    @property
    def _idle(self) -> bool:
        return self._garbage.idle and self._namespaces.idle

    def _work(self) -> None:
        self._scheduled = False
        while not self._idle:
            self._garbage.collect()
            self._namespaces.work()
