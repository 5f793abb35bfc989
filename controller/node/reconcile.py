# SPDX-License-Identifier: Apache-2.0
"""The writes that turn the stored slices of a pool into the slices that it should have. Pure.

Follows the publishing contract of resource.k8s.io: consumers use the slices of a pool's highest generation, and only if
all of them exist. So a change of one slice is written in place. A change of several slices gets a new generation, with
which every slice is written again. A deleted slice is created again.

Also names the fields in which a stored slice differs from the slice that was sent, so that an administrator can find
out what changed them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dra_driver.kube.resource import ObjectMeta, ResourcePool, ResourceSlice
from dra_driver.kube.resource.codec import Dialect, encode_slice

_NO_METADATA = ObjectMeta()

_KEYS = ("uid", "name", "counterSet", "key")
"""Fields that identify the items of a list: of owners, devices and counter sets, consumptions, taints."""
_LONGEST_VALUE = 80
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Tried:
    """Names of slices that were already sent as they should be, or deleted, without success. Those in `due` may be
    tried again now.
    """

    due: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Writes:
    """The writes in their order. Updates have the resource version on which they were decided. The slices in `waiting`
    also need a write, but not yet.
    """

    deletes: tuple[ResourceSlice, ...] = ()
    updates: tuple[ResourceSlice, ...] = ()
    creates: tuple[ResourceSlice, ...] = ()
    waiting: tuple[ResourceSlice, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletes or self.updates or self.creates)


_NOTHING_TRIED = Tried()


def plan_writes(
    desired: Sequence[ResourceSlice], stored: Mapping[str, ResourceSlice], tried: Tried = _NOTHING_TRIED
) -> Writes:
    """The writes that turn `stored` (by object name) into `desired`. Empty if they agree.

    Slices that were `tried` without success do not cause a new generation of the pool. Their next attempt is a write in
    place. Otherwise a server that modifies one slice would cause all others to be written again.
    """
    names = {slice_.metadata.name for slice_ in desired}
    again = tried.due | tried.waiting
    judged = {name: slice_ for name, slice_ in stored.items() if name not in again}
    obsolete = [slice_ for name, slice_ in stored.items() if name not in names]
    pools = {(slice_.pool.generation, slice_.pool.resource_slice_count) for slice_ in judged.values()}
    generation = max((slice_.pool.generation for slice_ in (judged or stored).values()), default=1)

    def agrees(slice_: ResourceSlice) -> bool:
        there = stored[slice_.metadata.name]
        at_this_generation = (there.pool.generation, there.pool.resource_slice_count) == (generation, len(desired))
        return same_content(slice_, there) and (at_this_generation or slice_.metadata.name not in again)

    missing = [slice_ for slice_ in desired if slice_.metadata.name not in stored]
    changed = [slice_ for slice_ in desired if slice_.metadata.name in stored and not agrees(slice_)]
    new_missing = [slice_ for slice_ in missing if slice_.metadata.name not in again]
    new_changed = [slice_ for slice_ in changed if slice_.metadata.name not in again]
    consistent = names >= judged.keys() and pools <= {(generation, len(desired))}
    later = tried.waiting
    if not consistent or len(new_changed) > 1 or (new_changed and new_missing):
        changed = [slice_ for slice_ in desired if slice_.metadata.name in stored]
        generation += 1
        later -= names  # a generation is useless until it is complete
    updates = [_to_send(slice_, generation, stored) for slice_ in changed]
    creates = [_to_send(slice_, generation, stored) for slice_ in missing]

    def now(slices: Sequence[ResourceSlice]) -> tuple[ResourceSlice, ...]:
        return tuple(slice_ for slice_ in slices if slice_.metadata.name not in later)

    waiting = (slice_ for slice_ in (*obsolete, *updates, *creates) if slice_.metadata.name in later)
    return Writes(now(obsolete), now(updates), now(creates), tuple(waiting))


def same_content(desired: ResourceSlice, stored: ResourceSlice) -> bool:
    """Whether both slices have the same content, except generation and slice count."""
    return (
        _content(desired) == _content(stored) and stored.metadata.owner_references == desired.metadata.owner_references
    )


def as_sent(sent: ResourceSlice, stored: ResourceSlice) -> bool:
    """Whether the API server stores what it was sent, except the times of taints, which the server may set."""
    return stored.pool == sent.pool and same_content(without_times(sent), without_times(stored))


def without_times(slice_: ResourceSlice) -> ResourceSlice:
    """The slice without the times of its taints."""
    devices = (
        replace(device, taints=tuple(replace(taint, time_added="") for taint in device.taints))
        if device.taints
        else device
        for device in slice_.devices
    )
    return replace(slice_, devices=tuple(devices))


def _content(slice_: ResourceSlice) -> ResourceSlice:
    """What this driver decides about: fields that it does not know are those of others."""
    return replace(slice_, metadata=_NO_METADATA, pool=ResourcePool(slice_.pool.name, 0, 0), unread=())


def _to_send(slice_: ResourceSlice, generation: int, stored: Mapping[str, ResourceSlice]) -> ResourceSlice:
    """The slice to send: with `generation`, and with the metadata of the stored slice that it replaces, which others
    may have labelled, for example.
    """
    metadata = slice_.metadata
    existing = stored.get(metadata.name)
    if existing is not None:
        metadata = replace(existing.metadata, owner_references=metadata.owner_references)
    return replace(slice_, metadata=metadata, pool=replace(slice_.pool, generation=generation))


def describe_difference(sent: ResourceSlice, stored: ResourceSlice, dialect: Dialect) -> str:
    """The first field that differs, as a JSON path with both values, and the number of other differences. Empty if
    there are none.

    Fields that this driver does not know are not compared.
    """
    found = list(_differences(_compared(sent, dialect), _compared(stored, dialect), ""))
    if not found:
        return ""
    path, before, after = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{path} (sent {_shown(before)}, stored {_shown(after)}){more}"


def _compared(slice_: ResourceSlice, dialect: Dialect) -> dict[str, Any]:
    value = encode_slice(slice_, dialect)
    owners = value["metadata"].get("ownerReferences", [])
    return {"metadata": {"ownerReferences": owners}, "spec": value["spec"]}


def _differences(sent: Any, stored: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if sent == stored:
        return
    left, right = _by_key(sent), _by_key(stored)
    if left is None or right is None:
        yield path, sent, stored
        return
    named = isinstance(sent, Mapping) and not path.endswith(("attributes", "capacity", "counters"))
    for key in dict.fromkeys((*left, *right)):
        inner = f"{path}.{key}".lstrip(".") if named else f"{path}[{key}]"
        yield from _differences(left.get(key, _ABSENT), right.get(key, _ABSENT), inner)


def _by_key(value: Any) -> Mapping[Any, Any] | None:
    """The parts of an object or list, by name. None for a value without parts."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list):
        return None
    field = next((key for key in _KEYS if all(isinstance(part, Mapping) and key in part for part in value)), None)
    named = {part[field]: part for part in value} if field else {}
    return named if len(named) == len(value) else dict(enumerate(value))


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
