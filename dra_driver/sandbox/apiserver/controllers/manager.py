# SPDX-License-Identifier: Apache-2.0
"""Runs the controllers after each write, until none has anything left to do.

One controller serves the kinds of CustomResourceDefinitions, and withdraws them with their objects. Another one deletes
the content of a namespace, and then the namespace.
"""

import asyncio

from ..catalog import Cluster
from ..groups.crds import GROUP, custom_kinds, custom_type
from ..objects import Object
from ..storage.store import Change, Event, Record
from ..verbs.delete import DeleteOptions, delete_record
from .garbage import GarbageCollector
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


DEFINITIONS = f"customresourcedefinitions.{GROUP}"


class CustomKinds:
    """Keeps the catalog in step with the definitions. Call `observe` with every event."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def observe(self, collection: str, event: Event) -> None:
        """Serves what a new or changed definition says; with a definition its objects go, too."""
        if collection != DEFINITIONS:
            return
        catalog, crd = self._cluster.catalog, event.record.object
        catalog.withdraw(crd["spec"]["group"], crd["spec"]["names"]["plural"])
        if event.change is Change.DELETED:
            self._cluster.store.drop(event.record.key)
            return
        namespace = catalog.find("", "v1", "namespaces")
        assert namespace is not None, "namespaces are always served"
        for kind, version in custom_kinds(crd):
            catalog.add(kind, version, custom_type(kind, version, namespace.type.fields["metadata"]))


class Controllers:
    """All controllers of a server, fed with every event of its store."""

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
        """Lets the controllers work soon: after the answer to the current request has been made."""
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
