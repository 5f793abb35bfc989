# SPDX-License-Identifier: Apache-2.0
"""Deleting a namespace: its content first, then the namespace itself."""

from ..cluster import Cluster
from ..objects import Object
from ..storage.store import Change, Event, Record
from ..verbs.delete import DeleteOptions, delete_record
from .internal import internal_call

NAMESPACES = "namespaces"


class NamespaceController:
    """Empties namespaces that are being deleted. Call `observe` with every event, then `work`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._going: set[str] = set()
        self._dirty: set[str] = set()

    def observe(self, collection: str, event: Event) -> None:
        """Takes note of a change of a namespace, or of something inside one that is going."""
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
        """Whether there is nothing to do."""
        return not self._dirty

    def work(self) -> None:
        """Deletes what is left in the namespaces that are going, and finishes the empty ones."""
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
        """Takes the namespace's own finalizer; without any other, it goes."""
        obj: Object = {**record.object, "metadata": dict(record.object["metadata"]), "spec": {}}
        if obj["metadata"].get("finalizers"):
            self._cluster.store.put(NAMESPACES, record.key, obj)
        else:
            self._cluster.store.delete(NAMESPACES, record.key, obj)
