# SPDX-License-Identifier: Apache-2.0
"""DynamicResources: the claims of a pod, and the claim that the scheduler makes for its extended resources.

`dra_driver.scheduler.allocator` decides which devices a node gives. Follows
`pkg/scheduler/framework/plugins/dynamicresources` of Kubernetes 1.36, a defect of 1.36.2 (`binding_error`) included.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ...errors import NodeSelectorError
from ...kube.resource import AllocationResult, DeviceClass, DeviceRequest, ObjectMeta, Quantity, ResourceClaim
from ...kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from ..allocator import Features, Outcomes, allocate_all
from ..allocator.nodes import selector_matches
from ..allocator.outcome import ALLOCATED, ERROR
from .node_resources import NodeResourcesError, NodeResourceUse, use_of
from .objects import Amounts, ClaimReference, ExtendedRequest, Pod, claim_for
from .outcome import Code, Prepared, Refusal
from .resources import add, amounts
from .snapshot import Site, Snapshot

PLUGIN: Final = "DynamicResources"
SPECIAL_CLAIM: Final = "<extended-resources>"
"""The name of the claim for extended resources before it is made."""
_CANNOT_ALLOCATE: Final = Refusal(PLUGIN, ("cannot allocate all claims",))
_STALE: Final = Refusal(PLUGIN, ("cannot schedule extended resource claim",))
_OPTIONAL_OPERATIONS: Final = "DRAOptionalNodeOperations"
_CANNOT_SKIP: Final = Refusal(PLUGIN, (f"node does not declare the feature {_OPTIONAL_OPERATIONS}",))
"""The text differs from that of the scheduler, which is not known."""
_ELSEWHERE: Final = Refusal(PLUGIN, ("resourceclaim not available on the node",))


@dataclass(frozen=True, slots=True)
class Given:
    """The allocation that a node would give to one claim. `requests` are those of a claim for extended resources."""

    claim: ResourceClaim
    allocation: AllocationResult
    special: bool = False

    @property
    def name(self) -> str:
        """The claim as messages name it."""
        return SPECIAL_CLAIM if self.special else str(self.claim.metadata)

    @property
    def requests(self) -> tuple[DeviceRequest, ...]:
        """The requests of the claim for extended resources; none for claims that exist."""
        return self.claim.spec.requests if self.special else ()


class Devices:
    """The pod's devices, decided once for equivalent nodes."""

    def __init__(
        self, pod: Pod, snapshot: Snapshot, features: Features, given: Sequence[ResourceClaim] | None = None
    ) -> None:
        """`given` are the pod's claims. None stands for the claims of the snapshot."""
        found = _claims_of(pod, snapshot) if given is None else given
        self.waits = found if isinstance(found, Refusal) else None
        """Why the pod has to wait for its claims."""
        self._claims = claims = [] if isinstance(found, Refusal) else list(found)
        self.refusal = self.waits or _unusable_claims(claims, snapshot)
        """Why the pod is refused before any node is checked."""
        self._pod = pod
        self._snapshot = snapshot
        self._features = features
        self._stale = _stale_claim(pod, snapshot)
        self._served = snapshot.served
        self._has_special = any(request.resource in self._served for request in pod.extended)
        self._pending = [claim for claim in claims if claim.allocation is None]
        self._held = [claim for claim in claims if claim.allocation is not None]
        self._failed = {id(claim) for claim in self._held if features.binding and _failed_to_bind(claim)}
        self._outcomes: dict[tuple[ExtendedRequest, ...] | None, tuple[tuple[ResourceClaim, ...], Outcomes]] = {}

    @property
    def _needed(self) -> bool:
        """Whether the pod has claims, or extended resources that DeviceClasses serve."""
        return bool(self._claims) or self._has_special

    @property
    def prepared(self) -> Prepared:
        """The filter, a refusal of the pod, or None if the pod needs no devices."""
        return self.refusal or (self._refuses if self._needed else None)

    def _refuses(self, site: Site) -> Refusal | None:
        if self._stale is not None:
            return _STALE if self._stale.spec.requests else None
        decided = self.decided(site)
        if decided is not None:
            name, outcomes = site.node.name, decided[1]
            if outcomes.kind(name) == ERROR:
                if not outcomes[name].fatal:
                    return Refusal(PLUGIN, (outcomes[name].reason,))
                return Refusal(PLUGIN, (f'running "{PLUGIN}" filter plugin: {outcomes[name].reason}',), Code.ERROR)
            if outcomes.kind(name) != ALLOCATED:
                return _CANNOT_ALLOCATE
        if self._held and any(self._elsewhere(site)):
            return _ELSEWHERE
        return self._without_operations(site) or self._without_resources(site)

    def _without_operations(self, site: Site) -> Refusal | None:
        """Refuses a node that does not declare that its kubelet can skip calls, if a device needs that."""
        if not self._features.optional_node_operations or _OPTIONAL_OPERATIONS in site.node.features:
            return None
        results = (result for given in self.gives(site) for result in given.allocation.results)
        return _CANNOT_SKIP if any(result.skip_node_operations for result in results) else None

    def _without_resources(self, site: Site) -> Refusal | None:
        """Refuses a node with too few resources for the pod and what its devices take."""
        if not self._takes_resources:
            return None
        for claim in self._held:
            others = [user for user in claim.reserved_for if user.uid != self._pod.uid]
            use = self._use(claim, claim.allocation)
            if use is not None and use.mapping and others:
                text = f"node allocatable resource claim {claim.metadata.name} has a mapped device"
                return Refusal(PLUGIN, (f"{text} and cannot be shared across pods",))
        try:
            uses = self.uses(site)
        except NodeResourcesError as error:
            return Refusal(PLUGIN, (f'running "{PLUGIN}" filter plugin: {error}',), Code.ERROR)
        taken = total_of(uses)
        for name, (whole, containers) in sorted(self._pod.pod_level.items()):
            if name in taken and containers + taken[name] > whole:
                text = f"pod level request for {name} is insufficient to cover the aggregated container and"
                return Refusal(PLUGIN, (f"{text} node-allocatable DRA requests",))
        return _too_few(site, self.amounts(uses), frozenset(taken))

    @property
    def _takes_resources(self) -> bool:
        return self._features.node_allocatable_resources and bool(self._snapshot.taking)

    def uses(self, site: Site) -> list[NodeResourceUse]:
        """The resources that the pod's claims take of a node that gives devices. Raises NodeResourcesError."""
        if not self._takes_resources:
            return []
        found = [self._use(claim, claim.allocation) for claim in self._held]
        found += [self._use(given.claim, given.allocation, special=given.special) for given in self.gives(site)]
        return [use for use in found if use is not None]

    def _use(
        self, claim: ResourceClaim, allocation: AllocationResult | None, *, special: bool = False
    ) -> NodeResourceUse | None:
        containers = (
            len({request.index for request in self._pod.extended}) if special else self._containers.get(id(claim), 0)
        )
        results = allocation.results if allocation is not None else ()
        return use_of(claim.metadata.name, containers, results, self._snapshot.taking)

    @cached_property
    def _containers(self) -> Mapping[int, int]:
        """The number of containers that use each claim, by the identity of the claim."""
        references = [
            reference for reference in self._pod.claims if reference.claim is not None or not reference.recorded
        ]
        pairs = zip(self._claims, references, strict=False)
        return {id(claim): reference.containers for claim, reference in pairs}

    def amounts(self, uses: Iterable[NodeResourceUse]) -> Amounts:
        """The requests of the pod and its devices. Resources of the pod as a whole include those of its devices."""
        taken = amounts(total_of(uses))
        total = dict(self._pod.amounts)
        for name, amount in taken.items():
            if name not in self._pod.pod_level:
                total[name] = total.get(name, 0) + amount
        return total

    def _elsewhere(self, site: Site) -> Iterator[ResourceClaim]:
        """The allocated claims that cannot be used on the node."""
        for claim in self._held:
            selector = claim.allocation.node_selector if claim.allocation is not None else None
            if id(claim) in self._failed or (selector is not None and not selector_matches(selector, site.node.node)):
                yield claim

    def gives(self, site: Site) -> tuple[Given, ...]:
        """The allocations that a node without refusals would give to the pending claims, in order."""
        decided = None if self._stale is not None else self.decided(site)
        if decided is None:
            return ()
        claims, outcomes = decided
        allocations = outcomes[site.node.name].allocations
        return tuple(
            Given(claim, allocation, special=index >= len(self._pending))
            for index, (claim, allocation) in enumerate(zip(claims, allocations, strict=True))
        )

    def binding_error(self, site: Site) -> str:
        """Why binding to a node without refusals fails. Empty if it succeeds.

        Kubernetes 1.36.2 makes a claim for extended resources although the node's device plugins have them all.
        """
        if self._stale is not None or not self._claims or self._special_requests(site) != ():
            return ""
        return (
            f'running PreBind plugin "{PLUGIN}": nil or empty request mappings, no update of pod {self._pod} '
            "ExtendedResourceClaimStatus"
        )

    def after(self, refusals: Mapping[str, Refusal | None]) -> str:
        """The actions and the message of PostFilter when no node fits."""
        if self.refusal is not None or not self._needed:
            return "no new claims to deallocate"
        unusable = [self._snapshot.sites[name] for name, refusal in refusals.items() if refusal is _ELSEWHERE]
        for claim in (claim for site in unusable for claim in self._elsewhere(site)):
            users = claim.reserved_for
            if not users or (len(users) == 1 and users[0].uid == self._pod.uid):
                return "deallocation of ResourceClaim completed"
        return "still not schedulable" if self._stale is None else "deletion of ResourceClaim completed"

    def _special_requests(self, site: Site) -> tuple[ExtendedRequest, ...] | None:
        """The requests that DeviceClasses serve on the node. None if no claim is made for them."""
        if not self._has_special:
            return None
        allocatable = site.node.allocatable
        here = tuple(
            request
            for request in self._pod.extended
            if request.resource in self._served and not allocatable.get(request.resource)
        )
        return here if here or self._claims else None

    def decided(self, site: Site) -> tuple[tuple[ResourceClaim, ...], Outcomes] | None:
        """The claims to allocate on the node, and the outcomes of equivalent nodes. None if there are no claims."""
        special = self._special_requests(site)
        if special is None and not self._pending:
            return None
        if special not in self._outcomes:
            claims = self.to_allocate(site)
            outcomes = allocate_all(self._snapshot.cluster, claims, self._features)
            self._outcomes[special] = (claims, outcomes)
        return self._outcomes[special]

    def to_allocate(self, site: Site) -> tuple[ResourceClaim, ...]:
        """The claims to allocate on the node: the pending ones, and last the one for extended resources, if any."""
        special = self._special_requests(site)
        if special is None:
            return tuple(self._pending)
        metadata = ObjectMeta(name=SPECIAL_CLAIM, namespace=self._pod.namespace)
        return (*self._pending, claim_for(special, metadata, self._served))


