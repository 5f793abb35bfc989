# SPDX-License-Identifier: Apache-2.0
"""One attempt to schedule a pod: every filter in the scheduler's order, and each node's answer.

The order is that of the default profile of kube-scheduler 1.36. A pod that no node can take is followed up by
`preemption`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from ...kube.resource import ResourceClaim
from ..allocator import Features
from .devices import Devices, Given
from .node_filters import Resources, affinity, declared_features, named, only_nodes, ports, tainted, unschedulable
from .node_resources import ClaimUse
from .objects import Pod
from .outcome import (
    NARROWED,
    NO_NODES,
    Code,
    Filter,
    Prepared,
    Refusal,
    counted,
    event_text,
    none_available,
)
from .preemption import Preemption, preempt
from .snapshot import Site, Snapshot
from .topology import between_pods, spread
from .volumes import attach_limits, binding, restrictions, zones

_NEVER_PREPARED: Final = "not found"
"""What PostFilter says when DynamicResources had no turn before the pod was refused."""


@dataclass(frozen=True, slots=True)
class AfterFilters:
    """What PostFilter does for a pod that no node can take."""

    devices: str
    """What DynamicResources says."""
    preemption: Preemption | None
    """None when preemption is not tried."""

    @property
    def message(self) -> str:
        """The combined message. Empty if preemption goes ahead."""
        if self.preemption is None:
            return self.devices
        if self.preemption.failed:
            return f"preemption: {self.preemption.message}"
        return f"{self.devices}, preemption: {self.preemption.message}" if self.preemption.message else ""


@dataclass(frozen=True, eq=False)
class Attempt:
    """What the scheduler answers for `pod` in a cluster, of whose pods it is not one."""

    pod: Pod
    snapshot: Snapshot
    features: Features = field(default_factory=Features)
    claims: Sequence[ResourceClaim] | None = None
    """The pod's claims, when they are not those that the snapshot has under the names of the pod's references."""

    @cached_property
    def gates(self) -> tuple[Refusal, ...]:
        """What keeps the pod out of the scheduling queue."""
        found = []
        if self.pod.gates:
            waiting = f"waiting for scheduling gates: [{' '.join(self.pod.gates)}]"
            found.append(Refusal("SchedulingGates", (waiting,)))
        if self.devices.waits is not None:
            found.append(self.devices.waits)
        return tuple(found)

    @cached_property
    def _prepared(self) -> tuple[Filter, ...] | Refusal:
        """The filters in the scheduler's order, or why the pod is refused at once."""
        filters: list[Filter] = []
        for prepare in (
            *(unschedulable, named, tainted, affinity, ports),
            lambda *_: self.resources.refuses,
            *(restrictions, attach_limits, binding, zones),
            lambda pod, snapshot: spread(pod, snapshot, self.features),
            between_pods,
            lambda *_: self.devices.prepared,
            declared_features,
        ):
            prepared: Prepared = prepare(self.pod, self.snapshot)
            if isinstance(prepared, Refusal):
                return prepared
            if prepared is not None:
                filters.append(prepared)
        return tuple(filters)

    @cached_property
    def resources(self) -> Resources:
        """The filter that compares the pod's resources with those of a node."""
        return Resources(self.pod, self.snapshot.served)

    @cached_property
    def devices(self) -> Devices:
        """The filter that decides devices."""
        return Devices(self.pod, self.snapshot, self.features, self.claims)

    @property
    def refusal(self) -> Refusal | None:
        """Why the pod is refused before any node is looked at."""
        return self._prepared if isinstance(self._prepared, Refusal) else None

    @property
    def only_nodes(self) -> frozenset[str] | None:
        """The only nodes that are looked at; None for all. There may be names of no node."""
        return None if self.refusal is not None else only_nodes(self.pod)

    @cached_property
    def refusals(self) -> Mapping[str, Refusal | None]:
        """Each node's answer by its name, None where the pod fits. Empty when the pod is refused at once."""
        if self.refusal is not None:
            return {}
        names = self.only_nodes
        return {
            name: self.refuses(site) if names is None or name in names else NARROWED
            for name, site in self.snapshot.sites.items()
        }

    def refuses(self, site: Site) -> Refusal | None:
        """Why the node refuses the pod, as it is or after pods nominated for it (with no lower priority) are placed."""
        waiting = self.snapshot.nominated.get(site.node.name)
        if waiting:
            others = [one for one in waiting if one.priority >= self.pod.priority and one.uid != self.pod.uid]
            refusal = self._first_refusal(site.with_pods(others)) if others else None
            if refusal is not None:
                return refusal
        return self._first_refusal(site)

    def _first_refusal(self, site: Site) -> Refusal | None:
        for refuses in () if isinstance(self._prepared, Refusal) else self._prepared:
            refusal = refuses(site)
            if refusal is not None:
                return refusal
        return None

    @property
    def fits(self) -> tuple[str, ...]:
        """The nodes that the pod fits on, sorted."""
        return tuple(sorted(name for name, refusal in self.refusals.items() if refusal is None))

    @property
    def errors(self) -> frozenset[str]:
        """The errors that end the attempt, even if other nodes accept the pod."""
        refusals = (self.refusal, *self.refusals.values())
        return frozenset(one.message for one in refusals if one is not None and one.code is Code.ERROR)

    def gives(self, node: str) -> tuple[Given, ...]:
        """The devices that the pod's claims would get on a node that it fits on."""
        return self.devices.gives(self.snapshot.sites[node])

    def placed(self, node: str) -> Pod:
        """The pod as it is counted on a node that it fits on: with what its devices take of the node's resources."""
        uses = self.uses(node)
        return replace(self.pod, amounts=self.devices.amounts(uses)) if uses else self.pod

    def uses(self, node: str) -> list[ClaimUse]:
        """What the pod's claims would take of the resources of a node that it fits on."""
        return self.devices.uses(self.snapshot.sites[node])

    def binding_error(self, node: str) -> str:
        """Why binding fails on a node that the pod fits on. Empty if binding succeeds."""
        return self.devices.binding_error(self.snapshot.sites[node])

    @property
    def fit_error(self) -> str:
        """The reasons of all nodes counted together."""
        count = len(self.snapshot.nodes)
        if not count:
            return NO_NODES
        if self.refusal is not None:
            return none_available(count, self.refusal.message)
        reasons = counted(reason for one in self.refusals.values() if one for reason in one.reasons)
        return none_available(count, reasons)

    @cached_property
    def after(self) -> AfterFilters | None:
        """What PostFilter does; None when a node can take the pod, there is an error, or there are no nodes."""
        if self.fits or self.errors or not self.snapshot.nodes:
            return None
        if self.refusal is not None and self.refusal is not self.devices.refusal:
            return AfterFilters(_NEVER_PREPARED, None)
        preemption = preempt(self.pod, self.snapshot, self.refusals, self.refuses)
        return AfterFilters(self.devices.after(self.refusals), preemption)

    @property
    def event(self) -> str:
        """The text of the FailedScheduling event; empty when none is written, or when errors compete."""
        if self.errors:
            return next(iter(self.errors)) if len(self.errors) == 1 else ""
        if self.fits:
            return ""
        return event_text(self.fit_error, self.after.message if self.after is not None else "")
