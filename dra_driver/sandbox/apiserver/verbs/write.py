# SPDX-License-Identifier: Apache-2.0
"""The steps that create, update, patch and apply share: storing a new object, and replacing an object.

The order of the steps is that of the registry of k8s.io/apiserver: managed fields, metadata that clients cannot set,
the kind's preparation, validation, and then the write. All steps run in one turn of the event loop, so nothing can
change between reading and writing.

The only admission plugin is NamespaceLifecycle: no object is created in a namespace that does not exist or is being
deleted, and the system's namespaces cannot be deleted.
"""

from collections.abc import Iterator
from typing import Final

from .. import field_errors as errors
from .. import status
from ..apply import Writer, track_update
from ..apply.managers import Path
from ..catalog import ServedCluster
from ..field_errors import FieldError
from ..groups import meta as meta_rules
from ..kinds import Context, KindStrategy
from ..objects import Object, clone, generated_name, new_uid, now, timestamp
from ..opaque import identical
from ..rbac import authorizer
from ..schema.decode import missing_fields
from ..store import StoredObject
from .request import ApiCall

IMMORTAL: Final = ("default", "kube-system", "kube-public")

_STATUS_ONLY: Final[frozenset[Path]] = frozenset({("f:status",)})


def check_create(cluster: ServedCluster, call: ApiCall, obj: Object) -> None:
    """Raise 404 or 403 if the namespace cannot get new objects."""
    if not call.kind.namespaced:
        return
    namespace = cluster.object("namespaces", call.namespace)
    if namespace is None:
        raise status.not_found("namespaces", "", call.namespace)
    if namespace["metadata"].get("deletionTimestamp"):
        text = f"unable to create new content in namespace {call.namespace} because it is being terminated"
        raise status.forbidden(call.kind.plural, call.kind.group, obj["metadata"].get("name", ""), text)


def check_delete(call: ApiCall) -> None:
    """Raise 403 if the object must not be deleted."""
    if call.kind.stored_in == "namespaces" and call.name in IMMORTAL:
        raise status.forbidden("namespaces", "", call.name, "this namespace may not be deleted")


def request_context(cluster: ServedCluster, call: ApiCall) -> Context:
    """Return the context of this request for strategies. Their warnings become the request's."""
    context = cluster.context(call.user)
    context.warnings = call.warnings
    context.authorize = authorizer(cluster, call.user, call.verb, call.kind)
    return context


def writer(cluster: ServedCluster, call: ApiCall) -> Writer:
    """Return the part of the request that managed fields depend on."""
    served = call.served
    if call.subresource == "status":
        reset = {f"f:{name}" for name in served.type.fields if name != "status"}
        if served.kind.strategy.status_keeps_metadata:
            reset.discard("f:metadata")
        ignored: frozenset[Path] = frozenset((name,) for name in reset)
    else:
        ignored = _STATUS_ONLY if "status" in served.kind.subresources else frozenset()
    return Writer(
        manager=call.manager,
        api_version=served.api_version,
        subresource=call.subresource,
        time=timestamp(now()),
        node=served.type,
        in_version=lambda obj: served.kind.from_stored(obj, served.version),
        ignored=ignored,
    )


def create(cluster: ServedCluster, call: ApiCall, obj: Object, *, track: bool = True) -> StoredObject:
    """Store a new decoded object. With `track=False`, its managed fields are set already."""
    kind, meta = call.kind, obj["metadata"]
    if meta.get("resourceVersion"):
        raise status.internal("resourceVersion should not be set on objects to be created", plain=True)
    _place(call, meta)
    cluster.admit(call.kind.plural, obj)
    if track:
        track_update({"metadata": {}}, obj, writer(cluster, call))
    check_create(cluster, call, obj)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = generated_name(meta["generateName"])
    if cluster.store.get(kind.stored_in, call.key_of(meta.get("name", ""))) is not None:
        raise status.already_exists(kind.plural, kind.group, meta["name"])
    _begin(cluster, call, obj)
    context = request_context(cluster, call)
    kind.strategy.prepare(obj, None, context)
    problems = [
        *meta_rules.metadata_problems(meta, namespaced=kind.namespaced, name_rule=kind.strategy.name_rule),
        *kind.strategy.validate(obj, None, context),
        *_missing(call, obj),
    ]
    if problems:
        raise call.invalid(meta.get("name", ""), problems)
    cluster.check_new(kind.plural, obj)
    call.warnings += kind.strategy.warn(obj, context)
    key = call.key_of(meta["name"])
    if call.dry_run:
        return StoredObject(key, obj, 0)
    return cluster.store.put(kind.stored_in, key, obj)


def _place(call: ApiCall, meta: Object) -> None:
    namespace = meta.get("namespace", "")
    if call.kind.namespaced:
        if namespace and namespace != call.namespace:
            text = "the namespace of the provided object does not match the namespace sent on the request"
            raise status.bad_request(text)
        meta["namespace"] = call.namespace
    elif not namespace:
        meta.pop("namespace", None)


def _begin(cluster: ServedCluster, call: ApiCall, obj: Object) -> None:
    """Set the metadata of a new object. It replaces what the client sent."""
    meta, strategy = obj["metadata"], call.kind.strategy
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
        meta.pop(field, None)
    meta["uid"] = new_uid()
    meta["creationTimestamp"] = timestamp(now())
    if strategy.generation:
        meta["generation"] = 1
    if strategy.first_status is not None:
        obj["status"] = clone(dict(strategy.first_status))


