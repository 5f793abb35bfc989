# SPDX-License-Identifier: Apache-2.0
"""Whether one node holds several pods at once, with some devices or others.

All claims of the pods are allocated together, so every combination of devices and alternatives is tried. Rules that
concern other nodes are left out (`shapes.alone`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...kube.resource import AllocationResult, DeviceClaim, ResourceClaim, ResourceSlice
from ..allocator import Cluster, ErrorKind, Features, allocate
from ..pods import Attempt, Pod, Site, Snapshot
from ..pods.devices import SPECIAL_CLAIM
from ..pods.node_filters import Resources
from .assignment import Placement, devices_of
from .board import one_node
from .objects import ClaimKey, Member, claim_key
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

    def __init__(self, snapshot: Snapshot, units: Sequence[Sequence[Member]], features: Features) -> None:
        """`snapshot` is that of the node."""
        (self._site,) = snapshot.sites.values()
        self._snapshot = snapshot
        self._units = units
        self._features = features
        self._usable: dict[int, bool] = {}

    def holds(self, pattern: Pattern) -> bool | None:
        """Whether the node holds `pattern[i]` units like the unit i. None if that is not known."""
        if any(count and not self._is_usable(shape) for shape, count in enumerate(pattern)):
            return False
        members = list(self._copies(pattern))
        if not self._has_resources([member.pod for member in members]) or not self._accepts_pods(members):
            return False
        found = self._allocations(members)
        return None if found is None else found is not False

    def place_all(self) -> list[Placement] | None:
        """One of each unit with its devices. None if the node does not hold them all."""
        members = [member for unit in self._units for member in unit]
        found = self._allocations(members)
        if not isinstance(found, dict):
            return None
        placements: list[Placement] = []
        given: set[ClaimKey] = set()
        for index, member in enumerate(members):
            wanted = self._wanted(index, member)
            own = {key: claim for key, claim in wanted.items() if key not in given}
            given.update(own)
            claims = tuple(replace(claim, allocation=found[key]) for key, claim in own.items())
            placements.append(Placement(member, self._site.node.name, claims))
        return placements

    def _copies(self, pattern: Pattern) -> Iterator[Member]:
        """The pods of the units, each unit with claims of its own."""
        for unit, count in zip(self._units, pattern, strict=True):
            for number in range(count):
                for member in unit:
                    claims = (
                        claim
                        if claim.allocation is not None
                        else replace(claim, metadata=replace(claim.metadata, name=f"{claim.metadata.name}-{number}"))
                        for claim in member.claims
                    )
                    yield Member(member.pod, tuple(claims))

    def _is_usable(self, shape: int) -> bool:
        """Whether the node accepts each pod of a unit without the others."""
        if shape not in self._usable:
            self._usable[shape] = all(
                attempt.refusal is None and attempt.refuses(self._site) is None
                for attempt in (self._attempt(member) for member in self._units[shape])
            )
        return self._usable[shape]

    def _attempt(self, member: Member) -> Attempt:
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

    def _accepts_pods(self, members: Sequence[Member]) -> bool:
        """Whether the rules about several pods on one node allow these pods."""
        if not any(member.pod.host_ports or member.pod.disks or member.pod.anti_affinity for member in members):
            return True
        there = self._snapshot
        for number, member in enumerate(members):
            pod = replace(alone(member.pod), claims=(), extended=(), uid=f"{member.pod.uid}-{number}")
            site: Site = there.sites[self._site.node.name]
            attempt = Attempt(pod, there, self._features, ())
            if attempt.refusal is not None or attempt.refuses(site) is not None:
                return False
            there = there.placed(pod, site.node.name, there.cluster)
        return True

    def _wanted(self, index: int, member: Member) -> Mapping[ClaimKey, ResourceClaim]:
        """The claims to allocate for a pod, by their names. The claim for extended resources gets a number."""
        found = {}
        for claim in self._attempt(member).devices.to_allocate(self._site):
            if claim.metadata.name == SPECIAL_CLAIM:
                name = f"{SPECIAL_CLAIM}-{index}"
                claim = replace(claim, metadata=replace(claim.metadata, name=name))
            found[claim_key(claim)] = claim
        return found

    def _allocations(self, members: Sequence[Member]) -> dict[ClaimKey, AllocationResult] | bool | None:
        """The allocation of each claim; False if there is none, and None if that is not known."""
        claims: dict[ClaimKey, ResourceClaim] = {}
        for index, member in enumerate(members):
            claims.update(self._wanted(index, member))
        if not claims:
            return {}
        limited = False
        for ordered in (list(claims.values()), list(reversed(claims.values()))):
            cheap = [_last_alternatives_first(claim) for claim in ordered]
            outcome = allocate(self._snapshot.cluster, cheap, self._site.node.name, self._features, limit=_STEPS)
            if outcome.kind == "allocated":
                return dict(zip(map(claim_key, ordered), outcome.allocations, strict=True))
            limited = outcome.error_kind is ErrorKind.SEARCH_LIMIT
            if not limited:
                break
        return None if limited else False


def _last_alternatives_first(claim: ResourceClaim) -> ResourceClaim:
    """The claim with the alternatives of each request in reverse: the last ones mostly ask for less.

    That changes which devices are found first, and not whether there are any.
    """
    requests = tuple(replace(request, first_available=request.first_available[::-1]) for request in claim.spec.requests)
    spec: DeviceClaim = replace(claim.spec, requests=requests)
    return replace(claim, spec=spec)
