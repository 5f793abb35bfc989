# SPDX-License-Identifier: Apache-2.0
"""Whether one node holds several pods at once, with some devices or others.

All claims of the pods are allocated together, so every combination of devices and alternatives is tried. Rules that
concern other nodes are left out (`shapes.alone`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from ...kube.resource import AllocationResult, DeviceClaim, ResourceClaim, ResourceSlice
from ..allocator import Cluster, ErrorKind, Features, NodeOutcome, allocate
from ..allocator.outcome import ALLOCATED
from ..pods import Attempt, Pod, Site, Snapshot
from ..pods.devices import SPECIAL_CLAIM
from ..pods.node_filters import Resources
from .assignment import GangPlacement, devices_of
from .board import one_node
from .objects import ClaimKey, GangMember, claim_key
from .packing import Pattern
from .shapes import alone

_STEPS: Final = 20_000
"""The most steps of the search for devices on a node."""


class Parts:
    """The snapshots of single nodes. Devices that several nodes share are in each of them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._slices: dict[str | None, list[ResourceSlice]] = defaultdict(list)
        for slice_ in snapshot.cluster.slices:
            self._slices[slice_.node_name or None].append(slice_)
        self._holders: dict[tuple[str, str], list[ResourceClaim]] = defaultdict(list)
        for claim in snapshot.cluster.claims:
            for pool in {(driver, pool) for driver, pool, _ in devices_of(claim)}:
                self._holders[pool].append(claim)

    def of(self, name: str) -> Snapshot:
        """The snapshot of a node."""
        slices = (*self._slices[name], *self._slices[None])
        pools = dict.fromkeys((slice_.driver, slice_.pool.name) for slice_ in slices)
        claims = tuple({id(claim): claim for pool in pools for claim in self._holders[pool]}.values())
        cluster = self._snapshot.cluster
        return one_node(self._snapshot, name, Cluster(slices, cluster.classes, (cluster.node_by_name[name],), claims))