def _failed_to_bind(claim: ResourceClaim) -> bool:
    """Whether a driver reports that a device of the claim cannot be bound.

    The scheduler stops at the first device that is not ready. It also gives up claims that are not ready for too long,
    which depends on the time and is left out.
    """
    true = {(status.driver, status.pool, status.device): status.conditions for status in claim.device_statuses}
    for result in claim.allocation.results if claim.allocation is not None else ():
        if not result.binding_conditions:
            continue
        conditions = true.get((result.driver, result.pool, result.device))
        if conditions is not None and not conditions.isdisjoint(result.binding_failure_conditions):
            return True
        if conditions is None or not conditions.issuperset(result.binding_conditions):
            return False
    return False


def total_of(uses: Iterable[NodeResourceUse]) -> dict[str, Quantity]:
    """The sum of the resources that claims take."""
    total: dict[str, Quantity] = {}
    for use in uses:
        add(total, use.total)
    return total


def _too_few(site: Site, wanted: Amounts, names: frozenset[str]) -> Refusal | None:
    allocatable, used = site.node.allocatable, site.used
    lacking = [name for name in sorted(names) if wanted.get(name, 0) > allocatable.get(name, 0) - used.get(name, 0)]
    if not lacking:
        return None
    is_final = any(wanted[name] > allocatable.get(name, 0) for name in lacking)
    code = Code.UNRESOLVABLE if is_final else Code.UNSCHEDULABLE
    return Refusal(PLUGIN, tuple(f"Insufficient {name}" for name in lacking), code)


