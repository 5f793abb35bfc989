# SPDX-License-Identifier: Apache-2.0
"""The sets of devices that the claims of a pod can have on an idle node, as the allocator's candidates.

The checks are those of the allocator: selectors, taints, capacity, constraints. Whether a set is free is left to the
search, and every step of a plan is decided by the allocator itself (`proof`).
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import Final

from ...kube.resource import Node, ResourceClaim
from ..allocator import Cluster, Features
from ..allocator.candidates import CandidateOptions
from ..allocator.constraints import Constraint
from ..allocator.option import Option
from ..allocator.outcome import AllocationError

Picks = tuple[tuple[Option, tuple[int, ...]], ...]
"""For each request, the alternative that serves it, and its devices."""

MOST_PLACEMENTS: Final = 2_000
"""The number of sets of devices that are kept for equal pods on equal nodes."""
_MOST_TRIED: Final = 20_000
"""The number of sets that are compared with the constraints."""


def placements(idle: Cluster, node: Node, claims: Sequence[ResourceClaim], features: Features) -> list[Picks]:
    """The sets of devices, in the order of the allocator. Empty if the claims cannot be evaluated on the node.

    `idle` is the cluster without claims. Claims with admin access hold nothing, and have no devices here.
    """
    survey = idle.survey(features)
    try:
        view = survey.view(node)
        options = CandidateOptions(view, survey, idle.class_by_name, features, idle.verdicts(features), None)
        requests = [request for index, claim in enumerate(claims) for request in options.of_claim(index, claim)]
    except AllocationError:
        return []
    return list(islice(_picks(requests, 0, ()), MOST_PLACEMENTS))


def _picks(requests: Sequence[Sequence[Option]], index: int, picked: Picks) -> Iterator[Picks]:
    """The picks of all requests, given those of the first `index` requests."""
    if index == len(requests):
        yield picked
        return
    taken = {device for option, devices in picked for device in devices if device not in option.shares}
    for option in requests[index]:
        if option.requirements.admin_access:
            yield from _picks(requests, index + 1, picked)
            continue
        usable = [device for device in option.devices if device not in option.tainted and device not in option.errors]
        if option.wants_all and (len(usable) < len(option.devices) or not usable):
            continue
        for devices in islice(combinations(usable, option.count), _MOST_TRIED):
            if taken.isdisjoint(devices) and _meets_constraints((*picked, (option, devices))):
                yield from _picks(requests, index + 1, (*picked, (option, devices)))


def _meets_constraints(picks: Picks) -> bool:
    """Whether all devices meet the constraints of the request that was picked last."""
    option, _ = picks[-1]
    return all(_holds(bound.constraint, picks) for bound in option.constraints)


def _holds(constraint: Constraint, picks: Picks) -> bool:
    """Whether the devices of the requests that a constraint covers meet it together. Leaves it as it was."""
    added: list[str] = []
    holds = True
    for option, devices in picks:
        facts = next((bound.facts for bound in option.constraints if bound.constraint is constraint), None)
        for device in devices if facts is not None else ():
            fact = facts.get(device) if facts is not None else None
            if holds and fact is not None and constraint.add(option.request, fact):
                added.append(option.request)
            else:
                holds = False
    for request in reversed(added):
        constraint.remove(request)
    return holds
