# SPDX-License-Identifier: Apache-2.0
"""What a search tells whoever wants to explain it: which check removed which device from which request.

Without an observer, nothing is recorded, and nothing costs.
"""

import enum
from dataclasses import dataclass, field

from ...kube.resource import DeviceTaint, ResourceClaim
from .capacity import CapacityRefusal
from .pools import CounterKey, PoolView
from .selectors import Unmet
from .survey import NodeView

Detail = tuple[ResourceClaim, ...] | Unmet | CapacityRefusal | tuple[CounterKey, ...] | DeviceTaint | int | None


class Check(enum.Enum):
    """The checks of a candidate, in the order in which they are made. The comment tells a refusal's `detail`."""

    IN_USE = "in use"  # the claims that hold the device
    PICKED = "picked before"  # None
    BINDING_CONDITIONS = "binding conditions"  # None: the gate is off
    SELECTOR = "selector"  # Unmet
    NODE = "node"  # None: the device is for other nodes
    CAPACITY = "capacity"  # CapacityRefusal
    COUNTERS_GATE = "counters gate"  # None: the gate is off
    COUNTERS = "counters"  # the counters that would be overdrawn
    TAINT = "taint"  # the taint
    CONSTRAINT = "constraint"  # the index of the constraint in its claim


@dataclass(frozen=True, slots=True)
class Slot:
    """The request that a device is tried for: index of a pending claim, and `request` or `request/alternative`."""

    claim: int
    request: str


@dataclass(frozen=True, slots=True)
class DeviceRefusal:
    """A device (index in the NodeView) that `check` removed."""

    slot: Slot
    device: int
    check: Check
    detail: Detail = None


@dataclass(slots=True)
class Recorder:
    """Records what happens, in order. Before the search each device that cannot serve a request is refused once;
    during the search a device is refused whenever it is tried in vain.
    """

    view: NodeView | None = None
    """The node of the search."""
    skipped: list[PoolView] = field(default_factory=list)
    """Pools that are incomplete or invalid and offer nothing."""
    wanted: list[tuple[Slot, int, tuple[int, ...]]] = field(default_factory=list)
    """For each request the number of devices that it needs, and the candidates."""
    refusals: list[DeviceRefusal] = field(default_factory=list)
    picked: list[tuple[Slot, int]] = field(default_factory=list)
    """Devices that passed all checks and were taken for a time, also if the rest of the search failed."""
