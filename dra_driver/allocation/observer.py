# SPDX-License-Identifier: Apache-2.0
"""What a search tells whoever wants to explain it: which check removed which device from which request.

The allocator reports facts and keeps none. Without an observer nothing is reported and nothing costs.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..resource import DeviceTaint, ResourceClaim
from .capacity import CapacityRefusal
from .pools import CounterKey, PoolView
from .selectors import Unmet
from .survey import NodeView


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


Detail = tuple[ResourceClaim, ...] | Unmet | CapacityRefusal | tuple[CounterKey, ...] | DeviceTaint | int | None


@dataclass(frozen=True, slots=True)
class Slot:
    """The request that a device is tried for: index of a pending claim, and `request` or `request/alternative`."""

    claim: int
    request: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A device (index in the NodeView) that `check` removed. `keeps_counters`: a 1.36 defect, see Quirks."""

    slot: Slot
    device: int
    check: Check
    detail: Detail = None
    keeps_counters: bool = False


class Observer(Protocol):
    """Hears what happens, in order. Before the search each device that cannot serve a request is refused once;
    during the search a device is refused whenever it is tried in vain."""

    def starts(self, view: NodeView) -> None:
        """The search on a node begins."""

    def skips(self, pool: PoolView) -> None:
        """A pool is incomplete or invalid and offers nothing."""

    def wants(self, slot: Slot, count: int, candidates: Sequence[int]) -> None:
        """A request needs `count` of the candidates."""

    def refuses(self, refusal: Refusal) -> None:
        """A check removes a device."""

    def picks(self, slot: Slot, device: int) -> None:
        """A device passed all checks and is taken for now."""

    def undoes(self, slot: Slot, device: int) -> None:
        """The last pick is undone because the rest of the search failed."""


@dataclass(slots=True)
class Recorder:
    """An observer that records all events, in order."""

    view: NodeView | None = None
    skipped: list[PoolView] = field(default_factory=list)
    wanted: list[tuple[Slot, int, tuple[int, ...]]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    picked: list[tuple[Slot, int]] = field(default_factory=list)
    undone: list[tuple[Slot, int]] = field(default_factory=list)

    def starts(self, view: NodeView) -> None:
        self.view = view

    def skips(self, pool: PoolView) -> None:
        self.skipped.append(pool)

    def wants(self, slot: Slot, count: int, candidates: Sequence[int]) -> None:
        self.wanted.append((slot, count, tuple(candidates)))

    def refuses(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def picks(self, slot: Slot, device: int) -> None:
        self.picked.append((slot, device))

    def undoes(self, slot: Slot, device: int) -> None:
        self.undone.append((slot, device))
