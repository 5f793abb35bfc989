# SPDX-License-Identifier: Apache-2.0
"""Server-side apply and managed fields: how an update or an apply changes an object and the owners of its fields.

An update makes its manager the owner of the fields that it changes. An apply merges a configuration into the object,
and removes what its manager applied before and no longer applies, unless another manager owns it. An apply that would
change fields of other managers is refused. Follows merge/update.go of structured-merge-diff v6 and the managers of
k8s.io/apimachinery around it.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from .. import status
from ..field_errors import FieldError
from ..objects import Object, clone
from ..schema import SchemaType
from . import typed
from .managers import (
    APPLY,
    UPDATE,
    ManagerId,
    Managers,
    Owned,
    Path,
    Paths,
    decode,
    encode,
    readable,
    stripped,
    with_named_fields,
)

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL: Final = "kubectl"


@dataclass(frozen=True, slots=True)
class Writer:
    """The part of a request that managed fields depend on."""

    manager: str
    api_version: str
    """The API version of the request: `resource.k8s.io/v1`."""
    subresource: str
    time: str
    node: SchemaType
    """The kind's type in that version."""
    in_version: Callable[[Object], Object]
    """Convert a stored object to that version."""
    ignored: frozenset[Path]
    """The fields that this request cannot change: the status, or everything but the status."""

    def identity(self, operation: str) -> ManagerId:
        """Return the manager that this request writes as."""
        version = "" if operation == APPLY else self.api_version
        return ManagerId(self.manager or "unknown", operation, version, self.subresource)


class _ConflictError(Exception):
    def __init__(self, found: dict[ManagerId, set[Path]]) -> None:
        super().__init__()
        self.found = found


def track_update(live: Object, new: Object, writer: Writer) -> None:
    """Record in `new`, a stored object, who owns its fields. `live` is the object that it replaces.

    For a new object, `live` is empty.
    """
    managers = _before_update(live, new, writer)
    new["metadata"].pop("managedFields", None)
    if managers is None:
        return
    who = writer.identity(UPDATE)
    try:
        taken, removed = _change(_without_managed(live), writer.in_version(new), writer)
    except typed.TypedError:
        return  # as in kube-apiserver, an object that cannot be merged by its type has no owners
    managers = _settled(managers, who, taken | removed)
    before = managers[who].paths - removed if who in managers else frozenset()
    mine = stripped(taken)
    if mine:
        managers[who] = Owned(mine | before, writer.api_version, writer.time)
    elif who in managers:
        managers[who] = replace(managers[who], paths=before)
    _store(new, managers)


def _before_update(live: Object, new: Object, writer: Writer) -> Managers | None:
    """Return the managers before the update, or None if the object is not tracked."""
    sent = new["metadata"].get("managedFields")
    current = decode(live.get("metadata", {}).get("managedFields", ()))
    if not writer.subresource and sent is not None:
        current = {} if sent == [{}] else decode(sent) or current
    exists = bool(live.get("metadata", {}).get("uid"))
    return None if exists and not current else current


def apply_configuration(live: Object | None, config: Object, writer: Writer, *, force: bool) -> Object:
    """Return the object, in the version of the request, after applying `config` to `live`.

    `live` is a stored object or None. Raises RequestError for conflicts, and TypedError if the configuration cannot
    be merged.
    """
    current = _without_managed(live) if live else {"metadata": {}}
    managers = decode(live["metadata"].get("managedFields", ())) if live else {}
    try:
        return _apply(current, config, writer, managers, force=force)
    except _ConflictError as conflicts:
        if writer.manager == KUBECTL and live:
            remaining = _not_last_applied(conflicts.found, current, writer)
            if not remaining:
                return _apply(current, config, writer, managers, force=True)
            raise _refusal(remaining) from conflicts
        raise _refusal(conflicts.found) from conflicts


