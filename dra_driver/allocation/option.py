# SPDX-License-Identifier: Apache-2.0
"""One way to serve a request, as the search sees it. Devices are known by their index in the NodeView."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..resource import ALL, DeviceClass, DeviceRequirements, ResourceClaim
from .capacity import Share
from .constraints import Constraint, Fact
from .errors import AllocationError
from .growing import Growing
from .observer import Refusal, Slot


@dataclass(slots=True)
class BoundConstraint:
    """Constraint `index` of the claim, and what it sees of the devices that it covers (None: no such attribute)."""

    index: int
    constraint: Constraint
    facts: Mapping[int, Fact | None]


@dataclass(slots=True)
class Option:
    """A request, or one of its alternatives."""

    slot: Slot
    claim: ResourceClaim
    request: str
    """The request's name, without the alternative."""
    requirements: DeviceRequirements
    device_class: DeviceClass
    count: int = 0
    devices: list[int] = field(default_factory=list)
    """Exact counts: the candidates in the order of the search. All: every device that has to be had."""
    errors: dict[int, AllocationError] = field(default_factory=dict)
    """Candidates that end the search when it comes to them."""
    barred: dict[int, Refusal] = field(default_factory=dict)
    """Devices of an All request that cannot be had."""
    tainted: dict[int, Refusal] = field(default_factory=dict)
    """Devices that are refused for a taint, though not before their counters were looked at."""
    shares: dict[int, Share] = field(default_factory=dict)
    """What is picked of shared devices."""
    growing: Growing | None = None
    """What is requested, where that changes during the search: then `shares` tells which devices are shared, only."""
    constraints: list[BoundConstraint] = field(default_factory=list)
    """Those that cover the option, in the order of the claim."""

    @property
    def wants_all(self) -> bool:
        return self.requirements.allocation_mode == ALL

    @property
    def is_alternative(self) -> bool:
        return self.slot.request != self.request

    @property
    def leaves_nothing(self) -> bool:
        """Whether trying devices in vain changes nothing, so that it need not be done."""
        return not (self.errors or self.tainted or self.shares or self.constraints)
