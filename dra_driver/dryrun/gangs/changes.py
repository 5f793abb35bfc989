# SPDX-License-Identifier: Apache-2.0
"""Changes with which kube-scheduler finds an assignment of a gang that it refuses, although one exists.

Each change is tried: it is listed only if the scheduler's own verdict is that the gang is scheduled, with each way to
choose among the nodes that fit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ...kube.resource import (
    Device,
    DeviceRequest,
    DeviceRequirements,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ResourceClaim,
)
from ...process.words import listed
from ...scheduler.allocator import Features
from ...scheduler.allocator.nodes import NODE_NAME_FIELD
from ...scheduler.gangs import Gang, GangMember, GangPlacement, GroupVerdict, Preference, devices_of, schedule
from ...scheduler.gangs.objects import claim_key, sharing
from ...scheduler.pods import Pod, Snapshot

_SHOWN: Final = 8
"""The number of pods that a change names."""
_TRIED: Final = 6
"""The number of attributes that are tried in selectors of each claim."""


@dataclass(frozen=True, slots=True)
class GangChange:
    """A change, and what kind of change it is: order, nodes, alternatives, selector or claims.

    `order` has the names of all pods if their order changes.
    """

    kind: str
    text: str
    order: tuple[str, ...] = ()


Members = tuple[GangMember, ...]


def helpful(
    gang: Gang, placements: Sequence[GangPlacement], verdict: GroupVerdict, snapshot: Snapshot, features: Features
) -> list[GangChange]:
    """The changes that help a gang that the scheduler refuses and that has an assignment."""
    finder = _Finder(gang, snapshot, features)
    found = [
        change
        for kind in (_orders(gang, placements), _alternatives(gang), _selectors(gang, placements, verdict, snapshot))
        if (change := finder.first(kind)) is not None
    ]
    pinned = finder.first([_pinned(gang.members, placements)])
    found += [pinned] if pinned is not None else []
    if not found:
        each = [*_alternatives(gang), *_values(gang, placements, snapshot)]
        pinned_too = [_both(change, _pinned(members, placements)) for change, members in each]
        combined = finder.first((*each, *pinned_too))
        found += [combined] if combined is not None else []
    return found


def _both(change: GangChange, also: tuple[GangChange, Members]) -> tuple[GangChange, Members]:
    """Two changes as one. `also` has the pods with both."""
    more, members = also
    return replace(change, text=f"{change.text}, and {more.text}"), members


def without_sharing(gang: Gang, snapshot: Snapshot, features: Features) -> GangChange | None:
    """The change that gives each pod claims of its own, if the pods share claims and the gang is scheduled with it."""
    shared = sharing(gang.members)
    if not shared:
        return None
    names = sorted(f"{namespace}/{name}" for namespace, name in shared)
    text = f"give each pod a claim of its own instead of {' and '.join(names)}: use a ResourceClaimTemplate"
    members = tuple(
        GangMember(
            member.pod, tuple(_own(claim, index) if claim_key(claim) in shared else claim for claim in member.claims)
        )
        for index, member in enumerate(gang.members)
    )
    return _Finder(gang, snapshot, features).first([(GangChange("claims", text), members)])


def _own(claim: ResourceClaim, index: int) -> ResourceClaim:
    metadata = replace(claim.metadata, name=f"{claim.metadata.name}-{index}")
    return replace(claim, metadata=metadata, allocation=None)


class _Finder:
    """Tries changes."""

    def __init__(self, gang: Gang, snapshot: Snapshot, features: Features) -> None:
        self._gang = gang
        self._snapshot = snapshot
        self._features = features

    def first(self, changes: Iterable[tuple[GangChange, Members]]) -> GangChange | None:
        """The first change with which the gang is scheduled."""
        return next((change for change, members in changes if self._helps(members)), None)

    def _helps(self, members: Members) -> bool:
        changed = replace(self._gang, members=members)
        return all(
            schedule(changed, self._snapshot, self._features, preference).is_scheduled for preference in Preference
        )


def _orders(gang: Gang, placements: Sequence[GangPlacement]) -> Iterator[tuple[GangChange, Members]]:
    """The pods in another order."""
    by_size = sorted(gang.members, key=_size, reverse=True)
    placed = [placement.member.pod.uid for placement in placements]
    by_place = sorted(
        gang.members, key=lambda member: placed.index(member.pod.uid) if member.pod.uid in placed else len(placed)
    )
    for order in (by_size, list(reversed(by_size)), by_place):
        if [member.pod.uid for member in order] != [member.pod.uid for member in gang.members]:
            names = tuple(member.pod.name for member in order)
            text = f"let the scheduler take the pods in this order, by priority or age: {listed(names, _SHOWN)}"
            yield GangChange("order", text, names), tuple(order)


def _size(member: GangMember) -> tuple[int, int]:
    """What a pod asks for: devices and cpu."""
    devices = sum(required.count for claim in member.claims for _, required in claim.spec.requirements)
    return devices, member.pod.amounts.get("cpu", 0)


def _alternatives(gang: Gang) -> Iterator[tuple[GangChange, Members]]:
    """Requests with alternatives, without those before one of them."""
    most = max(
        (len(request.first_available) for claim in _claims(gang.members) for request in claim.spec.requests), default=0
    )
    for left_out in range(1, most):

        def later(request: DeviceRequest, number: int = left_out) -> DeviceRequest:
            kept = request.first_available[min(number, len(request.first_available) - 1) :]
            return replace(request, first_available=kept) if request.first_available else request

        subrequests = sorted(
            {
                f"{request.name}/{sub.name}"
                for claim in _claims(gang.members)
                for request in claim.spec.requests
                for sub in request.first_available[: min(left_out, len(request.first_available) - 1)]
            }
        )
        text = f"leave out {' and '.join(subrequests)} of firstAvailable in the claims"
        yield GangChange("alternatives", text), _with_requests(gang.members, later)


def _selectors(
    gang: Gang, placements: Sequence[GangPlacement], verdict: GroupVerdict, snapshot: Snapshot
) -> Iterator[tuple[GangChange, Members]]:
    """Requests with a selector of a value that all devices of the assignment have, and not all that were taken."""
    published = _published(snapshot)
    wanted = [key for placement in placements for claim in placement.claims for key in devices_of(claim)]
    taken = [key for result in verdict.results for claim in result.claims for key in devices_of(claim)]
    drivers = {driver for driver, _, _ in wanted}
    if len(drivers) != 1 or not taken:
        return
    driver = drivers.pop()
    values = _common([published[key] for key in wanted if key in published])
    for name, value in sorted(values.items()):
        if all(published[key].attributes.get(name) == value for key in taken if key in published):
            continue
        expression = _expression(driver, name, value)
        yield (
            GangChange("selector", f"add the selector {expression} to the requests"),
            _with_requests(gang.members, partial(_selecting, expression=expression)),
        )


def _values(
    gang: Gang, placements: Sequence[GangPlacement], snapshot: Snapshot
) -> Iterator[tuple[GangChange, Members]]:
    """Claims that each select the value of an attribute that their devices in the assignment have.

    Attributes with few values, such as the type of the device, come first.
    """
    published = _published(snapshot)
    given = {
        claim_key(claim): [(key[0], published[key]) for key in sorted(devices_of(claim)) if key in published]
        for placement in placements
        for claim in placement.claims
    }
    values = {key: _common([device for _, device in devices]) for key, devices in given.items() if devices}
    names = set.intersection(*(set(found) for found in values.values())) if values else set()
    for name in sorted(names, key=lambda name: (len({found[name] for found in values.values()}), name))[:_TRIED]:
        texts = {key: _expression(given[key][0][0], name, values[key][name]) for key in values}
        members = tuple(
            GangMember(member.pod, tuple(_selected(claim, texts.get(claim_key(claim), "")) for claim in member.claims))
            for member in gang.members
        )
        told = [
            f"{placement.member.pod.name} {values[claim_key(claim)][name]}"
            for placement in placements
            for claim in placement.claims
            if claim_key(claim) in values
        ]
        yield (
            GangChange("selector", f"let each claim select the {name} of its devices: {listed(told, _SHOWN)}"),
            members,
        )


def _selected(claim: ResourceClaim, expression: str) -> ResourceClaim:
    """The claim with one more selector in each request."""
    if claim.allocation is not None or not expression:
        return claim
    requests = tuple(_selecting(request, expression) for request in claim.spec.requests)
    return replace(claim, spec=replace(claim.spec, requests=requests))


def _selecting(request: DeviceRequest, expression: str) -> DeviceRequest:
    """The request, or all its alternatives, with one more selector."""

    def more(required: DeviceRequirements) -> DeviceRequirements:
        return replace(required, selectors=(*required.selectors, expression))

    exactly = more(request.exactly) if request.exactly is not None else None
    alternatives = tuple(replace(sub, requirements=more(sub.requirements)) for sub in request.first_available)
    return replace(request, exactly=exactly, first_available=alternatives)


def _expression(driver: str, name: str, value: str | int | bool) -> str:
    """The CEL expression for devices that have this value of an attribute."""
    domain, _, identifier = name.rpartition("/")
    text = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
    return f'device.attributes["{domain or driver}"].{identifier} == {text}'


def _published(snapshot: Snapshot) -> dict[tuple[str, str, str], Device]:
    """The devices by driver, pool and name."""
    return {
        (slice_.driver, slice_.pool.name, device.name): device
        for slice_ in snapshot.cluster.slices
        for device in slice_.devices
    }


def _common(devices: Sequence[Device]) -> dict[str, str | int | bool]:
    """The scalar attributes that all devices have with one value."""
    first = devices[0].attributes if devices else {}
    return {
        name: value
        for name, value in first.items()
        if isinstance(value, str | int | bool) and all(device.attributes.get(name) == value for device in devices)
    }


def _with_requests(members: Sequence[GangMember], change: Callable[[DeviceRequest], DeviceRequest]) -> Members:
    """The pods, whose pending claims have changed requests. Shared claims stay shared."""
    changed: dict[int, ResourceClaim] = {}

    def with_change(claim: ResourceClaim) -> ResourceClaim:
        if claim.allocation is not None:
            return claim
        if id(claim) not in changed:
            requests = tuple(map(change, claim.spec.requests))
            changed[id(claim)] = replace(claim, spec=replace(claim.spec, requests=requests))
        return changed[id(claim)]

    return tuple(GangMember(member.pod, tuple(map(with_change, member.claims))) for member in members)


def _claims(members: Iterable[GangMember]) -> Iterator[ResourceClaim]:
    yield from (claim for member in members for claim in member.claims if claim.allocation is None)


def _pinned(members: Sequence[GangMember], placements: Sequence[GangPlacement]) -> tuple[GangChange, Members]:
    """The pods with a node affinity to the nodes of the assignment. Pods without a node there stay as they are."""
    node_of = {placement.member.pod.uid: placement.node for placement in placements}
    pairs = [f"{placement.member.pod.name} to {placement.node}" for placement in placements]
    pinned = tuple(
        GangMember(_on_node(member.pod, node_of[member.pod.uid]), member.claims)
        if member.pod.uid in node_of
        else member
        for member in members
    )
    return GangChange("nodes", f"bind pods to nodes with required node affinity: {listed(pairs, _SHOWN)}"), pinned


def _on_node(pod: Pod, node: str) -> Pod:
    here = NodeSelectorRequirement(NODE_NAME_FIELD, "In", (node,))
    terms = pod.node_affinity.terms if pod.node_affinity is not None else (NodeSelectorTerm(),)
    with_name = tuple(replace(term, match_fields=(*term.match_fields, here)) for term in terms)
    return replace(pod, node_affinity=NodeSelector(with_name))
