# SPDX-License-Identifier: Apache-2.0
"""The counters, the pods and the places of a cluster, for the search.

Only devices that belong to one node take part. A device that several nodes reach is in use for good here: a pod that
holds it stays, and no pod is moved to it.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from ...errors import DriverError
from ...kube.resource import Device, ObjectMeta, ResourceClaim, ResourceSlice
from ...kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from ..allocator import Cluster, Features
from ..allocator.allocate import claim_reads
from ..allocator.pools import PoolView
from ..allocator.survey import NodeView
from ..pods import Attempt, ClusterNode, Pod, Snapshot
from ..pods import Site as PodSite
from ..pods.objects import ExtendedRequest, claim_for
from .placements import MOST_PLACEMENTS, placements
from .space import Amount, NodeShape, NodeUse, RepackSite, Resident

_HOSTNAME: Final = "kubernetes.io/hostname"
_SPECIAL: Final = "extended-resources"

Judge = Callable[[Pod], "Movability"]
"""What is known of a pod: whether it may be moved."""


@dataclass(frozen=True, slots=True)
class Movability:
    """Whether a pod may be moved. `cost` orders pods by the harm, least first. `stays` says why it must stay."""

    cost: tuple[int, ...] = ()
    stays: str = ""


@dataclass(frozen=True, eq=False)
class Unit:
    """A pod with its claims, or claims alone (`pod` is None), without a node and without devices."""

    pod: Pod | None
    claims: tuple[ResourceClaim, ...]

    @cached_property
    def key(self) -> Hashable:
        """Equal for units with equal needs."""
        specs = tuple(repr(claim.spec) for claim in self.claims)
        pod = self.pod
        if pod is None:
            return specs
        rules = (pod.affinity, pod.anti_affinity, pod.spread)
        among_pods = (pod.namespace, sorted(pod.labels.items())) if any(rules) else ()
        where = (pod.node_selector, pod.node_affinity, pod.tolerations, pod.features, pod.disks, pod.volumes)
        return (specs, repr((sorted(pod.amounts.items()), pod.extended, pod.host_ports, where, rules, among_pods)))


@dataclass(frozen=True, eq=False)
class Tenant:
    """What a Resident of the search stands for: a pod with the claims that were made for it, or a claim that is not
    made for one pod.
    """

    unit: Unit
    pod: Pod | None
    claims: tuple[ResourceClaim, ...]
    movability: Movability


@dataclass(eq=False)
class Space:
    """A cluster as the search sees it. `tenants` are known by the numbers of their Residents."""

    snapshot: Snapshot
    features: Features
    judge: Judge
    sites: list[RepackSite] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    """By the number of their kind."""
    is_complete: bool = True
    """Whether all places of all pods are tried."""

    def __post_init__(self) -> None:
        cluster = self.snapshot.cluster
        self.idle = Cluster(tuple(_local_slices(cluster)), cluster.classes, cluster.nodes)
        self._kinds: dict[Hashable, int] = {}
        self._nodes = {node.name: node for node in self.snapshot.nodes}
        self._resources = sorted({name for node in self.snapshot.nodes for name in node.allocatable})
        self._uses: dict[tuple[int, Hashable], Sequence[NodeUse]] = {}
        self._groups: dict[int, Mapping[str, str]] = {}
        self._filters: dict[int, Callable[[str], bool]] = {}
        self._shapes = self._shapes_of_nodes()
        for node in self.idle.nodes:
            shape, _ = self._shapes[node.name]
            self.sites.append(RepackSite(node.name, shape, self._totals(node.name), self._label(node.name)))
        self._settle()

    def kind(self, unit: Unit) -> int:
        """The number of the unit's kind."""
        number = self._kinds.setdefault(unit.key, len(self._kinds))
        if number == len(self.units):
            self.units.append(unit)
        return number

    def device(self, site: RepackSite, index: int) -> tuple[tuple[str, str], Device]:
        """The pool (driver and name) and the device of a use."""
        pool, device = self._view(site.name).device(index)
        return pool.key, device

    def uses(self, kind: int, site: RepackSite) -> Sequence[NodeUse]:
        """The places that a unit of the kind can have on the node, whatever is in use there."""
        unit = self.units[kind]
        if not self._is_eligible(kind, site.name):
            return ()
        key = (kind, (self._first_like(kind, site.name), self._label_of_resources(site.name)))
        if key not in self._uses:
            self._uses[key] = self._places(unit, site)
        return self._uses[key]

    def _places(self, unit: Unit, site: RepackSite) -> Sequence[NodeUse]:
        resources = self._amounts(unit.pod, site)
        special = self._special(unit, site.name)
        claims = (*unit.claims, *special)
        if not claims:
            return (NodeUse((), resources),)
        node = self.idle.node_by_name[site.name]
        found = placements(self.idle, node, claims, self.features)
        self.is_complete = self.is_complete and len(found) < MOST_PLACEMENTS
        _, capacities = self._shapes[site.name]
        uses = []
        for picks in found:
            shares: dict[int, int] = {}
            for option, devices in picks:
                for device in devices:
                    amounts = option.shares[device].amounts if device in option.shares else {}
                    for name, amount in amounts.items():
                        counter = capacities[device, name]
                        shares[counter] = shares.get(counter, 0) + amount.nanos
            every = tuple(device for _, devices in picks for device in devices)
            uses.append(NodeUse(every, (*shares.items(), *resources)))
        return tuple(dict.fromkeys(uses))

    def _special(self, unit: Unit, node: str) -> list[ResourceClaim]:
        """The claim that the scheduler makes for extended resources on the node."""
        requests: list[ExtendedRequest] = []
        if unit.pod is not None and node in self._nodes:
            here = self._nodes[node].allocatable
            served = self.snapshot.served
            requests = [
                request
                for request in unit.pod.extended
                if request.resource in served and not here.get(request.resource)
            ]
        if not requests or unit.pod is None:
            return []
        return [claim_for(requests, ObjectMeta(name=_SPECIAL, namespace=unit.pod.namespace), self.snapshot.served)]

    def _amounts(self, pod: Pod | None, site: RepackSite) -> tuple[Amount, ...]:
        """The resources that a pod takes of a node."""
        if pod is None:
            return ()
        base = len(site.shape.totals)
        here = self._nodes[site.name].allocatable
        wanted = {**pod.amounts, "pods": 1}
        served = self.snapshot.served
        return tuple(
            (base + index, wanted[name])
            for index, name in enumerate(self._resources)
            if wanted.get(name) and (here.get(name) or name not in served)
        )

    def _first_like(self, kind: int, node: str) -> str:
        """The first of the nodes whose devices are equal for the kind."""
        if kind not in self._groups:
            unit = self.units[kind]
            served = self.snapshot.served
            requests = [
                request for request in (unit.pod.extended if unit.pod is not None else ()) if request.resource in served
            ]
            special = [claim_for(requests, ObjectMeta(name=_SPECIAL), served)] if requests else []
            reads = claim_reads(self.idle, (*unit.claims, *special), self.features)
            groups = self.idle.equivalence(self.features).groups(reads)
            self._groups[kind] = {node.name: group[0].name for group in groups for node in group}
        return self._groups[kind][node]

    def _is_eligible(self, kind: int, node: str) -> bool:
        """Whether the filters that look only at the node accept the unit's pod."""
        pod = self.units[kind].pod
        if pod is None:
            return True
        if kind not in self._filters:
            alone = replace(
                pod,
                claims=(),
                extended=(),
                host_ports=(),
                volumes=(),
                disks=(),
                gates=(),
                affinity=(),
                anti_affinity=(),
                spread=(),
                amounts={},
                pod_level={},
            )
            empty = Snapshot(Cluster(nodes=self.idle.nodes), self.snapshot.nodes)
            attempt = Attempt(alone, empty, self.features)
            sites = {name: PodSite(found, (), {}) for name, found in self._nodes.items()}
            only = attempt.only_nodes

            def accepts(name: str) -> bool:
                if attempt.refusal is not None or (only is not None and name not in only):
                    return False
                return attempt.refuses(sites[name]) is None

            self._filters[kind] = accepts
        return self._filters[kind](node)

    def _view(self, node: str) -> NodeView:
        return self.idle.survey(self.features).view(self.idle.node_by_name[node])

    def _totals(self, node: str) -> list[int]:
        return [self._nodes[node].allocatable.get(name, 0) for name in self._resources]

    def _label(self, node: str) -> Hashable:
        return (*_identity(self._nodes[node]), self._label_of_resources(node))

    def _label_of_resources(self, node: str) -> Hashable:
        return tuple(self._totals(node))

    def _shapes_of_nodes(self) -> Mapping[str, tuple[NodeShape, Mapping[tuple[int, str], int]]]:
        """The shape of each node, and the counter of each capacity (device, name) of shared devices."""
        found: dict[str, tuple[NodeShape, Mapping[tuple[int, str], int]]] = {}
        nothing = claim_reads(self.idle, (), self.features)
        for group in self.idle.equivalence(self.features).groups(nothing):
            try:
                shape = _shape(self._view(group[0].name))
            except DriverError:  # a node selector that cannot be used: the nodes get no devices
                shape = _shape(NodeView(group[0], ()))
            found.update((node.name, shape) for node in group)
        return found

    def _settle(self) -> None:
        """Places the pods and the claims of the snapshot."""
        sites = {site.name: site for site in self.sites}
        owned: dict[str, list[ResourceClaim]] = defaultdict(list)
        for claim in self.snapshot.cluster.allocated:
            owner = next((reference for reference in claim.metadata.owner_references if reference.controller), None)
            if owner is not None and owner.kind == "Pod":
                owned[owner.uid].append(claim)
        held: set[int] = set()
        for site in self.sites:
            for pod in self.snapshot.sites[site.name].pods:
                claims = tuple(owned.get(pod.uid, ()))
                held.update(map(id, claims))
                self._settle_pod(pod, claims, site)
        places = {key: sites[name] for name, key in self._pools()}
        for claim in self.snapshot.cluster.allocated:
            if id(claim) not in held:
                users = ", ".join(user.name for user in claim.reserved_for)
                why = f"is not made for one pod{f', {users} uses it' if users else ''}"
                for site in {places[key] for key in _pools_of(claim) if key in places}:
                    unit = Unit(None, (_pending(claim),))
                    self._add(Tenant(unit, None, (claim,), Movability(stays=why)), self._held([claim], site), site)

    def _settle_pod(self, pod: Pod, claims: tuple[ResourceClaim, ...], site: RepackSite) -> None:
        unit = Unit(renewed(pod), tuple(_pending(claim) for claim in claims if not _is_special(claim)))
        movability = self.judge(pod)
        if not movability.stays and any(key not in self._local for claim in claims for key in _pools_of(claim)):
            movability = Movability(stays="it holds a device that several nodes reach")
        use = self._held(claims, site)
        self._add(
            Tenant(unit, pod, claims, movability), NodeUse(use.devices, (*use.amounts, *self._amounts(pod, site))), site
        )

    def _add(self, tenant: Tenant, use: NodeUse, site: RepackSite) -> None:
        cost = None if tenant.movability.stays else tenant.movability.cost
        site.add(Resident(len(self.tenants), self.kind(tenant.unit), site, use, cost))
        self.tenants.append(tenant)

    def _held(self, claims: Iterable[ResourceClaim], site: RepackSite) -> NodeUse:
        """The devices of the node that claims hold."""
        indexes = self._indexes(site.name)
        _, capacities = self._shapes[site.name]
        devices, shares = [], []
        for claim in claims:
            for result in claim.allocation.results if claim.allocation is not None else ():
                index = indexes.get((result.driver, result.pool, result.device))
                if index is None or result.admin_access:
                    continue
                devices.append(index)
                shares += [
                    (capacities[index, name], amount.nanos)
                    for name, amount in result.consumed_capacity.items()
                    if (index, name) in capacities
                ]
        return NodeUse(tuple(devices), tuple(shares))

    def _indexes(self, node: str) -> Mapping[tuple[str, str, str], int]:
        try:
            pools = self._view(node).pools
        except DriverError:
            return {}
        names = ((*pool.key, device.name) for pool in pools for device in pool.devices)
        return {name: index for index, name in enumerate(names)}

    @cached_property
    def _local(self) -> frozenset[tuple[str, str]]:
        return frozenset((slice_.driver, slice_.pool.name) for slice_ in self.idle.slices)

    def _pools(self) -> Iterator[tuple[str, tuple[str, str]]]:
        for slice_ in self.idle.slices:
            yield str(slice_.node_name), (slice_.driver, slice_.pool.name)


