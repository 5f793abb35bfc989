# SPDX-License-Identifier: Apache-2.0
"""The proof of a plan: every step is decided by the allocator and by the filters of the scheduler.

A step evicts a pod, and its controller makes it again. The pod is then placed by the rules of the scheduler, on the
node that the plan says, while a guard keeps the places free that later steps need. The pod may get other devices of the
node than the search chose: the proof continues with the devices that the allocator gives. In the end each unit of
demand must fit at its place, and no pod is left without a node.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from ...kube.resource import DeviceTaint, ResourceClaim, TaintEffect
from ..allocator import Cluster, Features, allocate
from ..pods import Attempt, Pod, Snapshot
from .build import Space, Tenant, Unit
from .search import Draft
from .space import NodeUse, RepackSite

GUARD_TAINT = "repack.gpu.nvidia.com/kept-free"
"""The key of the taints of a guard, and of the label of the objects that it makes or changes."""

Devices = frozenset[tuple[str, str, str]]
"""Driver, pool and name of devices."""


class GuardKind(Enum):
    """How places are kept free: by DeviceTaintRules for the devices, or by a cordon of the node."""

    TAINTS = "taint-rules"
    CORDON = "cordon"


@dataclass(frozen=True, slots=True)
class Guard:
    """Devices or nodes that are kept free during a step. A DeviceTaintRule taints each device; nodes are cordoned."""

    devices: Devices = frozenset()
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RepackStep:
    """A pod is evicted from a node, and the pod that its controller makes instead fits on `target`.

    `before` and `after` are the devices (driver, pool, name). `guard` is in place before the pod is evicted.
    """

    pod: Pod
    source: str
    target: str
    before: tuple[tuple[str, str, str], ...]
    after: tuple[tuple[str, str, str], ...]
    guard: Guard


@dataclass(frozen=True, slots=True)
class UnitPlacement:
    """The place of one unit of demand after the last step. `guard` keeps the places of later units free."""

    unit: int
    node: str
    devices: tuple[tuple[str, str, str], ...]
    guard: Guard


@dataclass(frozen=True, slots=True)
class RepackPlan:
    """Steps in their order, each proven, and the places of the units then."""

    steps: tuple[RepackStep, ...]
    placements: tuple[UnitPlacement, ...]
    claims_before: tuple[ResourceClaim, ...] = ()
    claims_after: tuple[ResourceClaim, ...] = ()
    """The claims that hold devices before the first step and after the last one, without those of the demand."""


@dataclass(eq=False)
class Prover:
    """Proves drafts in one cluster. `units` are the units of demand, and `guard` is how places are kept free."""

    space: Space
    units: Sequence[Unit]
    guard: GuardKind
    refusals: dict[str, None] = field(default_factory=dict)
    """Why drafts were refused: texts of the scheduler, each once."""

    def proven(self, draft: Draft) -> RepackPlan | None:
        """The plan, or None if a step is refused. The reason is added to `refusals`."""
        state = _State(self._snapshot, dict(self._parts), self.space.features)
        steps: list[RepackStep] = []
        for index, move in enumerate(draft.moves):
            tenant = self.space.tenants[move.resident.number]
            assert tenant.pod is not None
            guard = self._guard(draft, index)
            given = state.move(tenant, move.target.name, guard)
            if isinstance(given, str):
                self.refusals[given] = None
                return None
            before = _devices(state.held_before)
            steps.append(RepackStep(tenant.pod, move.source.name, move.target.name, before, _devices(given), guard))
        moved = state.claims
        placements = []
        for number, (unit, target) in enumerate(zip(self.units, draft.targets, strict=True)):
            guard = self._guard(draft, len(draft.moves), number + 1)
            given = state.place(unit, number, target.site.name, guard)
            if isinstance(given, str):
                self.refusals[given] = None
                return None
            placements.append(UnitPlacement(number, target.site.name, _devices(given), guard))
        return RepackPlan(tuple(steps), tuple(placements), self.space.snapshot.cluster.allocated, moved)

    @cached_property
    def _snapshot(self) -> Snapshot:
        """The pods and nodes. The devices of each node are apart, so that no step looks at those of other nodes."""
        snapshot = self.space.snapshot
        return snapshot.with_cluster(Cluster(classes=snapshot.cluster.classes, nodes=snapshot.cluster.nodes))

    @cached_property
    def _parts(self) -> Mapping[str, Cluster]:
        """The devices and the claims of each node."""
        cluster, idle = self.space.snapshot.cluster, self.space.idle
        slices, claims, owner = defaultdict(list), defaultdict(list), {}
        for slice_ in idle.slices:
            slices[slice_.node_name].append(slice_)
            owner[slice_.driver, slice_.pool.name] = slice_.node_name
        for claim in cluster.allocated:
            results = claim.allocation.results if claim.allocation is not None else ()
            for node in {owner.get((result.driver, result.pool)) for result in results}:
                claims[node].append(claim)
        return {
            node.name: Cluster(tuple(slices[node.name]), cluster.classes, (node,), tuple(claims[node.name]))
            for node in cluster.nodes
        }

    def _guard(self, draft: Draft, step: int, unit: int = 0) -> Guard:
        """What is kept free during a step: the places of the units from `unit` on, and those of later moves. After the
        last step, one unit after the other gets its place.
        """
        kept = [(target.site, target.use) for target in draft.targets[unit:]]
        kept += [(move.target, move.use) for move in draft.moves[step + 1 :]]
        if self.guard is GuardKind.TAINTS:
            return Guard(devices=frozenset(device for site, use in kept for device in self._overlapping(site, use)))
        here = draft.moves[step].target if step < len(draft.moves) else draft.targets[unit - 1].site
        return Guard(nodes=frozenset(site.name for site, _ in kept) - {here.name})

    def _overlapping(self, site: RepackSite, use: NodeUse) -> Iterable[tuple[str, str, str]]:
        """The devices of the node that cannot be used beside those of the use."""
        sets = site.shape.sets
        touched = {number for device in use.devices for number in sets[device]}
        for index, own in enumerate(sets):
            if not touched.isdisjoint(own) and site.conflict(use, NodeUse((index,))):
                pool, device = self.space.device(site, index)
                yield (*pool, device.name)


def _devices(claims: Iterable[ResourceClaim]) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (result.driver, result.pool, result.device)
        for claim in claims
        for result in (claim.allocation.results if claim.allocation is not None else ())
        if not result.admin_access
    )


@dataclass(eq=False)
class _State:
    """The cluster between two steps."""

    snapshot: Snapshot
    parts: dict[str, Cluster]
    features: Features

    def __post_init__(self) -> None:
        self._again: dict[str, tuple[Pod, tuple[ResourceClaim, ...]]] = {}
        self.held_before: tuple[ResourceClaim, ...] = ()
        """The claims of the pod that was moved last, before it was moved."""

    @property
    def claims(self) -> tuple[ResourceClaim, ...]:
        """The claims that hold devices, each once."""
        every = (claim for part in self.parts.values() for claim in part.allocated)
        return tuple({id(claim): claim for claim in every}.values())

    def move(self, tenant: Tenant, target: str, guard: Guard) -> tuple[ResourceClaim, ...] | str:
        """Evicts the pod, and places it again on the node. Returns its claims then, or the scheduler's refusal."""
        assert tenant.pod is not None
        assert tenant.unit.pod is not None
        there, held = self._again.get(tenant.pod.uid, (tenant.pod, tenant.claims))
        self.held_before = held
        self._release(there.node_name, held)
        self.snapshot = self.snapshot.without(there)
        given = self._placed(tenant.unit.pod, tenant.unit.claims, target, guard)
        if not isinstance(given, str):
            placed = next(pod for pod in reversed(self.snapshot.pods) if pod.uid == tenant.unit.pod.uid)
            self._again[tenant.pod.uid] = (placed, given)
        return given

    def place(self, unit: Unit, number: int, target: str, guard: Guard) -> tuple[ResourceClaim, ...] | str:
        """Places a unit of demand on the node."""
        if unit.pod is not None:
            pod = replace(unit.pod, name=f"{unit.pod.name}-{number}", uid=f"demand-{number}")
            return self._placed(pod, unit.claims, target, guard)
        outcome = allocate(_tainted(self.parts[target], guard), unit.claims, target, self.features)
        if outcome.kind != "allocated":
            return outcome.reason or "cannot allocate all claims"
        pairs = zip(unit.claims, outcome.allocations, strict=True)
        given = tuple(replace(claim, allocation=allocation) for claim, allocation in pairs)
        self._take(target, given)
        return given

    def _placed(
        self, pod: Pod, claims: Sequence[ResourceClaim], target: str, guard: Guard
    ) -> tuple[ResourceClaim, ...] | str:
        if target in guard.nodes:
            return f"node {target} is cordoned then"
        part = _tainted(self.parts[target], guard)
        attempt = Attempt(pod, self.snapshot.with_cluster(part), self.features, claims)
        if attempt.refusal is not None:
            return attempt.refusal.message
        site = attempt.snapshot.sites[target]
        refusal = attempt.refuses(site)
        problem = refusal.message if refusal is not None else attempt.binding_error(target)
        if problem:
            return f"{pod} on {target}: {problem}"
        given = tuple(
            replace(given_claim.claim, allocation=given_claim.allocation) for given_claim in attempt.gives(target)
        )
        self._take(target, given)
        self.snapshot = self.snapshot.placed(attempt.placed(target), target, self.snapshot.cluster)
        return given

    def _take(self, node: str, claims: Sequence[ResourceClaim]) -> None:
        self.parts[node] = self.parts[node].after(claims)

    def _release(self, node: str, claims: Sequence[ResourceClaim]) -> None:
        self.parts[node] = self.parts[node].after(released=claims)


def _tainted(part: Cluster, guard: Guard) -> Cluster:
    """The devices of a node, those of the guard with a taint."""
    taint = DeviceTaint(GUARD_TAINT, TaintEffect.NO_SCHEDULE)
    pools = {(driver, pool) for driver, pool, _ in guard.devices}
    if not any((slice_.driver, slice_.pool.name) in pools for slice_ in part.slices):
        return part
    slices = tuple(
        replace(
            slice_,
            devices=tuple(
                replace(device, taints=(*device.taints, taint))
                if (slice_.driver, slice_.pool.name, device.name) in guard.devices
                else device
                for device in slice_.devices
            ),
        )
        for slice_ in part.slices
    )
    return replace(part, slices=slices)