def _unusable_claims(claims: Iterable[ResourceClaim], snapshot: Snapshot) -> Refusal | None:
    classes = snapshot.cluster.class_by_name
    for claim in claims:
        try:
            if claim.allocation is not None and claim.allocation.node_selector is not None:
                for node in snapshot.nodes[:1]:
                    selector_matches(claim.allocation.node_selector, node.node)
        except NodeSelectorError as error:
            return Refusal(PLUGIN, (str(error),), Code.ERROR)
        problem = "" if claim.allocation is not None else _missing_class(claim, classes)
        if problem:
            return Refusal(PLUGIN, (problem,))
    return None


def _claims_of(pod: Pod, snapshot: Snapshot) -> list[ResourceClaim] | Refusal:
    """The pod's claims in order, or why the pod has to wait for them."""
    by_name = {(claim.metadata.namespace or "default", claim.metadata.name): claim for claim in snapshot.cluster.claims}
    found = []
    for reference in pod.claims:
        if not reference.recorded:
            return Refusal(PLUGIN, (f'pod "{pod}": ResourceClaim not created yet',))
        if reference.claim is None:
            continue
        claim = by_name.get((pod.namespace, reference.claim))
        problem = _unusable(pod, reference, claim)
        if problem:
            return Refusal(PLUGIN, (problem,))
        assert claim is not None
        found.append(claim)
    return found


