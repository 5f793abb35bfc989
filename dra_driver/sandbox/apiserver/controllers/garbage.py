# SPDX-License-Identifier: Apache-2.0
"""The garbage collector: objects whose owners are gone go too, or are orphaned on request.

Works on events: each change of an object makes it, its owners and its dependents worth a look.
Follows kube-controller-manager's garbage collector in what happens, not in how.
"""

from collections import defaultdict, deque
from functools import partial

from ..catalog import Cluster
from ..objects import Object, pick
from ..storage.store import Change, Event, Record
from ..verbs.delete import FOREGROUND, ORPHAN, DeleteOptions, delete_record
from .internal import internal_call, modify

ObjectRef = tuple[str, str]
"""Collection and key."""


class GarbageCollector:
    """Keeps track of owners. Call `observe` with every event, then `collect` when the write is done."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_uid: dict[str, ObjectRef] = {}
        self._dependents: dict[str, set[ObjectRef]] = defaultdict(set)
        self._queue: deque[ObjectRef] = deque()

    def observe(self, collection: str, event: Event) -> None:
        """Takes note of a change."""
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
        """Whether nothing is waiting to be looked at."""
        return not self._queue

    def collect(self) -> None:
        """Looks at everything that changed, and at what that changes."""
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
        """Whether the owner is there. One of a kind that is not served here is given the benefit of the doubt."""
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
