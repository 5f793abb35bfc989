# SPDX-License-Identifier: Apache-2.0
"""The lower bound of the number of moves: the exact minimum per node without destinations, over all nodes.

A unit of demand needs a place, and the pods that are in the way there must move, wherever they can go. For several
units, the minimum of each number of units is computed for each node, and the units are divided over the nodes so that
the sum is least. Equal nodes are computed once.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from .space import NodeUse, RepackSite, Resident, least_blockers

Uses = Callable[[int, RepackSite], Sequence[NodeUse]]

_MOST_STEPS: Final = 3_000
"""The number of sets of places that are tried on a node for several units."""


def fewest_moves(sites: Sequence[RepackSite], units: Sequence[int], uses: Uses) -> int | None:
    """The least number of moves that the units could take: of each kind of units alone, the largest. None if the units
    cannot have places even if every pod moves that may.
    """
    bound = 0
    for kind in dict.fromkeys(units):
        least = _fewest_of_kind(sites, kind, units.count(kind), uses)
        if least is None:
            return None
        bound = max(bound, least)
    return bound


def _fewest_of_kind(sites: Sequence[RepackSite], kind: int, count: int, uses: Uses) -> int | None:
    known: dict[Hashable, list[int]] = {}
    best: list[int | None] = [0] + [None] * count
    for site in sites:
        places = uses(kind, site)
        if not places:
            continue
        key = (site.look, id(places))
        if key not in known:
            known[key] = _on_node(site, places, kind, count)
        minima = known[key]
        for total in range(count, 0, -1):
            options = [
                before + minima[here - 1]
                for here in range(1, min(total, len(minima)) + 1)
                if (before := best[total - here]) is not None
            ]
            now = best[total]
            best[total] = min([*options, *([] if now is None else [now])], default=None)
    return best[count]


def _on_node(site: RepackSite, places: Sequence[NodeUse], kind: int, count: int) -> list[int]:
    """The least number of pods that must leave the node for 1, 2, ... units, as far as that many can be there."""
    minima: list[int] = []
    for number in range(1, count + 1):
        least = _least(site, places, kind, number, minima[-1] if minima else 0)
        if least is None:
            break
        minima.append(least)
    return minima


def _least(site: RepackSite, places: Sequence[NodeUse], kind: int, number: int, at_least: int) -> int | None:
    """The least number for exactly `number` units. After too many steps, a number that is not larger than that."""
    packing = _Packing(site, places, kind, at_least)
    packing.place(0, number, 0)
    return at_least if packing.steps > _MOST_STEPS else packing.best


@dataclass(eq=False, slots=True)
class _Packing:
    """Places several units on one node, and counts the pods that must leave it."""

    site: RepackSite
    places: Sequence[NodeUse]
    kind: int
    at_least: int
    best: int | None = None
    steps: int = 0

    def place(self, first: int, number: int, moved: int) -> None:
        """Places `number` more units, at places from the index `first` on."""
        if number == 0:
            self.best = moved if self.best is None else min(self.best, moved)
            return
        tried: set[Hashable] = set()
        for index in range(first, len(self.places)):
            self.steps += 1
            if self.steps > _MOST_STEPS or (self.best is not None and self.best <= self.at_least):
                return
            look = self.site.look_of(self.places[index])
            if look not in tried:
                tried.add(look)
                self._try(index, number, moved)

    def _try(self, index: int, number: int, moved: int) -> None:
        site, use = self.site, self.places[index]
        most = len(site.residents) if self.best is None else self.best - moved - 1
        blockers = least_blockers(site, use, most) if most >= 0 else None
        if blockers is None:
            return
        version = site.version
        for pod in blockers:
            site.remove(pod)
        unit = Resident(-number, self.kind, site, use)
        site.add(unit)
        self.place(index + 1, number - 1, moved + len(blockers))
        site.remove(unit)
        for pod in blockers:
            site.add(pod)
        site.version = version
