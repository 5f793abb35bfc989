# SPDX-License-Identifier: Apache-2.0
"""Serving the kinds of CustomResourceDefinitions, and withdrawing them with their objects."""

from ..catalog import encoded_prefix
from ..cluster import Cluster
from ..groups.crds import CLEANUP, GROUP, custom_kind
from ..kinds import Served
from ..objects import Object, timestamp
from ..schema.structural import compile_schema
from ..schema.types import Type
from ..storage.store import Change, Event, Record
from ..verbs.delete import DeleteOptions, delete_record
from .internal import internal_call, modify

DEFINITIONS = f"customresourcedefinitions.{GROUP}"


class CustomKinds:
    """Keeps the catalog in step with the definitions. Call `observe` with every event, then `work`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._dirty: list[str] = []

    def observe(self, collection: str, event: Event) -> None:
        """Takes note of a change of a definition, or of the last object of one that is going."""
        if collection == DEFINITIONS:
            if event.change is Change.DELETED:
                spec = event.record.object["spec"]
                self._cluster.catalog.withdraw(spec["group"], spec["names"]["plural"])
                self._cluster.store.drop(event.record.key)
            else:
                self._dirty.append(event.record.key)
        elif event.change is Change.DELETED:
            definition = self._cluster.object(DEFINITIONS, collection)
            if definition is not None and definition["metadata"].get("deletionTimestamp"):
                self._dirty.append(collection)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._dirty

    def work(self) -> None:
        """Serves new definitions and cleans up after deleted ones."""
        while self._dirty:
            record = self._cluster.store.get(DEFINITIONS, self._dirty.pop(0))
            if record is None:
                continue
            if record.object["metadata"].get("deletionTimestamp"):
                self._clean_up(record)
            else:
                self._serve(record)

    def _serve(self, record: Record) -> None:
        crd = record.object
        every = [(version, self._served(crd, version)) for version in crd["spec"]["versions"]]
        own = next(served for version, served in every if version.get("storage"))
        self._cluster.catalog.replace([served for version, served in every if version.get("served")], own)
        now = timestamp(self._cluster.clock())
        modify(self._cluster, DEFINITIONS, record, lambda obj: _establish(obj, now), "status")

    def _served(self, crd: Object, version: Object) -> Served:
        schema = version["schema"]["openAPIV3Schema"]
        node = compile_schema(schema, self._metadata_type(), f"{version['name']}.{crd['spec']['names']['kind']}")
        kind = custom_kind(crd, version, node)
        prefix = encoded_prefix(kind, version["name"])
        return Served(kind, version["name"], node, prefix, kind.columns, schema)

    def _metadata_type(self) -> Type:
        namespace = self._cluster.catalog.find("", "v1", "namespaces")
        assert namespace is not None, "namespaces are always served"
        return namespace.type.fields["metadata"]

    def _clean_up(self, record: Record) -> None:
        """Deletes the objects of a definition that is going; the last one lets it go."""
        store, collection = self._cluster.store, record.key
        served = self._cluster.catalog.of_collection(collection)
        for item in list(store.collection(collection).records.values()):
            meta = item.object["metadata"]
            if not meta.get("deletionTimestamp"):
                call = internal_call(served, meta.get("namespace", ""), meta["name"])
                delete_record(self._cluster, call, item, DeleteOptions(policy="Background"))
        if not store.collection(collection).records:
            modify(self._cluster, DEFINITIONS, record, _release)


def _release(obj: Object) -> None:
    kept = [name for name in obj["metadata"].get("finalizers", ()) if name != CLEANUP]
    obj["metadata"]["finalizers"] = kept


def _establish(obj: Object, now: str) -> None:
    names = obj["spec"]["names"]
    status = obj.setdefault("status", {})
    status["acceptedNames"] = names
    stored = status.setdefault("storedVersions", [])
    for version in obj["spec"]["versions"]:
        if version.get("storage") and version["name"] not in stored:
            stored.append(version["name"])
    known = {condition["type"] for condition in status.get("conditions") or ()}
    conditions = status["conditions"] = status.get("conditions") or []
    for kind, reason, message in (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ):
        if kind not in known:
            conditions.append(
                {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
            )
