# SPDX-License-Identifier: Apache-2.0
"""Why no moves help, and what would: the pods in the way that must stay, a node of another type, another selector,
another profile.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...scheduler.allocator import Cluster, allocate_all
from ...scheduler.repack import Unit, obstacles
from ..changes import helpful_changes
from ..nodetypes import built_in_nodes
from ..stock import Stocktaker, totals
from ..trial import ClaimTrial
from .question import Repacking

_MOST: Final = 5
"""The number of hints of one kind."""


@dataclass(frozen=True, slots=True)
class Hints:
    """`reasons` say why no moves help, and `helps` what would."""

    reasons: tuple[str, ...]
    helps: tuple[str, ...]


def hints_for(repacking: Repacking) -> Hints:
    """The hints about an answer without a plan."""
    return Hints(tuple(_reasons(repacking)), tuple(dict.fromkeys(_helps(repacking))))


def _reasons(repacking: Repacking) -> Iterator[str]:
    result, space = repacking.result, repacking.space
    if result.is_cut:
        yield f"none was found within the limits; at least {result.bound or 0} pods would have to move"
    counts = Counter(unit.key for unit in repacking.units)
    for unit in _distinct(repacking.units):
        found = obstacles(space, unit, counts[unit.key])
        if found is None:
            yield "no node has such devices that the demand may use"
            continue
        node, staying = found
        yield from (f"on {node}, {pod} is in the way and stays: {why}" for pod, why in staying[:_MOST])
        if not staying and not result.is_cut:
            yield f"the pods in the way on {node}, which comes closest, have no place elsewhere"
    yield from (f"a step was refused: {text}" for text in result.refusals[:_MOST])


def _helps(repacking: Repacking) -> Iterator[str]:
    space, features = repacking.space, repacking.question.features
    cluster = space.snapshot.cluster
    fresh = Cluster.of([*built_in_nodes(None), *cluster.classes])
    for unit in _distinct(repacking.units):
        outcomes = allocate_all(fresh, unit.claims, features)
        names = [name for name in outcomes if outcomes.kind(name) == "allocated"]
        if names:
            yield f"a node of type {' or '.join(names[:_MOST])} (--with-node {names[0]})"
        if repacking.question.demands and unit.claims:
            trial = ClaimTrial(cluster, list(unit.claims), features)
            yield from (f"{change.text} (then on {change.node})" for change in helpful_changes(trial, ())[:_MOST])
    free = [
        f"{amount.free} x {kind.profile or kind.model or kind.driver}"
        for kind, amount in totals(Stocktaker(features).count(cluster)).items()
        if amount.free
    ]
    if free:
        yield f"another profile: free now are {', '.join(free[:_MOST])}"


def _distinct(units: Sequence[Unit]) -> list[Unit]:
    return list({unit.key: unit for unit in units}.values())