def _unusable(pod: Pod, reference: ClaimReference, claim: ResourceClaim | None) -> str:
    if claim is None:
        return f'could not find ResourceClaim "{pod.namespace}/{reference.claim}"'
    if claim.metadata.deletion_timestamp:
        return f'resourceclaim "{claim.metadata.name}" is being deleted'
    if reference.from_template and not _is_made_for(pod, claim):
        return f"ResourceClaim {pod.namespace}/{claim.metadata.name} was not created for Pod {pod} (Pod is not owner)"
    return ""


def _is_made_for(pod: Pod, claim: ResourceClaim) -> bool:
    """Whether a claim was made from a template for the pod, or for its PodGroup."""
    owners = [owner for owner in claim.metadata.owner_references if owner.controller]
    of_group = pod.group and any((owner.kind, owner.name) == ("PodGroup", pod.group) for owner in owners)
    return bool(of_group) or any(owner.uid == pod.uid for owner in owners)


def _missing_class(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> str:
    for name, required in claim.spec.requirements:
        if required.device_class_name not in classes:
            return f"request {name}: device class {required.device_class_name} does not exist"
    return ""


def _stale_claim(pod: Pod, snapshot: Snapshot) -> ResourceClaim | None:
    if not any(request.resource in snapshot.served for request in pod.extended):
        return None
    for claim in snapshot.cluster.claims:
        if claim.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true" and any(
            owner.controller and owner.name == pod.name and owner.uid == pod.uid
            for owner in claim.metadata.owner_references
        ):
            return claim
    return None