class NodeRoom:
    """A node, and units of pods that may be placed on it. The pods of a unit share claims."""

    def __init__(self, snapshot: Snapshot, units: Sequence[Sequence[GangMember]], features: Features) -> None:
        """`snapshot` is that of the node."""
        (self._site,) = snapshot.sites.values()
        self._snapshot = snapshot
        self._units = units
        self._features = features
        self._usable: dict[int, bool] = {}
        self._wanted: dict[int, list[tuple[int, ResourceClaim]]] = {}
        self._known: dict[Pattern, bool | None] = {}
        """Whether the node has the devices for so many units of each shape that wants devices."""

    def holds(self, pattern: Pattern) -> bool | None:
        """Whether the node holds `pattern[i]` units like the unit i. None if that is not known."""
        if any(count and not self._is_usable(shape) for shape, count in enumerate(pattern)):
            return False
        pods = [
            member.pod
            for unit, count in zip(self._units, pattern, strict=True)
            for _ in range(count)
            for member in unit
        ]
        if not self._has_resources(pods) or not self._accepts_pods(pods):
            return False
        wanting = tuple(count if self._claims(shape) else 0 for shape, count in enumerate(pattern))
        if wanting not in self._known:
            claims = (
                claim for shape, count in enumerate(wanting) for _ in range(count) for _, claim in self._claims(shape)
            )
            found = self._allocated(_numbered(claims))
            self._known[wanting] = None if found is None else found is not False
        return self._known[wanting]

    def place_all(self) -> list[GangPlacement] | None:
        """One of each unit with its devices. None if the node does not hold them all."""
        wanted = [(shape, index, claim) for shape in range(len(self._units)) for index, claim in self._claims(shape)]
        found = self._allocated([claim for _, _, claim in wanted])
        if not isinstance(found, tuple):
            return None
        given: dict[tuple[int, int], list[ResourceClaim]] = defaultdict(list)
        for (shape, index, claim), allocation in zip(wanted, found, strict=True):
            given[shape, index].append(replace(claim, allocation=allocation))
        return [
            GangPlacement(member, self._site.node.name, tuple(given[shape, index]))
            for shape, unit in enumerate(self._units)
            for index, member in enumerate(unit)
        ]

    def _claims(self, shape: int) -> list[tuple[int, ResourceClaim]]:
        """The claims to allocate for a unit, each once, with the index of the first pod that uses it."""
        if shape not in self._wanted:
            found: dict[ClaimKey, tuple[int, ResourceClaim]] = {}
            for index, member in enumerate(self._units[shape]):
                for claim in self._attempt(member).devices.to_allocate(self._site):
                    special = f"{SPECIAL_CLAIM}-{index}" if claim.metadata.name == SPECIAL_CLAIM else ""
                    found.setdefault((special, "") if special else claim_key(claim), (index, claim))
            self._wanted[shape] = list(found.values())
        return self._wanted[shape]

    def _is_usable(self, shape: int) -> bool:
        """Whether the node accepts each pod of a unit without the others."""
        if shape not in self._usable:
            self._usable[shape] = all(
                attempt.refusal is None and attempt.refuses(self._site) is None
                for attempt in (self._attempt(member) for member in self._units[shape])
            )
        return self._usable[shape]

    def _attempt(self, member: GangMember) -> Attempt:
        return Attempt(alone(member.pod), self._snapshot, self._features, member.claims)

    def _has_resources(self, pods: Sequence[Pod]) -> bool:
        """Whether the node has the resources that the pods request together."""
        total: dict[str, int] = {}
        for pod in pods:
            for name, amount in pod.amounts.items():
                total[name] = total.get(name, 0) + amount
        if len(self._site.pods) + len(pods) > self._site.node.allocatable.get("pods", 0):
            return False
        together = replace(pods[0], amounts=total)
        return not Resources(together, self._snapshot.served).shortages(self._site)

    def _accepts_pods(self, pods: Sequence[Pod]) -> bool:
        """Whether the rules about several pods on one node allow these pods."""
        if not any(pod.host_ports or pod.disks or pod.anti_affinity for pod in pods):
            return True
        there = self._snapshot
        for number, pod in enumerate(pods):
            bare = replace(alone(pod), claims=(), extended=(), uid=f"{pod.uid}-{number}")
            site: Site = there.sites[self._site.node.name]
            attempt = Attempt(bare, there, self._features, ())
            if attempt.refusal is not None or attempt.refuses(site) is not None:
                return False
            there = there.placed(bare, site.node.name, there.cluster)
        return True

    def _allocated(self, claims: Sequence[ResourceClaim]) -> tuple[AllocationResult, ...] | bool | None:
        """The allocation of each claim; False if there is none, and None if that is not known."""
        if not claims:
            return ()
        cheap = [_last_alternatives_first(claim) for claim in claims]
        outcome = self._outcome(cheap)
        if outcome.kind == ALLOCATED:
            return outcome.allocations
        if outcome.error_kind is not ErrorKind.SEARCH_LIMIT:
            return False
        outcome = self._outcome(cheap[::-1])  # another order may be faster
        if outcome.kind == ALLOCATED:
            return outcome.allocations[::-1]
        return None if outcome.error_kind is ErrorKind.SEARCH_LIMIT else False

    def _outcome(self, claims: Sequence[ResourceClaim]) -> NodeOutcome:
        return allocate(self._snapshot.cluster, claims, self._site.node.name, self._features, limit=_STEPS)


def _numbered(claims: Iterable[ResourceClaim]) -> list[ResourceClaim]:
    """The claims with different names."""
    return [
        replace(claim, metadata=replace(claim.metadata, name=f"{claim.metadata.name}-{number}"))
        for number, claim in enumerate(claims)
    ]


def _last_alternatives_first(claim: ResourceClaim) -> ResourceClaim:
    """The claim with the alternatives of each request in reverse: the last ones mostly ask for less.

    That changes which devices are found first, and not whether there are any.
    """
    if not any(request.first_available for request in claim.spec.requests):
        return claim
    requests = tuple(replace(request, first_available=request.first_available[::-1]) for request in claim.spec.requests)
    spec: DeviceClaim = replace(claim.spec, requests=requests)
    return replace(claim, spec=spec)
