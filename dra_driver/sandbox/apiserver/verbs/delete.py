# SPDX-License-Identifier: Apache-2.0
"""The verbs delete and deletecollection: preconditions, grace periods, finalizers, propagation policies."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from .. import status
from ..catalog import ServedCluster
from ..listing import ListPage, list_page
from ..objects import Object, clone, now, timestamp
from ..store import StoredObject
from .request import ApiCall, list_query, read_message
from .write import check_delete

ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The options of a deletion, from the body or the query parameters."""

    grace: int | None = None
    policy: str = ""
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


def delete_options(cluster: ServedCluster, call: ApiCall) -> DeleteOptions:
    """Return the options of a DELETE request. Raises 400 or 415."""
    return parse_options(read_message(cluster, call, "v1", "DeleteOptions") if call.body else {}, call)


def parse_options(given: Object, call: ApiCall) -> DeleteOptions:
    """Return the options of a decoded DeleteOptions. Query parameters replace absent options. Raises 400."""
    preconditions = given.get("preconditions") or {}
    grace = given.get("gracePeriodSeconds")
    return DeleteOptions(
        grace=call.number("gracePeriodSeconds") if grace is None else grace,
        policy=given.get("propagationPolicy") or call.option("propagationPolicy"),
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        dry_run=call.dry_run or "All" in (given.get("dryRun") or ()),
    )


def delete_object(cluster: ServedCluster, call: ApiCall) -> tuple[StoredObject | Object, int]:
    """Delete one object. Return the object, or a Status that it is gone."""
    options = delete_options(cluster, call)
    check_delete(call)
    existing = cluster.store.get(call.kind.stored_in, call.key)
    if existing is None:
        raise call.missing()
    record, gone = delete_record(cluster, call, existing, options)
    if call.kind.strategy.returns_deleted or not gone:
        return record, 200
    meta = record.object["metadata"]
    details = {"name": meta["name"], "group": call.kind.group, "kind": call.kind.plural, "uid": meta["uid"]}
    return status.success({name: value for name, value in details.items() if value}), 200


def delete_collection(cluster: ServedCluster, call: ApiCall) -> ListPage:
    """Delete the objects of a collection, and return them."""
    options = delete_options(cluster, call)
    page = list_page(cluster.store, call.kind, call.namespace, list_query(call))
    for record in page.records:
        current = cluster.store.get(call.kind.stored_in, record.key)
        if current is not None:
            delete_record(cluster, call, current, replace(options, uid=None, resource_version=None))
    return page


def delete_record(
    cluster: ServedCluster, call: ApiCall, existing: StoredObject, options: DeleteOptions
) -> tuple[StoredObject, bool]:
    """Delete an object or begin its deletion. Return the new record, and whether the object is gone."""
    _check_preconditions(call, existing.object["metadata"], options)
    obj: Object = clone(existing.object)
    meta, strategy = obj["metadata"], call.kind.strategy
    if strategy.begin_deletion is not None and not meta.get("deletionTimestamp"):
        strategy.begin_deletion(obj, now())
        return _keep(cluster, call, existing, obj, options)
    if strategy.held is not None and strategy.held(obj):
        return existing, False
    running = meta.get("deletionGracePeriodSeconds", 0) if meta.get("deletionTimestamp") else None
    if running and (options.grace is None or options.grace >= running):
        return existing, False  # a graceful deletion is in progress, and this request does not shorten it
    finalizers = _finalizers(meta, options)
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
    graceful = strategy.grace_period is not None and running != 0
    grace = strategy.grace_period(obj, options.grace) if strategy.grace_period and graceful else 0
    if running is None and meta.get("generation"):
        meta["generation"] += 1
    if running != 0:
        meta["deletionTimestamp"] = timestamp(now() + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
    if grace or finalizers:
        return _keep(cluster, call, existing, obj, options)
    return _finish(cluster, call, existing, obj if graceful else existing.object, options)


def _keep(
    cluster: ServedCluster, call: ApiCall, existing: StoredObject, obj: Object, options: DeleteOptions
) -> tuple[StoredObject, bool]:
    if obj == existing.object:
        return existing, False
    if options.dry_run:
        return StoredObject(existing.key, obj, existing.revision), False
    return cluster.store.put(call.kind.stored_in, existing.key, obj), False


def _finish(
    cluster: ServedCluster, call: ApiCall, existing: StoredObject, last: Object, options: DeleteOptions
) -> tuple[StoredObject, bool]:
    if options.dry_run:
        return StoredObject(existing.key, last, existing.revision), True
    record = cluster.store.delete(call.kind.stored_in, existing.key, last)
    return record, True


def _check_preconditions(call: ApiCall, meta: Object, options: DeleteOptions) -> None:
    for what, wanted, found, hint in (
        ("UID", options.uid, meta["uid"], "deleted and then recreated"),
        ("ResourceVersion", options.resource_version, meta["resourceVersion"], "modified"),
    ):
        if wanted is not None and wanted != found:
            detail = (
                f"the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). "
                f"The object might have been {hint}"
            )
            raise status.conflict(call.kind.name, call.kind.group, meta["name"], detail)


def _finalizers(meta: Object, options: DeleteOptions) -> list[str]:
    """Return the finalizers after the propagation policy has added or removed its own."""
    current: list[str] = meta.get("finalizers", [])
    if not options.policy:
        return current
    kept = [name for name in current if name not in (ORPHAN, FOREGROUND)]
    wanted = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(options.policy)
    return [*kept, wanted] if wanted else kept
