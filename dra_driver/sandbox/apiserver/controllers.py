# SPDX-License-Identifier: Apache-2.0
"""The server's own controllers: they serve custom kinds, empty namespaces and collect garbage after each write.

In a real cluster, kube-controller-manager does part of this. The server creates no service accounts and has no node
lifecycle. `dra_driver.sandbox.workloads` creates pods.
"""

import asyncio
from collections import defaultdict, deque

from .catalog import ServedCluster
from .groups.crds import GROUP, custom_kinds, custom_type
from .kinds import Served
from .objects import Object, clone, pick
from .store import ChangeType, ObjectEvent, StoredObject
from .users import INTERNAL
from .verbs.delete import FOREGROUND, ORPHAN, DeleteOptions, delete_record
from .verbs.request import ApiCall
from .verbs.write import replace

MANAGER = "kube-apiserver"

ObjectRef = tuple[str, str]
"""The collection and the key of an object."""

NAMESPACES = "namespaces"

DEFINITIONS = f"customresourcedefinitions.{GROUP}"


def internal_call(served: Served, namespace: str, name: str) -> ApiCall:
    """Return a request that the server itself sends."""
    return ApiCall("update", served, namespace, name, "", INTERNAL, user_agent=MANAGER)


class GarbageCollector:
    """The garbage collector: it deletes objects whose owners are gone, or orphans them on request.

    Call `observe` with every event, then `collect` after the write. Each change of an object queues the object, its
    owners and its dependents. The results are those of kube-controller-manager's garbage collector.
    """

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._by_uid: dict[str, ObjectRef] = {}
        self._dependents: dict[str, set[ObjectRef]] = defaultdict(set)
        self._queue: deque[ObjectRef] = deque()

    def observe(self, collection: str, event: ObjectEvent) -> None:
        """Record a change of an object."""
        ref = (collection, event.record.key)
        meta = event.record.object["metadata"]
        for owner in _owners(event.previous.object if event.previous else None):
            self._dependents[owner["uid"]].discard(ref)
        if event.change is ChangeType.DELETED:
            self._by_uid.pop(meta["uid"], None)
            self._queue.extend(self._dependents.get(meta["uid"], ()))
            for owner in _owners(event.record.object):
                self._look_at_owner(owner["uid"])
            return
        self._by_uid[meta["uid"]] = ref
        for owner in _owners(event.record.object):
            self._dependents[owner["uid"]].add(ref)
            self._look_at_owner(owner["uid"])
        if meta.get("ownerReferences") or meta.get("deletionTimestamp"):
            self._queue.append(ref)

    def _look_at_owner(self, uid: str) -> None:
        if uid in self._by_uid:
            self._queue.append(self._by_uid[uid])

    def collect(self) -> None:
        """Process the queue, with the objects that this adds to it."""
        while self._queue:
            collection, key = self._queue.popleft()
            record = self._cluster.store.get(collection, key)
            if record is not None:
                self._look(collection, record)

    def _look(self, collection: str, record: StoredObject) -> None:
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
            self._change(collection, record, "ownerReferences", alive)

    def _exists(self, owner: Object) -> bool:
        """Return whether the owner exists. An owner of a kind that is not served counts as existing."""
        if owner["uid"] in self._by_uid:
            return True
        group, _, version = owner.get("apiVersion", "").rpartition("/")
        return self._cluster.catalog.find_kind(group, version, owner.get("kind", "")) is None

    def _delete_in_foreground(self, collection: str, record: StoredObject) -> None:
        dependents = self._dependents_of(record)
        for other, dependent in dependents:
            if not dependent.object["metadata"].get("deletionTimestamp"):
                self._delete(other, dependent, "Foreground")
        if not dependents:
            self._drop_finalizer(collection, record, FOREGROUND)

    def _orphan(self, collection: str, record: StoredObject) -> None:
        uid = record.object["metadata"]["uid"]
        for other, dependent in self._dependents_of(record):
            kept = [owner for owner in _owners(dependent.object) if owner["uid"] != uid]
            self._change(other, dependent, "ownerReferences", kept)
        self._drop_finalizer(collection, record, ORPHAN)

    def _dependents_of(self, owner: StoredObject) -> list[tuple[str, StoredObject]]:
        """Return the dependents that exist, with their collections."""
        refs = sorted(self._dependents.get(owner.object["metadata"]["uid"], ()))
        found = ((collection, self._cluster.store.get(collection, key)) for collection, key in refs)
        return [(collection, record) for collection, record in found if record is not None]

    def _drop_finalizer(self, collection: str, record: StoredObject, name: str) -> None:
        kept = [finalizer for finalizer in record.object["metadata"]["finalizers"] if finalizer != name]
        self._change(collection, record, "finalizers", kept)

    def _change(self, collection: str, record: StoredObject, field: str, values: list[Object] | list[str]) -> None:
        """Replace a list in the metadata of an object. The object is deleted if this removes its last finalizer."""
        obj: Object = clone(record.object)
        obj["metadata"][field] = values
        if not values:
            del obj["metadata"][field]
        replace(self._cluster, self._call(collection, record), record, obj)

    def _delete(self, collection: str, record: StoredObject, policy: str) -> None:
        delete_record(self._cluster, self._call(collection, record), record, DeleteOptions(policy=policy))

    def _call(self, collection: str, record: StoredObject) -> ApiCall:
        served = self._cluster.catalog.of_collection(collection)
        return internal_call(served, record.namespace, record.object["metadata"]["name"])