def renewed(pod: Pod) -> Pod:
    """The pod that its controller makes when this one is gone: without a node, and with claims of its own."""
    return replace(
        pod,
        uid=f"{pod.uid}-again",
        node_name="",
        nominated_node="",
        phase="Pending",
        deleted=False,
        preempted=False,
        started="",
        extended_claim="",
    )


def _pending(claim: ResourceClaim) -> ResourceClaim:
    return replace(claim, allocation=None, reserved_for=())


def _is_special(claim: ResourceClaim) -> bool:
    return claim.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true"


def _pools_of(claim: ResourceClaim) -> set[tuple[str, str]]:
    results = claim.allocation.results if claim.allocation is not None else ()
    return {(result.driver, result.pool) for result in results if not result.admin_access}


def _identity(node: ClusterNode) -> tuple[Hashable, ...]:
    labels = sorted((key, value) for key, value in node.labels.items() if key != _HOSTNAME)
    return (tuple(labels), node.taints, node.unschedulable, node.features)


def _local_slices(cluster: Cluster) -> Iterator[ResourceSlice]:
    """The slices of pools that belong to one node."""
    owners: dict[tuple[str, str], set[str | None]] = defaultdict(set)
    for slice_ in cluster.slices:
        owners[slice_.driver, slice_.pool.name].add(slice_.node_name or None)
    known = {node.name for node in cluster.nodes}
    for slice_ in cluster.slices:
        if owners[slice_.driver, slice_.pool.name] == {slice_.node_name} and slice_.node_name in known:
            yield slice_


