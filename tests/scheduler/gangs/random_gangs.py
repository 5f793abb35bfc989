# SPDX-License-Identifier: Apache-2.0
"""Random gangs, and an oracle that tries every assignment of small ones.

The oracle has a model of its own: numbers of parts of GPUs, amounts of cpu and labels, without the allocator and the
filters that are tested. A GPU has two parts and is allocated whole or as halves, or it is never divided.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dra_driver.kube.resource import (
    AllocatedDevice,
    AllocationResult,
    DeviceClaim,
    ObjectMeta,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.scheduler.gangs import Gang, GangMember, GangPlacement
from dra_driver.scheduler.pods import Snapshot
from tests.scheduler.allocator.build import DRIVER, gpu, slice_of, wants
from tests.scheduler.allocator.build import claim as claim_of

from .build import cluster, gang, node, pod

Alternative = tuple[int, str]
"""How many devices of which model: `whole`, `half` or `any`."""


@dataclass(frozen=True)
class RandomNode:
    """A node with GPUs that are divided or not. `used` are the devices that others hold."""

    name: str
    zone: str
    cpu: int
    divided: tuple[bool, ...]
    used: frozenset[str] = frozenset()

    @property
    def devices(self) -> dict[str, tuple[int, int, str]]:
        """GPU, parts and model of each device."""
        found = {}
        for index, divided in enumerate(self.divided):
            found[f"whole-{index}"] = (index, 2, "whole")
            if divided:
                found |= {f"half-{index}-{part}": (index, 1, "half") for part in range(2)}
        return found


@dataclass(frozen=True)
class RandomPod:
    """A pod. `claims` are indexes of the claims of the case. `zone` is where it has to be, if that is not empty."""

    cpu: int
    claims: tuple[int, ...]
    zone: str = ""
    apart: str = ""
    """`host` or `zone`: pods with the same field must differ in it. `together`: they must be in one zone."""


@dataclass(frozen=True)
class Case:
    """A cluster and a gang. Each claim has alternatives; the first that can be served is what the scheduler takes."""

    nodes: tuple[RandomNode, ...]
    claims: tuple[tuple[Alternative, ...], ...]
    pods: tuple[RandomPod, ...]
    needed: int
    topology: bool = False


def random_case(seed: int, nodes: tuple[int, int], pods: tuple[int, int], gpus: tuple[int, int]) -> Case:
    """A case with a number of nodes, pods, and GPUs on each node within these limits."""
    chance = random.Random(seed)
    flavours = [_node_flavour(chance, gpus) for _ in range(chance.randint(1, 3))]
    made = []
    for index in range(chance.randint(*nodes)):
        flavour = chance.choice(flavours)
        made.append(replace(flavour, name=f"n{index:02}", zone=f"z{chance.randrange(2)}"))
    busy = chance.random() < 0.4
    made = [_with_use(each, chance) if busy and chance.random() < 0.5 else each for each in made]
    count = chance.randint(*pods)
    claims: list[tuple[Alternative, ...]] = []
    shapes = [_pod_shape(chance) for _ in range(chance.randint(1, 3))]
    shared = chance.random() < 0.25
    wanted: list[RandomPod] = []
    previous: tuple[int, ...] = ()
    for _ in range(count):
        shape, alternatives = chance.choice(shapes)
        if shared and previous and chance.random() < 0.5:
            own = previous
        else:
            own = tuple(range(len(claims), len(claims) + len(alternatives)))
            claims += alternatives
        previous = own
        wanted.append(replace(shape, claims=own))
    needed = count if chance.random() < 0.8 else chance.randint(1, count)
    return Case(tuple(made), tuple(claims), tuple(wanted), needed, topology=chance.random() < 0.15)


def _node_flavour(chance: random.Random, gpus: tuple[int, int]) -> RandomNode:
    number = chance.randint(*gpus)
    divided = tuple(chance.random() < 0.5 for _ in range(number))
    return RandomNode("", "", chance.choice((2, 4, 8)), divided)


def _with_use(where: RandomNode, chance: random.Random) -> RandomNode:
    used = {f"whole-{index}" for index in range(len(where.divided)) if chance.random() < 0.3}
    used |= {
        f"half-{index}-0"
        for index, divided in enumerate(where.divided)
        if divided and f"whole-{index}" not in used and chance.random() < 0.3
    }
    return replace(where, used=frozenset(used))


def _pod_shape(chance: random.Random) -> tuple[RandomPod, list[tuple[Alternative, ...]]]:
    alternatives: list[tuple[Alternative, ...]] = []
    for _ in range(chance.choice((0, 1, 1, 1, 2))):
        kinds: list[tuple[Alternative, ...]] = [
            ((1, "whole"),),
            ((1, "half"),),
            ((1, "any"),),
            ((2, "any"),),
            ((1, "whole"), (1, "half")),
            ((2, "whole"), (1, "whole"), (1, "half")),
        ]
        alternatives.append(chance.choice(kinds))
    zone = f"z{chance.randrange(2)}" if chance.random() < 0.15 else ""
    apart = chance.choice(("host", "zone", "together")) if chance.random() < 0.18 else ""
    return RandomPod(chance.choice((0, 1, 1, 2)), (), zone, apart), alternatives


def built(case: Case) -> tuple[Snapshot, Gang]:
    """The case as objects of Kubernetes."""
    nodes = [node(each.name, {"zone": each.zone}, cpu=each.cpu * 1000) for each in case.nodes]
    slices = [slice_ for each in case.nodes for slice_ in _slices(each)]
    snapshot = cluster(nodes, *slices)
    holders = tuple(_holder(each.name, device) for each in case.nodes for device in sorted(each.used))
    snapshot = replace(snapshot, cluster=replace(snapshot.cluster, claims=holders))
    claims = [_claim(index, alternatives) for index, alternatives in enumerate(case.claims)]
    members = [
        GangMember(_pod(index, each), tuple(claims[claim] for claim in each.claims))
        for index, each in enumerate(case.pods)
    ]
    return snapshot, gang(*members, least=case.needed, topology="zone" if case.topology else "")


def _slices(where: RandomNode) -> Iterator[ResourceSlice]:
    counters = {f"gpu-{index}": {"parts": 2} for index, divided in enumerate(where.divided) if divided}
    place: dict[str, Any] = {"pool": where.name, "node_name": where.name, "count": 1 + bool(counters)}
    devices = [
        gpu(name, attributes={"size": model}, takes={f"gpu-{index}": {"parts": parts}} if where.divided[index] else {})
        for name, (index, parts, model) in where.devices.items()
    ]
    if counters:
        yield slice_of(name=f"{where.name}-counters", counters=counters, **place)
    yield slice_of(*devices, name=f"{where.name}-devices", **place)


def _holder(name: str, device: str) -> ResourceClaim:
    result = AllocationResult((AllocatedDevice("r", DRIVER, name, device),))
    return ResourceClaim(ObjectMeta(name=f"holder-{name}-{device}", namespace="other"), DeviceClaim(), result)


def _claim(index: int, alternatives: Sequence[Alternative]) -> ResourceClaim:
    required = [
        wants(count, *(() if model == "any" else (f"device.attributes['{DRIVER}'].size == '{model}'",)))
        for count, model in alternatives
    ]
    return claim_of(name=f"c{index}", gpu=required[0] if len(required) == 1 else required)


def _pod(index: int, wanted: RandomPod) -> Any:
    fields: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    if wanted.zone:
        spec["nodeSelector"] = {"zone": wanted.zone}
    if wanted.apart:
        key = "kubernetes.io/hostname" if wanted.apart == "host" else "zone"
        term = {"topologyKey": key, "labelSelector": {"matchLabels": {"apart": wanted.apart}}}
        kind = "podAffinity" if wanted.apart == "together" else "podAntiAffinity"
        spec["affinity"] = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        fields["labels"] = {"apart": wanted.apart}
    return pod(f"p{index:02}", cpu=wanted.cpu * 1000, spec=spec, **fields)


@dataclass
class _State:
    """What a partial assignment uses."""

    cpu: dict[str, int] = field(default_factory=dict)
    devices: dict[str, frozenset[str]] = field(default_factory=dict)
    claims: dict[int, tuple[str, frozenset[str]]] = field(default_factory=dict)
    apart: frozenset[tuple[str, str]] = frozenset()


def exists(case: Case) -> bool:
    """Whether any assignment exists: every one is tried."""
    zones = sorted({each.zone for each in case.nodes}) if case.topology else [""]
    return any(_place(case, 0, 0, _State(), zone) for zone in zones)


def _place(case: Case, index: int, placed: int, state: _State, zone: str) -> bool:
    if placed >= case.needed:
        return True
    if placed + len(case.pods) - index < case.needed:
        return False
    for where in case.nodes:
        if zone in ("", where.zone):
            for after in _accepted(case, index, where, state):
                if _place(case, index + 1, placed + 1, after, zone):
                    return True
    return _place(case, index + 1, placed, state, zone)


def _accepted(case: Case, index: int, where: RandomNode, state: _State) -> Iterator[_State]:
    """The states with a pod on a node, with each choice of devices."""
    wanted = case.pods[index]
    label = (wanted.apart, where.name if wanted.apart == "host" else where.zone)
    used = state.cpu.get(where.name, 0) + wanted.cpu
    if used > where.cpu or wanted.zone not in ("", where.zone):
        return
    same = {value for kind, value in state.apart if kind == wanted.apart}
    if (same - {where.zone}) if wanted.apart == "together" else (wanted.apart and label in state.apart):
        return
    if any(claim in state.claims and state.claims[claim][0] != where.name for claim in wanted.claims):
        return
    new = [claim for claim in wanted.claims if claim not in state.claims]
    apart = state.apart | {label} if wanted.apart else state.apart
    for choice in _choices(case, new, where, state.devices.get(where.name, where.used)):
        taken = state.devices.get(where.name, where.used).union(*choice)
        yield _State(
            {**state.cpu, where.name: used},
            {**state.devices, where.name: taken},
            {**state.claims, **{claim: (where.name, devices) for claim, devices in zip(new, choice, strict=True)}},
            apart,
        )


def _choices(
    case: Case, claims: Sequence[int], where: RandomNode, taken: frozenset[str]
) -> Iterator[tuple[frozenset[str], ...]]:
    """The devices of each of the claims."""
    if not claims:
        yield ()
        return
    for count, model in case.claims[claims[0]]:
        usable = [name for name, (_, _, size) in where.devices.items() if model in ("any", size) and name not in taken]
        for devices in itertools.combinations(usable, count):
            after = taken.union(devices)
            if is_possible(where, after):
                for rest in _choices(case, claims[1:], where, after):
                    yield (frozenset(devices), *rest)


def is_possible(where: RandomNode, taken: frozenset[str]) -> bool:
    """Whether these devices of a node can be in use at the same time."""
    parts = [0] * len(where.divided)
    for name in taken:
        index, size, _ = where.devices[name]
        parts[index] += size
    return all(used <= 2 for used in parts)


def mistakes(case: Case, placements: Sequence[GangPlacement]) -> list[str]:
    """What is wrong with an assignment by the oracle's model. Empty if nothing is."""
    found = [f"{len(placements)} pods are placed, {case.needed} are needed"] if len(placements) < case.needed else []
    nodes = {each.name: each for each in case.nodes}
    cpu = dict.fromkeys(nodes, 0)
    taken: dict[str, list[str]] = {name: sorted(each.used) for name, each in nodes.items()}
    node_of: dict[int, str] = {}
    labels: list[tuple[str, str]] = []
    for placement in placements:
        wanted, where = case.pods[int(placement.member.pod.name[1:])], nodes[placement.node]
        cpu[where.name] += wanted.cpu
        if wanted.zone not in ("", where.zone):
            found.append(f"{placement.member} is in zone {where.zone}")
        if wanted.apart:
            labels.append((wanted.apart, where.name if wanted.apart == "host" else where.zone))
        for claim in placement.claims:
            assert claim.allocation is not None
            devices = [result.device for result in claim.allocation.results]
            taken[where.name] += devices
            number = int(claim.metadata.name[1:])
            node_of[number] = where.name
            models = [where.devices[device][2] for device in devices]
            if not any(len(models) == count and set(models) <= _models(model) for count, model in case.claims[number]):
                found.append(f"claim {number} has {devices}")
    for placement in placements:
        places = {claim: node_of.get(claim) for claim in case.pods[int(placement.member.pod.name[1:])].claims}
        if set(places.values()) - {placement.node}:
            found.append(f"{placement.member} is on {placement.node}, and its claims on {places}")
    found += [f"{name} has too little cpu" for name, used in cpu.items() if used > nodes[name].cpu]
    found += [
        f"{name} has {devices} in use"
        for name, devices in taken.items()
        if len(devices) != len(set(devices)) or not is_possible(nodes[name], frozenset(devices))
    ]
    twice = {label for label in labels if labels.count(label) > 1 and label[0] != "together"}
    found += [f"{label} is there twice" for label in twice]
    if len({value for kind, value in labels if kind == "together"}) > 1:
        found.append("pods that must be together are in several zones")
    if case.topology and len({nodes[placement.node].zone for placement in placements}) > 1:
        found.append("the pods are in several zones")
    return found


def _models(model: str) -> set[str]:
    return {"whole", "half"} if model == "any" else {model}
