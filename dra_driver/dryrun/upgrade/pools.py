# SPDX-License-Identifier: Apache-2.0
"""Slices: whether their pools are complete and valid, how many devices they give, and whether they can be written.

A pool may lose its devices because a release reads its slices otherwise, or because a feature gate is off.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ...kube.releases import minor_of
from ...kube.resource import ResourceSlice
from ...kube.resource.device import COUNTERS_APART_SINCE, SliceFeatures
from ...kube.resource.validation import slice_problems
from ...scheduler.allocator import Cluster
from ...scheduler.allocator.outcome import AllocationError
from ...scheduler.allocator.pools import PoolKey, PoolState
from ..report import counted, listed
from .difference import Aspect, Difference, Effect
from .sides import Side, Sides

_NONE: Final = "no devices"
_ACCEPTED: Final = "accepted"

_State = tuple[int, str]
"""The number of devices of a pool, and the text about it."""


def pool_differences(now: Cluster, then: Cluster, sides: Sides) -> Iterator[Difference]:
    """The pools that the scheduler sees otherwise, equal differences joined, and the slices that become invalid."""
    before, after = _pools(now, sides.now), _pools(then, sides.then)
    alike: dict[tuple[str, _State, _State], list[str]] = defaultdict(list)
    for driver, name in dict.fromkeys((*before, *after)):
        states = before.get((driver, name), (0, _NONE)), after.get((driver, name), (0, _NONE))
        if states[0] != states[1]:
            alike[driver, *states].append(name)
    for (driver, earlier, later), names in alike.items():
        effect = Effect.BREAKS if later[0] < earlier[0] else Effect.HELPS if later[0] > earlier[0] else Effect.CHANGES
        subject = f"{listed(names)} of {driver}"
        yield Difference(Aspect.POOL, effect, subject, earlier[1], later[1], members=tuple(names), count=len(names))
    yield from _slices(then.slices, sides)


def _pools(cluster: Cluster, side: Side) -> Mapping[PoolKey, _State]:
    """Each pool as the first node sees it that sees it."""
    survey = cluster.survey(side.features)
    found: dict[PoolKey, _State] = {}
    for node in cluster.nodes:
        try:
            pools = survey.view(node).pools
        except AllocationError:
            continue
        for pool in pools:
            if pool.state is PoolState.COMPLETE:
                count = len(pool.devices)
                found.setdefault(pool.key, (count, counted(count, "device") if count else _NONE))
            else:
                found.setdefault(pool.key, (0, f"{pool.state.value}: {pool.reason}"))
    return found


def _slices(slices: Sequence[ResourceSlice], sides: Sides) -> Iterator[Difference]:
    """The slices that only one of the API servers accepts. A driver that knows the release writes other ones."""
    features = [
        SliceFeatures(counters_beside_devices=minor_of(side.release) < COUNTERS_APART_SINCE)
        for side in (sides.now, sides.then)
    ]
    if features[0] == features[1]:
        return
    alike: dict[tuple[str, bool], list[tuple[ResourceSlice, str]]] = defaultdict(list)
    for slice_ in slices:
        before, after = (next(iter(slice_problems(slice_, each)), None) for each in features)
        if (before is None) != (after is None):
            alike[slice_.driver, before is None].append((slice_, str(before or after)))
    for (driver, was_accepted), members in alike.items():
        names = tuple(slice_.metadata.name for slice_, _ in members)
        refused = f"refused, {names[0]} for {members[0][1]}"
        yield Difference(
            Aspect.POOL,
            Effect.CHANGES if was_accepted else Effect.HELPS,
            f"ResourceSlice {listed(names)} of {driver}, if it is written again",
            _ACCEPTED if was_accepted else refused,
            refused if was_accepted else _ACCEPTED,
            members=names,
            count=len(names),
        )