def _consumed(pool: PoolView, device: Device) -> Iterator[tuple[str, str, int, int]]:
    """What a device takes of counters: the set, the counter, the amount and the total, in billionths. Nothing if the
    gate for counters is off: then nothing gets the device.
    """
    for consumption in device.consumes_counters:
        if consumption.counter_set in pool.counter_sets:
            totals = pool.counter_sets[consumption.counter_set].counters
            for name, amount in consumption.counters.items():
                yield consumption.counter_set, name, amount.nanos, totals[name].nanos


def _shape(view: NodeView) -> tuple[NodeShape, Mapping[tuple[int, str], int]]:
    counters: dict[Hashable, int] = {}
    totals: list[int] = []

    def counter(key: Hashable, total: int) -> int:
        if key not in counters:
            counters[key] = len(totals)
            totals.append(total)
        return counters[key]

    takes, sets, forms, whole = [], [], [], set()
    groups: dict[Hashable, int] = {}
    capacities: dict[tuple[int, str], int] = {}
    index = 0
    for number, pool in enumerate(view.pools):
        for device in pool.devices:
            taken: list[Amount] = []
            if device.allow_multiple_allocations:
                for name, capacity in device.capacity.items():
                    capacities[index, name] = counter((number, device.name, name), capacity.value.nanos)
            else:
                whole.add(index)
                taken.append((counter((number, device.name), 1), 1))
            own: dict[int, None] = {}
            form: list[Hashable] = [device.allow_multiple_allocations]
            for set_name, name, amount, total in _consumed(pool, device):
                own[groups.setdefault((number, set_name), len(groups))] = None
                taken.append((counter((number, set_name, name), total), amount))
                form.append((name, amount))
            if not own:
                own[groups.setdefault((number, device.name), len(groups))] = None
                form.append(repr(device.capacity))
            takes.append(tuple(taken))
            sets.append(tuple(own))
            forms.append(tuple(form))
            index += 1
    return NodeShape(tuple(totals), tuple(takes), tuple(sets), tuple(forms), frozenset(whole)), capacities
