# SPDX-License-Identifier: Apache-2.0
"""The nodes of a cluster as counters, on which the search for moves computes.

A counter is a resource of a node (such as cpu), a counter that the devices of a pool share (such as a memory slice of a
GPU), one device that is allocated as a whole, or a capacity of a device that is shared. A pod on a node takes amounts
of counters. The counters of a device are taken once while the device is in use, however many pods share it.

The model knows nothing of affinity, ports or volumes. `proof` checks every step of a plan by all rules of the
scheduler.
"""

import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

_versions = itertools.count()

Amount = tuple[int, int]
"""A counter by its index, and an amount of it."""


Harm = tuple[tuple[int, ...], ...]
"""The costs of several pods. Less harm sorts first."""


@dataclass(frozen=True, eq=False)
class NodeShape:
    """The devices of equal nodes. Devices are known by their index in the view of a node."""

    totals: tuple[int, ...]
    """The whole of each counter of devices."""
    takes: tuple[tuple[Amount, ...], ...]
    """For each device, what it takes of the counters while it is in use."""
    sets: tuple[tuple[int, ...], ...]
    """For each device, the sets of counters (usually one GPU) from which it takes."""
    forms: tuple[Hashable, ...]
    """For each device, what it takes, without saying from which GPU."""
    whole: frozenset[int]
    """The devices that one pod has as a whole."""

    @cached_property
    def counters(self) -> Sequence[frozenset[int]]:
        """For each device, the counters of which it takes."""
        return [frozenset(counter for counter, amount in takes if amount) for takes in self.takes]

    @cached_property
    def shared(self) -> frozenset[int]:
        """The counters of which several devices take."""
        seen: set[int] = set()
        twice: set[int] = set()
        for counters in self.counters:
            twice |= seen & counters
            seen |= counters
        return frozenset(twice)

    @cached_property
    def counters_of_set(self) -> Mapping[int, tuple[int, ...]]:
        """The counters from which the devices of each set take."""
        found: dict[int, set[int]] = {}
        for takes, sets in zip(self.takes, self.sets, strict=True):
            for number in sets:
                found.setdefault(number, set()).update(counter for counter, _ in takes)
        return {number: tuple(sorted(counters)) for number, counters in found.items()}


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The devices that a pod has or would have on a node, and the amounts that it takes besides: capacities of shared
    devices, and resources of the node.
    """

    devices: tuple[int, ...]
    amounts: tuple[Amount, ...] = ()


@dataclass(eq=False, slots=True)
class Resident:
    """A pod on a node. `kind` is the number of its kind (`Space.kinds`): equal pods need equal things.

    `cost` orders pods by the harm of moving them. It is None for a pod that must stay.
    """

    number: int
    kind: int
    node: "RepackSite"
    use: NodeUse
    cost: tuple[int, ...] | None = None

    def __lt__(self, other: "Resident") -> bool:
        return self.number < other.number

    @property
    def size(self) -> int:
        """The number of counters that the devices of the pod take."""
        return sum(len(self.node.shape.counters[device]) for device in self.use.devices)


class RepackSite:
    """One node with its pods. `left` is the rest of each counter: those of devices first, then resources."""

    def __init__(self, name: str, shape: NodeShape, resources: Sequence[int], label: Hashable) -> None:
        """`resources` is what the node has of each resource. Nodes with equal labels are equal for all pods."""
        self.name = name
        self.shape = shape
        self.totals = (*shape.totals, *resources)
        self.left = list(self.totals)
        self.residents: dict[int, Resident] = {}
        self.version = next(_versions)
        """Equal versions mean equal contents."""
        self._label = label
        self._users: dict[int, int] = {}
        self._takers: list[dict[int, Resident]] = [{} for _ in self.totals]
        self._looks: dict[int, int] = {}
        self._looks_of_sets: dict[tuple[int, int], int] = {}

    def needs(self, use: NodeUse) -> dict[int, int]:
        """The amount of each counter that the use would take now."""
        needs = dict(use.amounts)
        for device in use.devices:
            if device in self.shape.whole or not self._users.get(device):
                for counter, amount in self.shape.takes[device]:
                    needs[counter] = needs.get(counter, 0) + amount
        return needs

    def lacking(self, use: NodeUse) -> list[int]:
        """The counters of which too little is left for the use."""
        left = self.left
        return [counter for counter, amount in self.needs(use).items() if amount > left[counter] and amount > 0]

    def fits(self, use: NodeUse) -> bool:
        """Whether there is enough of all counters."""
        left = self.left
        return all(amount <= left[counter] or amount <= 0 for counter, amount in self.needs(use).items())

    def conflict(self, use: NodeUse, other: NodeUse) -> bool:
        """Whether the node cannot have both, even without its pods."""
        if not self.shape.whole.isdisjoint(set(use.devices) & set(other.devices)):
            return True
        needs: dict[int, int] = {}
        devices = dict.fromkeys((*use.devices, *other.devices))
        for counter, amount in (
            *use.amounts,
            *other.amounts,
            *(taken for device in devices for taken in self.shape.takes[device]),
        ):
            needs[counter] = needs.get(counter, 0) + amount
        return any(amount > self.totals[counter] for counter, amount in needs.items())

    def add(self, resident: Resident) -> None:
        """Places a pod here."""
        for counter, amount in self.needs(resident.use).items():
            self.left[counter] -= amount
        for device in resident.use.devices:
            self._users[device] = self._users.get(device, 0) + 1
        for counter in self._counters(resident.use):
            self._takers[counter][resident.number] = resident
        self.residents[resident.number] = resident
        self.version = next(_versions)

    def remove(self, resident: Resident) -> None:
        """Takes a pod away."""
        for device in resident.use.devices:
            self._users[device] -= 1
        for counter in self._counters(resident.use):
            del self._takers[counter][resident.number]
        for counter, amount in self.needs(resident.use).items():
            self.left[counter] += amount
        del self.residents[resident.number]
        self.version = next(_versions)

    @contextmanager
    def without(self, resident: Resident) -> Iterator[None]:
        """The node without one of its pods for a while."""
        version = self.version
        self.remove(resident)
        try:
            yield
        finally:
            self.add(resident)
            self.version = version

    def takers(self, counter: int) -> Collection[Resident]:
        """The pods that take of the counter."""
        return self._takers[counter].values()

    def _counters(self, use: NodeUse) -> set[int]:
        """The counters of which the use takes."""
        counters = {counter for counter, amount in use.amounts if amount}
        return counters.union(*(self.shape.counters[device] for device in use.devices))

    @property
    def look(self) -> int:
        """Equal for nodes that are equal for every pod, pods included: a hash of everything that decides."""
        look = self._looks.get(self.version)
        if look is None:
            pods = sorted((pod.kind, pod.use.devices, pod.cost is None) for pod in self.residents.values())
            look = self._looks[self.version] = hash((self._label, id(self.shape), tuple(self.left), tuple(pods)))
        return look

    def look_of(self, use: NodeUse) -> Hashable:
        """Equal for uses of equal GPUs of this node: what the devices take, and the contents of their GPUs."""
        return tuple(
            (self.shape.forms[device], tuple(self._look_of_set(number) for number in self.shape.sets[device]))
            for device in use.devices
        )

    def _look_of_set(self, number: int) -> int:
        key = (self.version, number)
        look = self._looks_of_sets.get(key)
        if look is None:
            sets, forms = self.shape.sets, self.shape.forms
            pods = sorted(
                (pod.kind, pod.cost is None, hash(tuple(forms[device] for device in pod.use.devices)))
                for pod in self.residents.values()
                if any(number in sets[device] for device in pod.use.devices)
            )
            rest = tuple(self.left[counter] for counter in self.shape.counters_of_set.get(number, ()))
            look = self._looks_of_sets[key] = hash((rest, tuple(pods)))
        return look

    def is_idle(self, use: NodeUse) -> bool:
        """Whether the use would begin a GPU of which nothing is in use."""
        counters = self.shape.counters_of_set
        return not any(
            self._takers[counter]
            for number in {number for device in use.devices for number in self.shape.sets[device]}
            for counter in counters[number]
        )


def least_blockers(site: RepackSite, use: NodeUse, most: int) -> tuple[Resident, ...] | None:
    """The fewest pods that must leave so that the use fits. None if more than `most` must, or if none can.

    Of equally many, those with the least cost.
    """
    best: tuple[Resident, ...] | None = None
    for found in _covers(site, use, most, frozenset()):
        if best is None or (len(found), harm_of(found)) < (len(best), harm_of(best)):
            best = found
    return best


def harm_of(pods: Iterable[Resident]) -> Harm:
    """The harm of moving the pods, the largest first: their costs, and how much of counters they take."""
    return tuple(sorted(((*(pod.cost or ()), pod.size) for pod in pods), reverse=True))


def _covers(site: RepackSite, use: NodeUse, most: int, kept: frozenset[int]) -> Iterator[tuple[Resident, ...]]:
    """Sets of at most `most` pods after whose removal the use fits. The pods `kept` stay."""
    lacking = site.lacking(use)
    if not lacking:
        yield ()
        return
    if most == 0:
        return
    counter = min(lacking, key=lambda counter: len(site.takers(counter)))
    choice = [pod for pod in site.takers(counter) if pod.cost is not None and pod.number not in kept]
    for pod in sorted(choice, key=lambda pod: (pod.cost or (), pod.number)):
        with site.without(pod):
            found = [(pod, *others) for others in _covers(site, use, most - 1, kept)]
        yield from found
        most = min([most, *(len(cover) for cover in found)])
        kept |= {pod.number}
