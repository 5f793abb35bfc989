# SPDX-License-Identifier: Apache-2.0
"""The verbs delete and deletecollection: preconditions, grace periods, finalizers, propagation policies."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from .. import status
from ..catalog import Cluster
from ..listing import Page, list_page
from ..objects import Object, clone, parse_timestamp, timestamp
from ..store import Record
from .request import Call, list_query, read_message
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


def delete_options(cluster: Cluster, call: Call) -> DeleteOptions:
    """Return the options of a DELETE request. Raises 400 or 415."""
    body = read_message(cluster, call, "v1", "DeleteOptions") if call.body else {}
    preconditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds")
    return DeleteOptions(
        grace=call.number("gracePeriodSeconds") if grace is None else grace,
        policy=body.get("propagationPolicy") or call.option("propagationPolicy"),
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        dry_run="All" in (body.get("dryRun") or call.query.get("dryRun", ())),
    )


def delete_object(cluster: Cluster, call: Call) -> tuple[Record | Object, int]:
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


def delete_collection(cluster: Cluster, call: Call) -> Page:
    """Delete the objects of a collection, and return them."""
    options = delete_options(cluster, call)
    page = list_page(cluster.store, call.kind, call.namespace, list_query(call))
    for record in page.records:
        current = cluster.store.get(call.kind.stored_in, record.key)
        if current is not None:
            delete_record(cluster, call, current, replace(options, uid=None, resource_version=None))
    return page


def delete_record(cluster: Cluster, call: Call, existing: Record, options: DeleteOptions) -> tuple[Record, bool]:
    """Delete an object or begin its deletion. Return the new record, and whether the object is gone."""
    _check_preconditions(call, existing.object["metadata"], options)
    obj: Object = clone(existing.object)
    meta, kind = obj["metadata"], call.kind
    if kind.strategy.begin_deletion is not None and not meta.get("deletionTimestamp"):
        kind.strategy.begin_deletion(obj, cluster.clock())
        return _keep(cluster, call, existing, obj, options)
    if kind.strategy.held is not None and kind.strategy.held(obj):
        return existing, False
    grace = _grace(cluster, call, obj, options)
    if grace is _PENDING:
        return existing, False
    finalizers = _finalizers(call, meta, options)
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
    if isinstance(grace, int):
        if grace == 0 and not finalizers:
            return _finish(cluster, call, existing, obj, options)
    elif finalizers:
        _mark_deleting(cluster, meta)
    else:
        return _finish(cluster, call, existing, existing.object, options)
    return _keep(cluster, call, existing, obj, options)


def _keep(cluster: Cluster, call: Call, existing: Record, obj: Object, options: DeleteOptions) -> tuple[Record, bool]:
    if obj == existing.object:
        return existing, False
    if options.dry_run or call.dry_run:
        return Record(existing.key, obj, existing.revision), False
    return cluster.store.put(call.kind.stored_in, existing.key, obj), False


def _finish(
    cluster: Cluster, call: Call, existing: Record, last: Object, options: DeleteOptions
) -> tuple[Record, bool]:
    if options.dry_run or call.dry_run:
        return Record(existing.key, last, existing.revision), True
    record = cluster.store.delete(call.kind.stored_in, existing.key, last)
    return record, True


def _check_preconditions(call: Call, meta: Object, options: DeleteOptions) -> None:
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


class _Pending:
    """A graceful deletion is in progress, and this request does not shorten it."""


_PENDING: Final = _Pending()


def _grace(cluster: Cluster, call: Call, obj: Object, options: DeleteOptions) -> "int | _Pending | None":
    """Return the seconds of grace and set them in the object's metadata. None: the object has no grace period."""
    strategy, meta = call.kind.strategy, obj["metadata"]
    if strategy.grace_period is None:
        return None
    asked = 1 if options.grace is not None and options.grace < 0 else options.grace
    now = cluster.clock()
    if meta.get("deletionTimestamp"):
        running = meta.get("deletionGracePeriodSeconds", 0)
        if running == 0:
            return None
        if asked is None or asked >= running:
            return _PENDING
        begun = parse_timestamp(meta["deletionTimestamp"]) - timedelta(seconds=running)
        return _set_grace(meta, max(begun + timedelta(seconds=asked), now), asked)
    period = strategy.grace_period(obj, asked)
    if period is None:
        return None
    if "generation" in meta:
        meta["generation"] += 1
    return _set_grace(meta, now + timedelta(seconds=period), period)


def _set_grace(meta: Object, end: datetime, seconds: int) -> int:
    meta["deletionTimestamp"] = timestamp(end)
    meta["deletionGracePeriodSeconds"] = seconds
    return seconds


def _mark_deleting(cluster: Cluster, meta: Object) -> None:
    if not meta.get("deletionTimestamp"):
        if meta.get("generation"):
            meta["generation"] += 1
        meta["deletionTimestamp"] = timestamp(cluster.clock())
    meta["deletionGracePeriodSeconds"] = 0


def _finalizers(call: Call, meta: Object, options: DeleteOptions) -> list[str]:
    """Return the finalizers after the propagation policy has added or removed its own."""
    current = list(meta.get("finalizers", ()))
    strategy = call.kind.strategy
    if not strategy.collects_garbage:
        return current
    wanted = ""
    if options.policy:
        wanted = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(options.policy, "")
    elif ORPHAN in current or FOREGROUND in current:
        wanted = ORPHAN if ORPHAN in current else FOREGROUND
    elif strategy.orphans_dependents:
        wanted = ORPHAN
    kept = [name for name in current if name not in (ORPHAN, FOREGROUND)]
    result = [*kept, wanted] if wanted else kept
    return current if set(result) == set(current) else result
