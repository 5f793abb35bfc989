# SPDX-License-Identifier: Apache-2.0
"""The search for the fewest pods to move so that some units of demand have a place.

The search goes backwards from a place of the demand. The pods that are in the way there must move. Each of them needs a
free place elsewhere, and pods that are in the way at that place must move before. A move that makes room for nothing is
never tried. Plans of one move are tried before those of two, and so on, so the first plan has the fewest moves, unless
the search for a smaller number ended at its limit of steps. Equal nodes and equal GPUs are tried once.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field

from .bounds import fewest_moves
from .space import Harm, NodeUse, RepackSite, Resident, harm_of, least_blockers

Uses = Callable[[int, RepackSite], Sequence[NodeUse]]
"""(kind, node) -> the places that a pod of the kind can have on the node, whatever is in use there."""


_Cost = tuple[tuple[int, Harm], NodeUse]


@dataclass(frozen=True, slots=True)
class Move:
    """A pod leaves its node `source`, and is placed on `target`."""

    resident: Resident
    source: RepackSite
    target: RepackSite
    use: NodeUse


@dataclass(frozen=True, slots=True)
class UnitTarget:
    """The place of one unit of demand."""

    site: RepackSite
    use: NodeUse


@dataclass(frozen=True, slots=True)
class Draft:
    """Moves in their order, and the places that the units have then."""

    moves: tuple[Move, ...]
    targets: tuple[UnitTarget, ...]


@dataclass(eq=False)
class Limits:
    """`steps` is the number of steps for each number of moves, `all_steps` that for all of them, and `moves` the
    largest number of moves. With `keeps_nodes`, no pod is moved to a node where a place is kept free: the guard is a
    cordon.
    """

    steps: int = 6_000
    all_steps: int = 18_000
    moves: int = 64
    keeps_nodes: bool = False


@dataclass(eq=False)
class DraftSearch:
    """The search in `sites`. `units` are the kinds of the units of demand."""

    sites: Sequence[RepackSite]
    units: Sequence[int]
    uses: Uses
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self._moves: list[Move] = []
        self._kept: list[tuple[RepackSite, NodeUse]] = []
        self._targets: list[UnitTarget] = []
        self._steps = 0
        self._free: dict[tuple[int, int, int], list[NodeUse]] = {}
        self._open: dict[int, tuple[int, set[int]]] = {}
        self._changed: list[int] = list(range(len(self.sites)))
        self._costs: dict[tuple[int, int, int, int], list[_Cost]] = {}
        self._uses: dict[tuple[int, int], Sequence[NodeUse]] = {}
        self._numbers = {id(site): number for number, site in enumerate(self.sites)}
        self.bound = fewest_moves(self.sites, self.units, self.uses)
        """No plan has fewer moves. None if there is no plan: too much is held by pods that must stay. It grows while
        numbers of moves are found to have no plan.
        """
        self.is_cut = False
        """Whether a number of moves was given up at the limit of steps."""

    def drafts(self) -> Iterator[Draft]:
        """Plans, those with the fewest moves first. `bound` grows with each number of moves that has no plan."""
        if self.bound is None:
            return
        taken = 0
        for moves in range(self.bound, self.limits.moves + 1):
            if taken > self.limits.all_steps:
                return
            self._steps = 0
            has_drafts = False
            for _ in self._places(0, moves):
                if len(self._moves) == moves:
                    has_drafts = True
                    yield Draft(tuple(self._moves), tuple(self._targets))
            taken += self._steps
            if self._steps > self.limits.steps:
                self.is_cut = True
            elif not self.is_cut and not has_drafts:
                self.bound = moves + 1

    def _places(self, unit: int, budget: int) -> Iterator[None]:
        """Gives a place to each unit from `unit` on, with at most `budget` moves."""
        if unit == len(self.units):
            yield
            return
        tried: set[Hashable] = set()
        kind = self.units[unit]
        for (cost, _), site, use in sorted(self._affordable(kind, budget), key=lambda found: found[0]):
            if not self._step():
                return
            look = (cost, site.look, site.look_of(use))
            if look in tried or self._is_kept(site, use):
                continue
            tried.add(look)
            self._kept.append((site, use))
            for used in self._cleared(site, use, budget):
                self._targets.append(UnitTarget(site, use))
                placed = Resident(-1 - unit, kind, site, use)
                with self._changing(site):
                    site.add(placed)
                    yield from self._places(unit + 1, budget - used)
                    site.remove(placed)
                self._targets.pop()
            self._kept.pop()

    @contextmanager
    def _changing(self, *sites: RepackSite) -> Iterator[None]:
        """A change of nodes that is undone at the end."""
        versions = [site.version for site in sites]
        self._changed += [self._numbers[id(site)] for site in sites]
        yield
        self._changed += [self._numbers[id(site)] for site in sites]
        for site, version in zip(sites, versions, strict=True):
            site.version = version

    def _cleared(self, site: RepackSite, use: NodeUse, budget: int, mover: Resident | None = None) -> Iterator[int]:
        """Moves pods until the use fits at the node, without the pod `mover`, which leaves then. Gives the number of
        moves.
        """
        blockers = self._blockers(site, use, budget, mover)
        if blockers is None:
            return
        if not blockers:
            yield 0
            return
        if not all(self._has_place(pod, blockers, budget - len(blockers)) for pod in blockers):
            return
        tried: set[Hashable] = set()
        for resident in blockers:
            look = (resident.kind, site.look_of(resident.use))
            if look in tried:
                continue
            tried.add(look)
            for used in self._moved(resident, budget - len(blockers) + 1):
                for more in self._cleared(site, use, budget - used, mover):
                    yield used + more

    def _has_place(self, pod: Resident, leaving: Sequence[Resident], more: int) -> bool:
        """Whether there is a place for the pod when all pods `leaving` are gone, and up to `more` other pods."""
        with ExitStack() as stack:
            for other in leaving:
                stack.enter_context(self._away(other))
            return any(
                not self._is_kept(site, use) and (site is not pod.node or use.devices != pod.use.devices)
                for site, use in self._within(pod.kind, more)
            )

    def _within(self, kind: int, budget: int) -> Iterator[tuple[RepackSite, NodeUse]]:
        """The free places, then the places that become free by at most `budget` moves."""
        yield from ((site, use) for site in self._open_sites(kind) for use in self._free_at(kind, site))
        if budget:
            yield from ((site, use) for site in self.sites for _, use in self._costs_at(kind, site, budget))

    @contextmanager
    def _away(self, pod: Resident) -> Iterator[None]:
        """The nodes without a pod for a while."""
        with self._changing(pod.node), pod.node.without(pod):
            yield

    def _blockers(
        self, site: RepackSite, use: NodeUse, budget: int, mover: Resident | None
    ) -> tuple[Resident, ...] | None:
        if mover is None or mover.node is not site:
            return least_blockers(site, use, budget)
        with site.without(mover):
            return least_blockers(site, use, budget)

    def _moved(self, resident: Resident, budget: int) -> Iterator[int]:
        """Moves one pod to each place in turn that costs at most `budget` moves, this one included."""
        for own, target, use in self._destinations(resident, budget):
            self._kept.append((target, use))
            for used in self._cleared(target, use, budget - 1, resident) if own else (0,):
                self._kept.pop()
                source, before = resident.node, resident.use  # making room may have moved the pod already
                with self._changing(*dict.fromkeys((source, target))):
                    source.remove(resident)
                    resident.node, resident.use = target, use
                    target.add(resident)
                    self._moves.append(Move(resident, source, target, use))
                    yield used + 1
                    self._moves.pop()
                    target.remove(resident)
                    resident.node, resident.use = source, before
                    source.add(resident)
                self._kept.append((target, use))
            self._kept.pop()

    def _destinations(self, resident: Resident, budget: int) -> Iterator[tuple[int, RepackSite, NodeUse]]:
        """The places for a pod, with the number of pods that are in the way there: free places first, and of these
        first those on GPUs that are in use already.
        """
        with self._away(resident):
            free = [
                (0, site, use)
                for site in self._open_sites(resident.kind)
                for use in self._free_at(resident.kind, site)
                if site is not resident.node or use.devices != resident.use.devices
            ]
        yield from self._distinct(resident, free)
        if budget > 1:
            yield from self._distinct(resident, sorted(self._blocked(resident, budget - 1), key=lambda place: place[0]))

    def _distinct(
        self, resident: Resident, places: Sequence[tuple[int, RepackSite, NodeUse]]
    ) -> Iterator[tuple[int, RepackSite, NodeUse]]:
        tried: set[Hashable] = set()
        for idle in (False, True):
            for cost, site, use in places:
                if site.is_idle(use) is not idle:
                    continue
                if not self._step():
                    return
                look = (cost, site.look, site.look_of(use), site is resident.node)
                if look in tried or self._is_kept(site, use):
                    continue
                tried.add(look)
                yield cost, site, use

    def _open_sites(self, kind: int) -> list[RepackSite]:
        """The nodes with a free place for a pod of the kind, in the order of the nodes."""
        seen, found = self._open.get(kind, (0, set()))
        for number in set(self._changed[seen:]):
            if self._free_at(kind, self.sites[number]):
                found.add(number)
            else:
                found.discard(number)
        self._open[kind] = (len(self._changed), found)
        return [self.sites[number] for number in sorted(found)]

    def _free_at(self, kind: int, site: RepackSite) -> list[NodeUse]:
        """The free places on a node."""
        key = (kind, self._numbers[id(site)], site.version)
        uses = self._free.get(key)
        if uses is None:
            uses = self._free[key] = [use for use in self._uses_at(kind, site) if site.fits(use)]
        return uses

    def _uses_at(self, kind: int, site: RepackSite) -> Sequence[NodeUse]:
        key = (kind, self._numbers[id(site)])
        if key not in self._uses:
            self._uses[key] = self.uses(kind, site)
        return self._uses[key]

    def _blocked(self, resident: Resident, budget: int) -> Iterator[tuple[int, RepackSite, NodeUse]]:
        """The places that become free if other pods move."""
        for site in self.sites:
            if not self._step():
                return
            with self._away(resident) if site is resident.node else nullcontext():
                found = self._costs_at(resident.kind, site, budget)
            yield from ((cost, site, use) for (cost, _), use in found if 0 < cost <= budget)

    def _affordable(self, kind: int, budget: int) -> Iterator[tuple[tuple[int, Harm], RepackSite, NodeUse]]:
        for site in self.sites:
            yield from ((cost, site, use) for cost, use in self._costs_at(kind, site, budget))

    def _costs_at(self, kind: int, site: RepackSite, budget: int) -> list[_Cost]:
        """The places on a node, with the number of pods that are in the way there, at most `budget`, and the harm
        of moving them.
        """
        key = (kind, self._numbers[id(site)], budget, site.version)
        costs = self._costs.get(key)
        if costs is None:
            costs = self._costs[key] = [
                ((len(blockers), harm_of(blockers)), use)
                for use in self._uses_at(kind, site)
                if (blockers := least_blockers(site, use, budget)) is not None
            ]
        return costs

    def _is_kept(self, site: RepackSite, use: NodeUse) -> bool:
        """Whether a place that is kept free would be used."""
        return any(
            kept is site and (self.limits.keeps_nodes or site.conflict(use, reserved)) for kept, reserved in self._kept
        )

    def _step(self) -> bool:
        """Counts a step. False at the limit."""
        self._steps += 1
        return self._steps <= self.limits.steps
