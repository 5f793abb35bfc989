# SPDX-License-Identifier: Apache-2.0
"""Server-side apply and managed fields: how an update or an apply changes an object and the owners of its fields.

An update makes its manager the owner of the fields that it changes. An apply merges a configuration into the object,
and removes what its manager applied before and no longer applies, unless another manager owns it. An apply that would
change fields of other managers is refused. Follows merge/update.go of structured-merge-diff v6 and the managers of
k8s.io/apimachinery around it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from .. import status
from ..field_errors import FieldError
from ..objects import Object, clone
from ..schema import Type
from ..schema.decode import without_empties
from . import typed
from .managers import (
    APPLY,
    UPDATE,
    ManagerId,
    Managers,
    Owned,
    Path,
    decode,
    encode,
    readable,
    stripped,
    tree_of,
    with_named_fields,
    without_prefixes,
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
    node: Type
    """The kind's type in that version."""
    in_version: Callable[[Object], Object]
    """Convert a stored object to that version."""
    served: frozenset[str]
    """All API versions in which the kind is served. Managers with other versions are dropped."""
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
        change = _change(_without_managed(live), _as_sent(writer.in_version(new), writer.node), writer)
    except typed.TypedError:
        return  # as in kube-apiserver, an object that cannot be merged by its type has no owners
    managers = _settled(change, managers, who, writer)
    before = managers[who].paths - change.removed if who in managers else frozenset()
    taken = stripped(change.modified | change.added)
    if taken:
        managers[who] = Owned(taken | before, writer.api_version, writer.time)
    elif who in managers:
        managers[who] = replace(managers[who], paths=before)
    _store(new, {name: owned for name, owned in managers.items() if owned.paths})


def _as_sent(obj: Object, node: Type) -> Object:
    """Return the object as Go's JSON has it: without optional lists and maps that are empty."""
    return without_empties(obj, node, required=False) if node.definition else obj


def _before_update(live: Object, new: Object, writer: Writer) -> Managers | None:
    """Return the managers before the update, or None if the object is not tracked."""
    sent = new["metadata"].get("managedFields")
    current = decode(live.get("metadata", {}).get("managedFields", ()))
    if not writer.subresource and sent is not None:
        resets = sent in ([], [{}])
        current = {} if resets else decode(sent) or current
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
    mine = without_prefixes(typed.field_set(declared, writer.node), writer.ignored)
    managers = {**managers, who: Owned(frozenset(mine), writer.api_version)}
    if last and last.paths:
        merged = _pruned(merged, managers, last, writer.node)
    change = _change(current, merged, writer)
    conflicts = _lost(change, managers, who)
    if conflicts and not force:
        raise _ConflictError(conflicts)
    managers = _settled(change, managers, who, writer)
    time = writer.time if last is None or merged != base else last.time
    managers[who] = Owned(stripped(mine), writer.api_version, time)
    result: Object = clone(merged)
    if writer.manager == KUBECTL:
        _refresh_last_applied(result, config)
    _store(result, {name: owned for name, owned in managers.items() if owned.paths})
    return result


def _pruned(merged: Any, managers: Managers, last: Owned, node: Type) -> Any:
    """Return `merged` without the fields that its applier owned last time and that nobody owns now."""
    dropped = with_named_fields(last.paths, node)
    pruned = typed.remove(merged, tree_of(dropped), node) or {}
    owned: set[Path] = set().union(*(manager.paths for manager in managers.values()))
    everything = with_named_fields(typed.field_set(merged, node), node)
    kept = with_named_fields(typed.field_set(pruned, node), node) | with_named_fields(owned, node)
    pruned = typed.remove(merged, tree_of(everything - kept), node) or {}
    # Fields that were removed with their container, but never belonged to this applier, are restored.
    left = with_named_fields(typed.field_set(pruned, node), node)
    return typed.remove(merged, tree_of((everything - left) & dropped), node) or {}


def _change(old: Object, new: Any, writer: Writer) -> typed.Comparison:
    """Compare `old`, a stored object, with `new`, which is in the version of the request."""
    change = typed.compare(writer.in_version(old), new, writer.node)
    return typed.Comparison(
        without_prefixes(change.added, writer.ignored),
        without_prefixes(change.modified, writer.ignored),
        without_prefixes(change.removed, writer.ignored),
    )


def _lost(change: typed.Comparison, managers: Managers, writing: ManagerId) -> dict[ManagerId, set[Path]]:
    """Return the fields of other managers that the change would take."""
    taken = change.modified | change.added
    lost = {who: set(owned.paths & taken) for who, owned in managers.items() if who != writing}
    return {who: paths for who, paths in lost.items() if paths}


def _settled(change: typed.Comparison, managers: Managers, writing: ManagerId, writer: Writer) -> Managers:
    """Return the managers. All but the writing manager lose the fields that the change modifies or removes."""
    gone = change.modified | change.added | change.removed
    return {
        who: owned if who == writing else replace(owned, paths=owned.paths - gone)
        for who, owned in managers.items()
        if owned.api_version in writer.served
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
    change = typed.compare(last, writer.in_version(current), writer.node)
    allowed = typed.field_set(last, writer.node) - change.modified - change.added - change.removed
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
    if managers:
        obj["metadata"]["managedFields"] = encode(managers)
    else:
        obj["metadata"].pop("managedFields", None)
