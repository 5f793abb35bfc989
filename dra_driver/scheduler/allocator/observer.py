# SPDX-License-Identifier: Apache-2.0
"""Records of a search: which check removed which device from which request.

Without an observer, the search records nothing and takes no additional time.
"""

import enum
from dataclasses import dataclass, field

from ...kube.resource import DeviceTaint, ResourceClaim
from .capacity import CapacityRefusal
from .pools import CounterKey, PoolView
from .selectors import UnmetSelector
from .survey import NodeView

Detail = tuple[ResourceClaim, ...] | UnmetSelector | CapacityRefusal | tuple[CounterKey, ...] | DeviceTaint | int | None


class Check(enum.Enum):
    """The checks of a device, in their order. The comment is the `detail` of the refusal."""

    IN_USE = "in use"  # the claims that hold the device
    PICKED = "picked before"  # None
    BINDING_CONDITIONS = "binding conditions"  # None: the gate is off
    SELECTOR = "selector"  # UnmetSelector
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
    """Records refusals in their order.

    Before the search, each device that cannot serve a request is refused once. During the search, a device is refused
    each time that it is tried without success.
    """

    view: NodeView | None = None
    """The node of the search."""
    skipped: list[PoolView] = field(default_factory=list)
    """Pools without available devices, because they are incomplete or invalid."""
    wanted: list[tuple[Slot, int, tuple[int, ...]]] = field(default_factory=list)
    """For each request the number of devices that it needs, and the candidates."""
    refusals: list[DeviceRefusal] = field(default_factory=list)
    picked: list[tuple[Slot, int]] = field(default_factory=list)
    """Devices that passed all checks and were picked, even if the pick was undone later."""
