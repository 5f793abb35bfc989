# SPDX-License-Identifier: Apache-2.0
"""Pending claims on one node as a search problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..resource import ResourceClaim
from .counters import Charge, Counters
from .features import Features
from .option import Option
from .options import Options
from .pools import PoolState
from .survey import NodeView, Survey


@dataclass(slots=True)
class Problem:
    """What `search` needs to know. Devices are known by their index in the NodeView."""

    claims: list[list[list[Option]]] = field(default_factory=list)
    """Each claim a list of requests, each request a list of options."""
    charges: list[Charge | None] = field(default_factory=list)
    """The counters that each device takes."""
    consumed: dict[int, Mapping[str, int]] = field(default_factory=dict)
    """Capacity in use, in billionths, of devices with shares."""
    sharing: set[int] = field(default_factory=set)
    """Devices of which a share is in use, so that their counters are taken already."""
    name: Callable[[int], str] = str
    """driver/pool/device of a device."""


def state_problem(
    view: NodeView, survey: Survey, claims: Sequence[ResourceClaim], options: Options, features: Features
) -> Problem:
    """The problem that `claims` pose together. AllocationError when one of them cannot be searched for."""
    problem = Problem(name=view.name)
    problem.claims.extend(options.of_claim(index, claim) for index, claim in enumerate(claims))
    counters = Counters(by_name=features.quirks.counters_by_pool_name)
    first = 0
    for pool in view.pools:
        if pool.state is not PoolState.COMPLETE:
            continue
        usage = survey.usage(pool.key)
        if features.partitionable_devices:
            problem.charges.extend(counters.charges(pool, pool.available(usage)))
        else:
            problem.charges.extend([None] * len(pool.devices))
        noticed = usage.consumed if features.quirks.shares_without_capacity_unnoticed else usage.shared
        for index, device in enumerate(pool.devices, first):
            if device.name in usage.consumed:
                problem.consumed[index] = usage.consumed[device.name]
            if device.name in noticed:
                problem.sharing.add(index)
        first += len(pool.devices)
    return problem