def replace(
    cluster: ServedCluster, call: ApiCall, existing: StoredObject, obj: Object, *, track: bool = True
) -> StoredObject:
    """Replace an object by a decoded one. Return the same record if nothing changes."""
    kind, live, meta = call.kind, existing.object, obj["metadata"]
    strategy = kind.strategy
    _place(call, meta)
    if not call.subresource:
        cluster.admit(kind.plural, obj)
    if track:
        track_update(live, obj, writer(cluster, call))
    _check_version(call, meta, live)
    _carry_over(meta, live["metadata"])
    _reset(call, obj, live)
    meta = obj["metadata"]
    context = request_context(cluster, call)
    on_status = call.subresource == "status"
    (strategy.prepare_status if on_status else strategy.prepare)(obj, live, context)
    if strategy.generation and _differ(obj, live, strategy):
        meta["generation"] = live["metadata"].get("generation", 0) + 1
    validate = strategy.validate_status if on_status else strategy.validate
    problems = [
        *meta_rules.metadata_update_problems(meta, live["metadata"]),
        *meta_rules.metadata_problems(meta, namespaced=kind.namespaced, name_rule=strategy.name_rule),
        *validate(obj, live, context),
        *(() if on_status else _missing(call, obj)),
    ]
    if problems:
        raise call.invalid(meta.get("name", ""), problems)
    call.warnings += strategy.warn(obj, context)
    _keep_times(obj, live)
    obj["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
    return _commit(cluster, call, existing, obj)


def _missing(call: ApiCall, obj: Object) -> Iterator[FieldError]:
    """Yield errors for absent fields that the published schema requires. The status is not checked."""
    node = call.served.type
    yield from missing_fields(obj["metadata"], node.child("metadata"), "metadata")
    if call.kind.strategy.checks_required:
        yield from missing_fields(call.kind.from_stored(obj, call.served.version), node)


def _commit(cluster: ServedCluster, call: ApiCall, existing: StoredObject, obj: Object) -> StoredObject:
    collection, old = call.kind.stored_in, existing.object["metadata"]
    held = obj["metadata"].get("finalizers") or old.get("deletionGracePeriodSeconds")
    gone = old.get("deletionTimestamp") and not held
    if identical(obj, existing.object) and not gone:
        return existing
    if not call.dry_run:
        if not gone:
            return cluster.store.put(collection, existing.key, obj)
        cluster.store.delete(collection, existing.key, obj)
    return StoredObject(existing.key, obj, existing.revision)


def _check_version(call: ApiCall, meta: Object, live: Object) -> None:
    given = meta.get("resourceVersion", "")
    current = live["metadata"]["resourceVersion"]
    name = live["metadata"]["name"]
    if given in ("", "0"):
        if not call.kind.strategy.unconditional_update:
            problem = errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise status.invalid(call.kind.plural, call.kind.group, name, [problem])
    elif given != current:
        raise call.conflict(name, status.MODIFIED)


def _carry_over(meta: Object, old: Object) -> None:
    """Copy the metadata that an update cannot change and need not repeat."""
    meta.pop("generation", None)
    if "generation" in old:
        meta["generation"] = old["generation"]
    if not meta.get("uid"):
        meta["uid"] = old["uid"]
    meta["creationTimestamp"] = old["creationTimestamp"]
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        if field in old:
            meta[field] = old[field]
        else:
            meta.pop(field, None)


def _reset(call: ApiCall, obj: Object, live: Object) -> None:
    """Restore the fields that this endpoint does not write: the status, or everything but the status."""
    strategy = call.kind.strategy
    if call.subresource == "status":
        for field in (*live, *obj):
            if field not in ("metadata", "status"):
                _restore(obj, live, field)
        if not strategy.status_keeps_metadata:
            meta = obj["metadata"]
            kept = {name: meta[name] for name in ("managedFields", "resourceVersion", "uid") if name in meta}
            obj["metadata"] = {**live["metadata"], **kept}
            if "managedFields" not in kept:
                obj["metadata"].pop("managedFields", None)
    elif "status" in call.kind.subresources:
        _restore(obj, live, "status")


def _restore(obj: Object, live: Object, field: str) -> None:
    if field in live:
        obj[field] = clone(live[field])
    else:
        obj.pop(field, None)


def _differ(obj: Object, live: Object, strategy: KindStrategy) -> bool:
    """Return whether fields differ that increment the generation. `*` stands for all but metadata and status."""
    fields = {*obj, *live} - {"metadata", "status"} if strategy.generation == ("*",) else strategy.generation
    return any((obj.get(field) or None) != (live.get(field) or None) for field in fields)


def _keep_times(obj: Object, live: Object) -> None:
    """Keep the times of managed fields if nothing else changes."""
    if _timeless(obj) == _timeless(live):
        obj["metadata"] = clone(live["metadata"])


def _timeless(obj: Object) -> Object:
    """Return the object without its revision and without the times of managed fields."""
    entries = [{**entry, "time": ""} for entry in obj["metadata"].get("managedFields", ())]
    return {**obj, "metadata": {**obj["metadata"], "managedFields": entries, "resourceVersion": ""}}
