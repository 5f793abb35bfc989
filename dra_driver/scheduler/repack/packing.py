# SPDX-License-Identifier: Apache-2.0
"""How many units of one kind would be free if all pods that may move were packed as tightly as possible.

For `found`, all pods are removed and packed again, the largest first, each into the GPU where it fits best, so this
number can be reached.
`at_most` is a bound that no packing exceeds: it adds up the shares of GPUs that pods take, wherever they are.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from .build import Space
from .space import NodeUse, RepackSite, Resident


@dataclass(frozen=True, slots=True)
class Packing:
    """Free units now, with a packing that was found, and at most."""

    now: int
    found: int
    at_most: int


def pack(space: Space, kind: int) -> Packing:
    """Packs the pods of a cluster. The space is left as it was."""
    now = _free(space, kind)
    moving = [pod for site in space.sites for pod in site.residents.values() if pod.cost is not None]
    moving = sorted((pod for pod in moving if pod.use.devices), key=lambda pod: (-pod.size, pod.number))
    before = {pod.number: (pod.node, pod.use) for pod in moving}
    for pod in moving:
        pod.node.remove(pod)
    at_most = _bound(space, kind, moving)
    packed = _packed(space, moving)
    found = max(now, _free(space, kind)) if packed else now
    for pod in moving:
        if pod.number in pod.node.residents:
            pod.node.remove(pod)
    for pod in moving:
        pod.node, pod.use = before[pod.number]
        pod.node.add(pod)
    return Packing(now, found, max(found, at_most))


def _packed(space: Space, pods: list[Resident]) -> bool:
    """Places the pods one after the other. False if one finds no place, although all have one now."""
    for pod in pods:
        places = [(site, use) for site in space.sites for use in space.uses(pod.kind, site) if site.fits(use)]
        if not places:
            return False
        pod.node, pod.use = min(places, key=lambda place: _looseness(*place))
        pod.node.add(pod)
    return True


def _looseness(site: RepackSite, use: NodeUse) -> tuple[int, int]:
    """How much of the GPUs of a place is left. GPUs that are idle come last."""
    counters = {
        counter
        for device in use.devices
        for number in site.shape.sets[device]
        for counter in site.shape.counters_of_set[number]
    }
    return int(site.is_idle(use)), sum(site.left[counter] > 0 for counter in counters)


def _free(space: Space, kind: int) -> int:
    """The number of units that fit beside the pods."""
    placed: list[Resident] = []
    for site in space.sites:
        for use in space.uses(kind, site):
            if site.fits(use):
                unit = Resident(-1 - len(placed), kind, site, use)
                site.add(unit)
                placed.append(unit)
    for unit in placed:
        unit.node.remove(unit)
    return len(placed)


def _bound(space: Space, kind: int, pods: list[Resident]) -> int:
    """The number of free units that no packing exceeds. `pods` are the pods that move; other pods are in place."""
    places = [(site, use) for site in space.sites for use in space.uses(kind, site)]
    sets = {(id(site), number) for site, use in places for device in use.devices for number in site.shape.sets[device]}
    usable = [site.fits(use) for site, use in places]
    volume = sum((share for pod in pods for place, share in _shares(pod) if place in sets), Fraction(0))
    room = Fraction(0)
    for (site, use), fits in zip(places, usable, strict=True):
        if not fits:
            numbers = {number for device in use.devices for number in site.shape.sets[device]}
            room += sum((_left(site, number) for number in numbers), Fraction(0))
    return sum(usable) - max(0, math.ceil(volume - room))


def _shares(pod: Resident) -> Iterator[tuple[tuple[int, int], Fraction]]:
    """The share of each set of counters (usually a GPU) that the pod takes: the average over the counters."""
    shape = pod.node.shape
    for device in pod.use.devices:
        for number in shape.sets[device]:
            counters = shape.counters_of_set[number]
            shared = [counter for counter in counters if _is_shared(pod.node, counter)]
            taken = dict(shape.takes[device])
            total = sum((Fraction(taken.get(counter, 0), shape.totals[counter]) for counter in shared), Fraction(0))
            yield (id(pod.node), number), total / len(shared) if shared else Fraction(1)


def _left(site: RepackSite, number: int) -> Fraction:
    shared = [counter for counter in site.shape.counters_of_set[number] if _is_shared(site, counter)]
    if not shared:
        return Fraction(0)
    left = sum((Fraction(max(0, site.left[counter]), site.totals[counter]) for counter in shared), Fraction(0))
    return left / len(shared)


def _is_shared(site: RepackSite, counter: int) -> bool:
    """Whether several devices take of the counter, so that it is not that of one device."""
    return counter in site.shape.shared and site.totals[counter] > 0
