# SPDX-License-Identifier: Apache-2.0
"""From the slices a pool has to the slices it should have: the writes in between.

Follows the publishing contract of resource.k8s.io: consumers use the slices of a pool's highest generation
and only if all of them are there. So a change that touches one slice can be written in place, one that
touches several gets a new generation that every slice is rewritten with, and a slice that somebody deleted
is simply put back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.resource import ObjectMeta, ResourcePool, ResourceSlice


@dataclass(frozen=True, slots=True)
class Writes:
    """What to do, in this order. Updates carry the resource version they were decided on."""

    deletes: tuple[ResourceSlice, ...] = ()
    updates: tuple[ResourceSlice, ...] = ()
    creates: tuple[ResourceSlice, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletes or self.updates or self.creates)


def plan_writes(desired: Sequence[ResourceSlice], stored: Mapping[str, ResourceSlice]) -> Writes:
    """The writes that turn `stored` (by object name) into `desired`. None are needed when they agree."""
    kept = [one for one in desired if one.metadata.name in stored]
    missing = [one for one in desired if one.metadata.name not in stored]
    names = {one.metadata.name for one in desired}
    obsolete = [one for name, one in stored.items() if name not in names]
    changed = [one for one in kept if not same_content(one, stored[one.metadata.name])]
    pools = {(one.pool.generation, one.pool.resource_slice_count) for one in stored.values()}
    generation = max((generation for generation, _ in pools), default=0)

    consistent = not obsolete and pools == {(generation, len(desired))}
    in_place = not changed or (len(changed) == 1 and not missing)
    if consistent and in_place:
        rewritten = changed
    else:
        rewritten, generation = kept, generation + 1
    return Writes(
        tuple(obsolete),
        tuple(_to_send(one, generation, stored) for one in rewritten),
        tuple(_to_send(one, generation, stored) for one in missing),
    )


def same_content(desired: ResourceSlice, stored: ResourceSlice) -> bool:
    """Whether `stored` says what `desired` says, generation and slice count aside."""
    return (
        _content(desired) == _content(stored) and stored.metadata.owner_references == desired.metadata.owner_references
    )


def _content(one: ResourceSlice) -> ResourceSlice:
    return replace(one, metadata=_NO_METADATA, pool=ResourcePool(one.pool.name, 0, 0))


_NO_METADATA = ObjectMeta()


def _to_send(one: ResourceSlice, generation: int, stored: Mapping[str, ResourceSlice]) -> ResourceSlice:
    """The slice to send: at `generation` and, when it replaces a stored one, at that one's resource version."""
    metadata = one.metadata
    existing = stored.get(metadata.name)
    if existing is not None:
        metadata = replace(metadata, resource_version=existing.metadata.resource_version, uid=existing.metadata.uid)
    return replace(one, metadata=metadata, pool=replace(one.pool, generation=generation))
