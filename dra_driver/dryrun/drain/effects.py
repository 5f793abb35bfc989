# SPDX-License-Identifier: Apache-2.0
"""What taint rules do to pods: who is evicted and when, where the pods would go, and who can no longer start.

The cluster is placed twice, without and with the rules. In both, pending pods and the successors of evicted pods are
placed one after the other, by priority. A pod that no controller made again takes nothing from others. All of it are
decisions of the scheduler and of the eviction controller (`scheduler.pods`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...kube.releases import has_rule
from ...kube.resource import (
    AllocatedDevice,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceSlice,
    TaintEffect,
)
from ...scheduler.allocator import Cluster, Features, with_taint_rules
from ...scheduler.pods import Eviction, Pod, evictions, taints_of_rules
from ...scheduler.pods.evictions import claim_names, is_reserved_for, tolerated_seconds
from ..selection import ALL_KNOWN, OpenLabels
from ..successors import (
    ClaimKey,
    Placing,
    PodPlace,
    Progress,
    claims_of_successor,
    device_text,
    results_of,
    successor_of,
    without_pods,
)
from ..world import World
from .targets import DeviceKey, PublishedDevice, PublishedDevices

NewTaints = Callable[[PublishedDevice], list[DeviceTaint]]
"""The taints that a device gets."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """A pod that is evicted after `seconds`, its devices, and where its successor goes. `is_made_again` is false if the
    pod has no controller. `again` is set if the successor gets devices with the taint and has to leave, too: its claim
    stays, or it tolerates the taint for some time.
    """

    pod: Pod
    seconds: float
    devices: tuple[str, ...]
    place: PodPlace
    is_made_again: bool = True
    again: bool = False


@dataclass(frozen=True, slots=True)
class Staying:
    """A pod that keeps a tainted device, and why."""

    pod: Pod
    devices: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """A pending pod that would fit without the rules, on `before`, and does not fit with them."""

    pod: Pod
    before: PodPlace
    after: PodPlace


@dataclass(frozen=True, slots=True)
class Effects:
    """What rules do. `devices` are the devices that get a taint, and `allocated` how many of them claims hold.

    Without pods (`are_pods_known` is false), `holders` has the users of the devices, as the claims name them.
    """

    devices: tuple[PublishedDevice, ...]
    allocated: int = 0
    evicted: tuple[Evicted, ...] = ()
    staying: tuple[Staying, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    are_pods_known: bool = True
    holders: tuple[str, ...] = ()

    @property
    def without_place(self) -> tuple[Evicted, ...]:
        """The evicted pods whose successors have no place, or one that others, or the successors, have to leave."""
        made_again = (evicted for evicted in self.evicted if evicted.is_made_again)
        return tuple(evicted for evicted in made_again if not evicted.place.fits or evicted.again)

    @property
    def by_driver(self) -> Mapping[str, int]:
        """The number of tainted devices by driver."""
        return Counter(device.driver for device in self.devices)


@dataclass(frozen=True)
class DrainAnalysis:
    """Computes the effects of rules in a cluster. `withdrawn` are devices that are no longer published instead."""

    cluster: Cluster
    world: World | None
    features: Features
    labels: OpenLabels = ALL_KNOWN
    tell: Progress = field(default=lambda *_: None)

    def of_rules(self, rules: Sequence[DeviceTaintRule]) -> Effects:
        """The effects of new DeviceTaintRules. Rules with the effect None do nothing."""
        release = self.features.release
        every = has_rule(release, "rule_without_selector_taints_all")
        concerned = [
            device for device in PublishedDevices.of(self.cluster.slices).devices if taints_of(rules, device, every)
        ]
        effective = [rule for rule in rules if rule.taint.effect != TaintEffect.NONE]
        slices = tuple(with_taint_rules(self.cluster.slices, effective, without_selector=every))
        found = evictions(self._pods, self.cluster.claims, taints_of_rules(rules), release)
        return self._effects(concerned, slices, found, new_taints=lambda device: taints_of(effective, device, every))

    def of_withdrawn(self, devices: Sequence[PublishedDevice]) -> Effects:
        """The effects of devices that the driver stops to publish. No pod is evicted."""
        keys = {device.key for device in devices}
        slices = tuple(
            replace(
                slice_,
                devices=tuple(
                    device for device in slice_.devices if (slice_.driver, slice_.pool.name, device.name) not in keys
                ),
            )
            for slice_ in self.cluster.slices
        )
        return self._effects(devices, slices, [], new_taints=None)

    def of_end(self, rules: Sequence[DeviceTaintRule]) -> Effects:
        """The effects of deleting rules that count now: `blocked` are pods that fit only then."""
        every = has_rule(self.features.release, "rule_without_selector_taints_all")
        concerned = [
            device for device in PublishedDevices.of(self.cluster.slices).devices if taints_of(rules, device, every)
        ]
        slices = tuple(_without_taints(slice_, rules, every) for slice_ in self.cluster.slices)
        return self._effects(concerned, slices, [], new_taints=None, is_end=True)

    @property
    def _pods(self) -> Sequence[Pod]:
        return self.world.around.pods if self.world is not None else ()

    def _effects(
        self,
        concerned: Sequence[PublishedDevice],
        slices: tuple[ResourceSlice, ...],
        found: Sequence[Eviction],
        *,
        new_taints: NewTaints | None,
        is_end: bool = False,
    ) -> Effects:
        keys = {device.key: device for device in concerned}
        held = [claim for claim in self.cluster.allocated if _held(claim, keys)]
        allocated = len({key for claim in held for key in _held(claim, keys)})
        devices = tuple(concerned)
        if self.world is None:
            return Effects(devices, allocated, are_pods_known=False, holders=tuple(_users(held)))
        before = self.world.at(self.cluster, self.features)
        after = self.world.at(replace(self.cluster, slices=slices), self.features)
        pending = sorted((pod for pod in before.pods if _is_pending(pod)), key=lambda pod: -pod.priority)
        total = (len(pending) * 2 + len(found)) if before.nodes else 0
        placing = Placing(before, self.features, self.labels, self.tell, total)
        first = {id(pod): placing.place(pod) for pod in pending}
        after, successors = without_pods(after, [eviction.pod for eviction in found])
        placing = Placing(after, self.features, self.labels, self.tell, total, len(pending))
        then = {id(pod): placing.place(pod) for pod in pending}
        moved = tuple(self._moved(eviction, successors, placing, keys, new_taints) for eviction in found)
        gone = {id(eviction.pod) for eviction in found}
        return Effects(
            devices,
            allocated,
            moved,
            tuple(self._staying(held, keys, gone, new_taints)) if not is_end else (),
            tuple(_changed(pending, first, then, is_end=is_end)),
        )

    def _moved(
        self,
        eviction: Eviction,
        successors: Mapping[ClaimKey, ResourceClaim],
        placing: "Placing",
        keys: Mapping[DeviceKey, PublishedDevice],
        new_taints: NewTaints | None,
    ) -> Evicted:
        pod = eviction.pod
        devices = tuple(dict.fromkeys(device_text(cause.device) for cause in eviction.causes))
        is_made_again = bool(pod.owner[0])
        claims = claims_of_successor(pod, successors)
        place = placing.place(successor_of(pod), claims, holds=is_made_again)
        again = any(
            tolerated_seconds(result, taint) != math.inf
            for result in place.results
            if _key(result) in keys
            for taint in _evicting(keys[_key(result)], new_taints)
        )
        return Evicted(pod, eviction.seconds, devices, place, is_made_again, again)

    def _staying(
        self,
        held: Sequence[ResourceClaim],
        keys: Mapping[DeviceKey, PublishedDevice],
        gone: set[int],
        new_taints: NewTaints | None,
    ) -> Iterator[Staying]:
        by_name = {(claim.metadata.namespace or "default", claim.metadata.name): claim for claim in held}
        for pod in self._pods:
            if not pod.node_name or pod.ended or pod.deleted or id(pod) in gone:
                continue
            names = claim_names(pod)
            claims = [by_name[key] for name in names if (key := (pod.namespace, name)) in by_name]
            claims = [claim for claim in claims if is_reserved_for(claim, pod)]
            if not claims:
                continue
            results = [result for claim in claims for result in results_of(claim) if _key(result) in keys]
            is_extended = pod.extended_claim in {claim.metadata.name for claim in claims}
            reason = _reason(results, keys, new_taints, is_extended=is_extended)
            yield Staying(pod, tuple(dict.fromkeys(map(device_text, results))), reason)


def _changed(
    pending: Sequence[Pod], first: Mapping[int, PodPlace], then: Mapping[int, PodPlace], *, is_end: bool
) -> Iterator[Blocked]:
    """The pending pods that only one of the two states takes: without the rules, or at their end with the change."""
    for pod in pending:
        before, after = first[id(pod)], then[id(pod)]
        fits, fits_not = (after, before) if is_end else (before, after)
        if fits.fits and not fits_not.fits:
            yield Blocked(pod, before, after)


def _is_pending(pod: Pod) -> bool:
    return not pod.node_name and not pod.ended and not pod.deleted and bool(pod.claims or pod.extended)


def taints_of(rules: Iterable[DeviceTaintRule], published: PublishedDevice, every: bool) -> list[DeviceTaint]:
    """The taints that a device gets of rules. `every`: a rule without a selector taints all devices."""
    return [rule.taint for rule in rules if _selects(rule, published, every)]


def _selects(rule: DeviceTaintRule, published: PublishedDevice, every: bool) -> bool:
    if rule.selector is None and not every:
        return False
    selector = rule.selector or DeviceTaintSelector()
    names = (selector.driver, selector.pool, selector.device)
    return all(wanted in (None, name) for wanted, name in zip(names, published.key, strict=True))


def _without_taints(slice_: ResourceSlice, rules: Sequence[DeviceTaintRule], every: bool) -> ResourceSlice:
    """The slice without the taints that rules gave to its devices."""
    devices = []
    for device in slice_.devices:
        left = list(device.taints)
        for taint in taints_of(rules, PublishedDevice(slice_.driver, slice_.pool.name, "", device), every):
            if taint in left:
                left.remove(taint)
        devices.append(replace(device, taints=tuple(left)) if len(left) < len(device.taints) else device)
    return replace(slice_, devices=tuple(devices))


def _reason(
    results: Sequence[AllocatedDevice],
    keys: Mapping[DeviceKey, PublishedDevice],
    new_taints: NewTaints | None,
    *,
    is_extended: bool,
) -> str:
    """Why a pod keeps its devices."""
    if new_taints is None:
        return "the devices are no longer published, which ends no pod"
    evicting = [(result, taint) for result in results for taint in _evicting(keys[_key(result)], new_taints)]
    if not evicting:
        return "the taint evicts no pods"
    if all(tolerated_seconds(result, taint) == math.inf for result, taint in evicting):
        return "its claim tolerates the taint"
    if is_extended:
        return "its devices are for an extended resource, and Kubernetes evicts such pods from 1.38 on: delete it"
    return "a rule without a selector evicts no pods"


def _evicting(published: PublishedDevice, new_taints: NewTaints | None) -> list[DeviceTaint]:
    """The taints with the effect NoExecute that a device gets."""
    taints = new_taints(published) if new_taints is not None else []
    return [taint for taint in taints if taint.effect == TaintEffect.NO_EXECUTE]


def _held(claim: ResourceClaim, keys: Mapping[DeviceKey, PublishedDevice]) -> list[DeviceKey]:
    """The devices among `keys` that a claim holds."""
    return [key for result in results_of(claim) if (key := _key(result)) in keys]


def _key(result: AllocatedDevice) -> DeviceKey:
    return result.driver, result.pool, result.device


def _users(claims: Iterable[ResourceClaim]) -> Iterator[str]:
    """The users of claims, each once, as the claims name them."""
    yield from dict.fromkeys(
        f"{claim.metadata.namespace or 'default'}/{user.name}" for claim in claims for user in claim.reserved_for
    )
