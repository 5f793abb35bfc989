# SPDX-License-Identifier: Apache-2.0
"""The order of MIG placements: which of them should be allocated first.

The scheduler takes the first device that fits. So a driver can influence the place of small instances only by the
order of its devices. Small profiles come first, for claims that accept any. Within a profile, the next placement is
the one that takes the least space from the largest profiles, given that those before it are taken; of equal ones, the
one nearer to the end of the memory slices. Everything is derived from the placements themselves.

So small instances fill one GPU from its edge before they use the next one; tests/bench/packing.py measures the
effect. (An order over all GPUs, with the better half for 3g of every GPU first, would save more space for 4g. But it
would use all GPUs at once, and leave none whole.)
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..inventory import MigProfile
from .names import MigPlacement

Run = tuple[int, int]
"""First memory slice, and the one after the last."""


def by_preference(placements: Iterable[MigPlacement]) -> list[MigPlacement]:
    """The placements of one GPU, better ones first."""
    every = list(placements)
    return [one for group in _groups(every) for one in _sequence(group, _larger(group, every))]


def _groups(every: Iterable[MigPlacement]) -> list[list[MigPlacement]]:
    """The placements by profile, small profiles first; of equal ones those that leave rare engines to others."""
    groups: dict[int, list[MigPlacement]] = defaultdict(list)
    for one in every:
        groups[one.profile.info.id].append(one)
    return sorted(groups.values(), key=lambda group: (_size(group[0]), _rank(group[0].profile)))


def _size(one: MigPlacement) -> tuple[int, int]:
    """Memory slices and compute slices."""
    return one.placement.size, one.profile.info.slice_count


def _rank(profile: MigProfile) -> tuple[int, int, str]:
    info = profile.info
    return info.memory_mib, info.decoders + info.encoders + info.jpeg_engines + info.ofa_engines, profile.name


def _larger(group: Sequence[MigPlacement], every: Iterable[MigPlacement]) -> list[Run]:
    return [_run(one) for one in every if _size(one) > _size(group[0])]


def _sequence(group: Sequence[MigPlacement], larger: list[Run]) -> list[MigPlacement]:
    """One profile's placements in the order in which they are better taken."""
    left, sequence = list(group), []
    while left:
        best = min(left, key=lambda one: (_damage(one, larger), -one.placement.start))
        left.remove(best)
        sequence.append(best)
        larger = [run for run in larger if not _overlap(run, _run(best))]
    return sequence


def _damage(one: MigPlacement, larger: Iterable[Run]) -> tuple[int, ...]:
    """How many runs of each length it takes away, the longest first."""
    lengths = sorted({end - start for start, end in larger}, reverse=True)
    taken = [end - start for start, end in larger if _overlap((start, end), _run(one))]
    return tuple(taken.count(length) for length in lengths)


def _run(one: MigPlacement) -> Run:
    return one.placement.start, one.placement.start + one.placement.size


def _overlap(one: Run, other: Run) -> bool:
    return one[0] < other[1] and other[0] < one[1]
