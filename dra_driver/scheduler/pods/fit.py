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
from .node_resources import NodeResourceUse
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
"""The message of PostFilter if the pod was refused before DynamicResources ran."""


@dataclass(frozen=True, slots=True)
class AfterFilters:
    """The actions of PostFilter for a pod that fits on no node."""

    devices: str
    """The message of DynamicResources."""
    preemption: Preemption | None
    """None if preemption is not tried."""

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
    """The answers of the scheduler for `pod` in a cluster that does not contain the pod yet."""

    pod: Pod
    snapshot: Snapshot
    features: Features = field(default_factory=Features)
    claims: Sequence[ResourceClaim] | None = None
    """The pod's claims. None stands for the claims of the snapshot that the pod references."""

    @cached_property
    def gates(self) -> tuple[Refusal, ...]:
        """The scheduling gates that keep the pod out of the scheduling queue."""
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
        """Why the pod is refused before any node is checked."""
        return self._prepared if isinstance(self._prepared, Refusal) else None

    @property
    def only_nodes(self) -> frozenset[str] | None:
        """The only nodes that are checked. None stands for all nodes. Some names may not be those of a node."""
        return None if self.refusal is not None else only_nodes(self.pod)

    @cached_property
    def refusals(self) -> Mapping[str, Refusal | None]:
        """The refusal of each node by its name, or None if the pod fits. Empty if the pod is refused at once."""
        if self.refusal is not None:
            return {}
        names = self.only_nodes
        return {
            name: self.refuses(site) if names is None or name in names else NARROWED
            for name, site in self.snapshot.sites.items()
        }

    def refuses(self, site: Site) -> Refusal | None:
        """Why the node refuses the pod, with or without the pods nominated for the node (with no lower priority)."""
        waiting = self.snapshot.nominated.get(site.node.name)
        if waiting:
            others = [pod for pod in waiting if pod.priority >= self.pod.priority and pod.uid != self.pod.uid]
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
        return frozenset(refusal.message for refusal in refusals if refusal is not None and refusal.code is Code.ERROR)

    def gives(self, node: str) -> tuple[Given, ...]:
        """The devices that the pod's claims would get on a node where the pod fits."""
        return self.devices.gives(self.snapshot.sites[node])

    def allocated(self, node: str) -> list[ResourceClaim]:
        """The claims that would be allocated for the pod on a node where it fits."""
        found = []
        for given in self.gives(node):
            name = f"{self.pod.name}-extended-resources" if given.special else given.claim.metadata.name
            metadata = replace(given.claim.metadata, name=name)
            found.append(replace(given.claim, metadata=metadata, allocation=given.allocation))
        return found

    def placed(self, node: str) -> Pod:
        """The pod on a node where it fits. Its requests include the resources that its devices take of the node."""
        uses = self.uses(node)
        return replace(self.pod, amounts=self.devices.amounts(uses)) if uses else self.pod

    def uses(self, node: str) -> list[NodeResourceUse]:
        """The resources that the pod's claims would take of a node where the pod fits."""
        return self.devices.uses(self.snapshot.sites[node])

    def binding_error(self, node: str) -> str:
        """Why binding fails on a node where the pod fits. Empty if binding succeeds."""
        return self.devices.binding_error(self.snapshot.sites[node])

    @property
    def fit_error(self) -> str:
        """The reasons of all nodes counted together."""
        count = len(self.snapshot.nodes)
        if not count:
            return NO_NODES
        if self.refusal is not None:
            return none_available(count, self.refusal.message)
        reasons = counted(reason for refusal in self.refusals.values() if refusal for reason in refusal.reasons)
        return none_available(count, reasons)

    @cached_property
    def after(self) -> AfterFilters | None:
        """The actions of PostFilter. None if the pod fits on a node, there is an error, or there are no nodes."""
        if self.fits or self.errors or not self.snapshot.nodes:
            return None
        if self.refusal is not None and self.refusal is not self.devices.refusal:
            return AfterFilters(_NEVER_PREPARED, None)
        preemption = preempt(self.pod, self.snapshot, self.refusals, self.refuses)
        return AfterFilters(self.devices.after(self.refusals), preemption)

    @property
    def event(self) -> str:
        """The text of the FailedScheduling event. Empty if there is no event, or if there are several errors."""
        if self.errors:
            return next(iter(self.errors)) if len(self.errors) == 1 else ""
        if self.fits:
            return ""
        return event_text(self.fit_error, self.after.message if self.after is not None else "")
