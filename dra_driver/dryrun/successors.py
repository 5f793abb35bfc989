# SPDX-License-Identifier: Apache-2.0
"""Places pods after evictions: pending pods and the pods that controllers make again, one after the other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..kube.resource import AllocatedDevice, ResourceClaim
from ..scheduler.allocator import Features
from ..scheduler.pods import Attempt, Pod, Snapshot
from ..scheduler.pods.evictions import claim_names
from .selection import OpenLabels, opened

Progress = Callable[[int, int], None]
"""Called with the number of pods that are placed, and of all pods."""
ClaimKey = tuple[str, str]
"""Namespace and name of a claim."""


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where a pod would go: the first node that fits, the number of others, and its devices. Without a node, `reason`
    is the text of the scheduler. `preempts` are pods of lower priority that would be removed from `node`.
    """

    node: str = ""
    others: int = 0
    results: tuple[AllocatedDevice, ...] = ()
    reason: str = ""
    preempts: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices, each as POOL/DEVICE."""
        return tuple(map(device_text, self.results))

    @property
    def fits(self) -> bool:
        """Whether a node takes the pod, without others having to leave."""
        return bool(self.node) and not self.preempts


class Placing:
    """Places pods in their order. The devices of a placed pod are in use for later pods."""

    def __init__(
        self,
        snapshot: Snapshot,
        features: Features,
        labels: OpenLabels,
        tell: Progress = lambda *_: None,
        total: int = 0,
        done: int = 0,
    ) -> None:
        """`tell` is called with the number of placed pods, beginning with `done`, and with `total`."""
        self._snapshot, self._features, self._labels = snapshot, features, labels
        self._tell, self._total, self._done = tell, total, done
        self._allocated: dict[ClaimKey, ResourceClaim] = {}
        self._stored = {_name(claim): claim for claim in snapshot.cluster.claims}
        self._nowhere: dict[tuple[str, ...], PodPlace] = {}
        """The pods that fit nowhere, by what equal pods have in common. Others that are placed take only from them."""

    def place(self, pod: Pod, claims: Sequence[ResourceClaim] | None = None, *, holds: bool = True) -> PodPlace:
        """Where the pod goes. `claims` are None for the claims of the snapshot. A pod that does not hold takes nothing
        from later pods.
        """
        self._done += 1
        self._tell(self._done, self._total)
        kind = _equal_pods(pod, self._claims_of(pod) if claims is None else claims)
        if kind is not None and kind in self._nowhere:
            return self._nowhere[kind]
        if claims is not None:
            claims = [self._allocated.get(_name(claim), claim) for claim in claims]
        there = opened(pod, self._snapshot, self._labels)
        attempt = Attempt(pod, there.snapshot, self._features, claims)
        fitting = attempt.fits if not attempt.gates and not attempt.errors else ()
        if not fitting:
            place = _nowhere(attempt)
            if kind is not None:
                self._nowhere[kind] = place
            return place
        node = fitting[0]
        given = attempt.allocated(node)
        held = [claim for claim in claims or () if claim.allocation is not None]
        if holds:
            self._hold(pod, attempt, node, given)
        return PodPlace(
            node, len(fitting) - 1, tuple(result for claim in (*held, *given) for result in results_of(claim))
        )

    def _claims_of(self, pod: Pod) -> list[ResourceClaim] | None:
        """The claims of a pending pod. None if one is missing, so that nothing can be said about equal pods."""
        found = [self._stored.get((pod.namespace, name)) for name in claim_names(pod)]
        return [claim for claim in found if claim is not None] if all(found) else None

    def _hold(self, pod: Pod, attempt: Attempt, node: str, given: Sequence[ResourceClaim]) -> None:
        names = set(map(_name, given))
        self._allocated.update({_name(claim): claim for claim in given})
        waiting = [
            claim for claim in self._snapshot.cluster.claims if claim.allocation is None and _name(claim) in names
        ]
        cluster = self._snapshot.cluster.after(given, waiting)
        snapshot = self._snapshot
        if pod.nominated_node:  # it takes its place only once; other pending pods take none
            snapshot = replace(snapshot, pods=tuple(other for other in snapshot.pods if other is not pod))
        self._snapshot = snapshot.placed(attempt.placed(node), node, cluster)


def _equal_pods(pod: Pod, claims: Sequence[ResourceClaim] | None) -> tuple[str, ...] | None:
    """What equal pods have in common; None if that is not known, or if other pods may help the pod to fit."""
    if claims is None or not pod.owner[0] or pod.affinity or pod.spread:
        return None
    if any(claim.allocation is not None for claim in claims):
        return None
    specs = (repr(claim.spec) for claim in claims)
    return (pod.namespace, *pod.owner, str(pod.priority), repr(pod.node_affinity), *specs)


def _nowhere(attempt: Attempt) -> PodPlace:
    if attempt.gates:
        return PodPlace(reason="; ".join(refusal.message for refusal in attempt.gates))
    preemption = attempt.after.preemption if attempt.after is not None else None
    if preemption is not None and preemption.nominated:
        node = preemption.nominated[0]
        return PodPlace(node, preempts=tuple(map(str, preemption.candidates[node].pods)), reason=attempt.fit_error)
    return PodPlace(reason="; ".join(sorted(attempt.errors)) or attempt.fit_error)


def successor_of(pod: Pod) -> Pod:
    """The pod that a controller makes again."""
    return replace(
        pod, node_name="", nominated_node="", phase="Pending", started="", extended_claim="", uid=f"{pod.uid}-next"
    )


def claims_of_successor(pod: Pod, successors: Mapping[ClaimKey, ResourceClaim]) -> list[ResourceClaim]:
    """The claims of the pod that a controller makes again, taken from the claims that `without_pods` returns."""
    keys = [(pod.namespace, name) for name in claim_names(pod, with_extended=False)]
    return [successors[key] for key in keys if key in successors]


def without_pods(snapshot: Snapshot, pods: Sequence[Pod]) -> tuple[Snapshot, dict[ClaimKey, ResourceClaim]]:
    """The snapshot without some of its pods, and the claims that successors of these pods use.

    A claim of a pod's own is made again. Another claim loses its devices when the last pod that uses it has left. A
    claim that is reserved for a PodGroup keeps them.
    """
    gone = {pod.uid for pod in pods}
    if not gone:
        return snapshot, {}
    claims = {_name(claim): claim for claim in snapshot.cluster.claims}
    used = {key for pod in pods for name in claim_names(pod) if (key := (pod.namespace, name)) in claims}
    successors: dict[ClaimKey, ResourceClaim] = {}
    released = []
    for key in sorted(used):
        claim = claims[key]
        if all(user.uid in gone for user in claim.reserved_for):
            released.append(claim)
            successors[key] = replace(claim, allocation=None, reserved_for=())
        else:
            successors[key] = claim
    cluster = snapshot.cluster.after(released=released)
    return replace(
        snapshot, cluster=cluster, pods=tuple(pod for pod in snapshot.pods if pod.uid not in gone)
    ), successors


def results_of(claim: ResourceClaim) -> tuple[AllocatedDevice, ...]:
    """The devices of a claim; none if it is not allocated."""
    return claim.allocation.results if claim.allocation is not None else ()


def device_text(result: AllocatedDevice) -> str:
    """An allocated device as POOL/DEVICE."""
    return f"{result.pool}/{result.device}"


def _name(claim: ResourceClaim) -> tuple[str, str]:
    return claim.metadata.namespace or "default", claim.metadata.name