def _apply(current: Object, config: Object, writer: Writer, managers: Managers, *, force: bool) -> Object:
    who = writer.identity(APPLY)
    base = writer.in_version(current)
    declared = {name: value for name, value in config.items() if name not in ("apiVersion", "kind")}
    merged = typed.merge(base, declared, writer.node)
    last = managers.get(who)
    mine = _writable(typed.leaves(declared, writer.node), writer)
    managers = {**managers, who: Owned(mine, writer.api_version)}
    if last:
        owned: set[Path] = set().union(*(manager.paths for manager in managers.values()))
        dropped = with_named_fields(last.paths, writer.node) - with_named_fields(owned, writer.node)
        merged = typed.without(merged, dropped, writer.node)
    taken, removed = _change(current, merged, writer)
    conflicts = _lost(taken, managers, who)
    if conflicts and not force:
        raise _ConflictError(conflicts)
    managers = _settled(managers, who, taken | removed)
    time = writer.time if last is None or merged != base else last.time
    managers[who] = Owned(stripped(mine), writer.api_version, time)
    result: Object = clone(merged)
    if writer.manager == KUBECTL:
        _refresh_last_applied(result, config)
    _store(result, managers)
    return result


def _change(old: Object, new: Any, writer: Writer) -> tuple[frozenset[Path], frozenset[Path]]:
    """Return the added or modified fields, and the removed fields.

    `old` is a stored object, `new` is in the version of the request.
    """
    before, after = typed.leaves(writer.in_version(old), writer.node), typed.leaves(new, writer.node)
    taken = [path for path, value in after.items() if path not in before or before[path] != value]
    return _writable(taken, writer), _writable(before.keys() - after.keys(), writer)


def _writable(paths: Iterable[Path], writer: Writer) -> frozenset[Path]:
    """Return the paths of fields that the request can change."""
    return frozenset(path for path in paths if path[:1] not in writer.ignored)


def _lost(taken: Paths, managers: Managers, writing: ManagerId) -> dict[ManagerId, set[Path]]:
    """Return the fields of other managers that the writing manager would take."""
    lost = {who: set(owned.paths & taken) for who, owned in managers.items() if who != writing}
    return {who: paths for who, paths in lost.items() if paths}


def _settled(managers: Managers, writing: ManagerId, gone: Paths) -> Managers:
    """Return the managers. All but the writing manager lose the fields that are modified or removed."""
    return {
        who: owned if who == writing else replace(owned, paths=owned.paths - gone) for who, owned in managers.items()
    }


def _not_last_applied(found: dict[ManagerId, set[Path]], current: Object, writer: Writer) -> dict[ManagerId, set[Path]]:
    """Return the conflicts that are not due to an earlier client-side `kubectl apply`."""
    text = current["metadata"].get("annotations", {}).get(LAST_APPLIED)
    try:
        last = json.loads(text) if text else None
    except ValueError:
        last = None
    if not isinstance(last, dict) or last.get("apiVersion") != writer.api_version:
        return found
    now = typed.leaves(writer.in_version(current), writer.node)
    allowed = {path for path, value in typed.leaves(last, writer.node).items() if path in now and now[path] == value}
    remaining = {who: paths - allowed for who, paths in found.items()}
    return {who: paths for who, paths in remaining.items() if paths}


def _refresh_last_applied(obj: Object, config: Object) -> None:
    annotations = obj["metadata"].get("annotations", {})
    if annotations.get(LAST_APPLIED):
        declared = clone(config)
        declared.get("metadata", {}).get("annotations", {}).pop(LAST_APPLIED, None)
        annotations[LAST_APPLIED] = json.dumps(declared, separators=(",", ":"), sort_keys=True) + "\n"


def _refusal(found: dict[ManagerId, set[Path]]) -> status.RequestError:
    conflicts = [(who, path) for who in sorted(found) for path in sorted(found[who])]
    causes = [FieldError("FieldManagerConflict", readable(path), f"conflict with {who}") for who, path in conflicts]
    if len(conflicts) == 1:
        who, path = conflicts[0]
        message = f"Apply failed with 1 conflict: conflict with {who}: {readable(path)}"
    else:
        lines = []
        for who in sorted(found):
            lines.append(f"conflicts with {who}:")
            lines += [f"- {readable(path)}" for path in sorted(found[who])]
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return status.apply_conflict(message, causes)


def _without_managed(obj: Object) -> Object:
    """Return the object without its managed fields. The result shares all other parts with the object."""
    if "managedFields" not in obj.get("metadata", {}):
        return obj
    meta = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": meta}


def _store(obj: Object, managers: Managers) -> None:
    owning = {who: owned for who, owned in managers.items() if owned.paths}
    obj["metadata"].pop("managedFields", None)
    if owning:
        obj["metadata"]["managedFields"] = encode(owning)