def _owners(obj: Object | None) -> list[Object]:
    found: list[Object] = pick(obj, "metadata", "ownerReferences") or []
    return found


def empty_namespaces(cluster: ServedCluster) -> None:
    """Delete the objects in namespaces that are being deleted, then the empty namespaces."""
    for record in list(cluster.store.collection(NAMESPACES).records.values()):
        if record.object["metadata"].get("deletionTimestamp") and _is_empty(cluster, record.key):
            _finish(cluster, record)


def _is_empty(cluster: ServedCluster, namespace: str) -> bool:
    """Delete the objects in a namespace. Return whether all of them are gone."""
    prefix = f"{namespace}/"
    empty = True
    for collection in cluster.store.names():
        records = cluster.store.collection(collection).records
        for record in [record for key, record in records.items() if key.startswith(prefix)]:
            served = cluster.catalog.of_collection(collection)
            call = internal_call(served, namespace, record.key.removeprefix(prefix))
            _, gone = delete_record(cluster, call, record, DeleteOptions(policy="Background"))
            empty &= gone
    return empty


def _finish(cluster: ServedCluster, record: StoredObject) -> None:
    """Remove the finalizer `kubernetes`. The namespace is deleted if it has no other finalizer."""
    obj: Object = {**record.object, "metadata": dict(record.object["metadata"]), "spec": {}}
    if not obj["metadata"].get("finalizers"):
        cluster.store.delete(NAMESPACES, record.key, obj)
    elif record.object["spec"]:
        cluster.store.put(NAMESPACES, record.key, obj)


def serve_definition(cluster: ServedCluster, event: ObjectEvent) -> None:
    """Serve the kinds of a new or changed CustomResourceDefinition. If it is deleted, delete its objects as well."""
    catalog, crd = cluster.catalog, event.record.object
    catalog.withdraw(crd["spec"]["group"], crd["spec"]["names"]["plural"])
    if event.change is ChangeType.DELETED:
        cluster.store.drop(event.record.key)
        return
    namespace = catalog.find("", "v1", "namespaces")
    assert namespace is not None, "namespaces are always served"
    metadata = namespace.type.fields["metadata"]
    for kind, version, schema in custom_kinds(crd):
        catalog.add(kind, version, custom_type(metadata, catalog.schemas.type_of(schema)))


class Controllers:
    """All controllers of a server. They get every event of its store."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._garbage = GarbageCollector(cluster)
        self._scheduled = False
        cluster.store.listeners.append(self._observe)

    def _observe(self, collection: str, event: ObjectEvent) -> None:
        if collection == DEFINITIONS:
            serve_definition(self._cluster, event)
        self._garbage.observe(collection, event)

    def settle(self) -> None:
        """Schedule the controllers. They run after the answer to the current request has been made."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Run the controllers until they change nothing more."""
        self._scheduled = False
        before = 0
        while before != self._cluster.store.revision:
            before = self._cluster.store.revision
            self._garbage.collect()
            empty_namespaces(self._cluster)
