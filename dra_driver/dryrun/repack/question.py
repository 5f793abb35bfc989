# SPDX-License-Identifier: Apache-2.0
"""The question of `dra-dryrun repack`, asked of the objects of a cluster.

Places that an earlier run keeps free, by taints of its DeviceTaintRules and by its cordons, count as free. So a new
plan can be made while an earlier one is carried out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...kube.releases import is_since
from ...kube.resource import DeviceTaintRule, ResourceSlice
from ...kube.resource.codec import Decoded
from ...process.command import InputError
from ...process.words import listed
from ...scheduler.allocator import Cluster, Features
from ...scheduler.pods import ClusterNode, Pod, Snapshot
from ...scheduler.pods.objects import LabelSelector
from ...scheduler.repack import GUARD_TAINT, Disruption, GuardKind, Limits, PlanSearchResult, Space, Unit, find_plan
from ..admission import Admission, held_claims
from ..sources import Source
from ..workload import Demand
from ..world import World
from .goals import Goal, classes_for, units_for

_CORDON_TAINT: Final = "node.kubernetes.io/unschedulable"
_TAINT_RULES_SINCE: Final = "1.37"


@dataclass(frozen=True, slots=True)
class Wish:
    """Which pods may be moved, and how places are kept free (None: by what the cluster has)."""

    never: LabelSelector | None = None
    only: LabelSelector | None = None
    owners: frozenset[str] = frozenset()
    guard: GuardKind | None = None


@dataclass(frozen=True, eq=False)
class RepackQuestion:
    """The demands or goals, and the cluster. `rules` tells whether the cluster has DeviceTaintRules."""

    source: Source
    features: Features
    demands: Sequence[Demand] = ()
    goals: Sequence[Goal] = ()
    wish: Wish = field(default_factory=Wish)

    @property
    def words(self) -> str:
        """The demand in words."""
        names = [demand.name for demand in self.demands] + [goal.words for goal in self.goals]
        return listed(names)

    @property
    def guard(self) -> GuardKind:
        """How places are kept free."""
        if self.wish.guard is not None:
            return self.wish.guard
        on = self.source.gates.get("DRADeviceTaintRules", is_since(self.features.release, _TAINT_RULES_SINCE))
        has_rules = on or any(isinstance(object_, DeviceTaintRule) for object_ in self.source.objects)
        return GuardKind.TAINTS if has_rules else GuardKind.CORDON


@dataclass(frozen=True, eq=False)
class Repacking:
    """The answer: the plan for the units. `rejects` says why the API server would refuse the demand."""

    question: RepackQuestion
    result: PlanSearchResult
    space: Space
    units: Sequence[Unit]
    rejects: Sequence[str] = ()


def answered(question: RepackQuestion, limits: Limits | None = None) -> Repacking:
    """The plan. Raises InputError if the pods of the cluster are not known."""
    space, units, rejects = space_for(question, question.goals)
    if rejects:
        return Repacking(question, PlanSearchResult(None, None), space, units, rejects)
    return Repacking(question, find_plan(space, units, question.guard, limits), space, units)


def space_for(question: RepackQuestion, goals: Sequence[Goal]) -> tuple[Space, list[Unit], list[str]]:
    """The cluster for the search, the units of the demands and goals, and why the API server would refuse a demand.
    Raises InputError if the pods of the cluster are not known.
    """
    source, wish = question.source, question.wish
    if source.world is None:
        raise InputError(f"repack moves pods, and none are known: {'; '.join(source.notes) or source.where}")
    objects = [_released(object_) for object_ in source.objects]
    classes = classes_for(goals, objects)
    world = _with_nodes_released(source.world)
    snapshot = world.at(Cluster.of([*objects, *classes]), question.features)
    units, rejects = _units(question.demands, world, snapshot)
    units += units_for(goals, classes)
    pods = [unit.pod for unit in units if unit.pod is not None]
    most = {"most_priority": min(pod.priority for pod in pods)} if pods else {}
    quotas = world.policies.quotas
    judge = Disruption(snapshot, quotas, never=wish.never, only=wish.only, owners=wish.owners, **most)
    return Space(snapshot, question.features, judge), units, rejects


def _units(demands: Sequence[Demand], world: World, snapshot: Snapshot) -> tuple[list[Unit], list[str]]:
    """The units of demands, and why the API server would refuse them."""
    admission = Admission(world)
    units: list[Unit] = []
    rejects: list[str] = []
    for demand in demands:
        if demand.state:
            continue  # it is on a node already
        claims = tuple(held_claims(demand, snapshot.cluster))
        pod: Pod | None = None
        problems = list(demand.missing)
        if demand.submitted is not None and not problems:
            stored = admission.pod(demand, snapshot)
            pod = stored.pod
            problems += stored.rejects
        rejects += [f"{demand.name}: {problem}" for problem in problems]
        units.append(Unit(pod, claims))
    return units, rejects


def _released(object_: Decoded) -> Decoded:
    """A slice without the taints of a guard."""
    if not isinstance(object_, ResourceSlice) or not any(
        taint.key == GUARD_TAINT for device in object_.devices for taint in device.taints
    ):
        return object_
    devices = tuple(
        replace(device, taints=tuple(taint for taint in device.taints if taint.key != GUARD_TAINT))
        for device in object_.devices
    )
    return replace(object_, devices=devices)


def _with_nodes_released(world: World) -> World:
    """The world without the cordons of a guard."""
    nodes = tuple(map(_uncordoned, world.around.nodes))
    return replace(world, around=replace(world.around, nodes=nodes))


def _uncordoned(node: ClusterNode) -> ClusterNode:
    if GUARD_TAINT not in node.labels:
        return node
    taints = tuple(taint for taint in node.taints if taint.key != _CORDON_TAINT)
    return replace(node, unschedulable=False, taints=taints)


def guarded_nodes(source: Source) -> list[str]:
    """The nodes that an earlier run has cordoned."""
    nodes = source.world.around.nodes if source.world is not None else ()
    return sorted(node.name for node in nodes if GUARD_TAINT in node.labels)


def guarding_rules(source: Source) -> list[str]:
    """The names of the DeviceTaintRules of an earlier run."""
    rules = (rule for rule in source.objects if isinstance(rule, DeviceTaintRule))
    return sorted(rule.metadata.name for rule in rules if rule.taint.key == GUARD_TAINT)
