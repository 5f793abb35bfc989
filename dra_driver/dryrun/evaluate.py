# SPDX-License-Identifier: Apache-2.0
"""Demands against a cluster, one after the other, each leaving the next what it did not take."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..allocation import Cluster, Features, NodeOutcome, allocate
from ..allocation.observer import Recorder
from ..resource import AllocationResult, Device, Node, ResourceClaim
from ..resource.codec import Decoded
from .workload import Demand


@dataclass(frozen=True, slots=True)
class Placed:
    """A device that a demand gets."""

    claim: str
    request: str
    pool: str
    name: str
    device: Device | None  # None when the claim was allocated before and no slice has the device


@dataclass(frozen=True, slots=True)
class Refused:
    """A node that cannot have the demand, and why. `fatal` reasons hold for every node."""

    node: str
    reason: str
    fatal: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a demand: where it goes and what it gets there, or why it goes nowhere.

    `node` is the first of `fitting`, in the order of the nodes; the scheduler may prefer another one of them.
    """

    demand: Demand
    fitting: tuple[str, ...]
    placed: tuple[Placed, ...] = ()
    refused: tuple[Refused, ...] = ()

    @property
    def node(self) -> str | None:
        return self.fitting[0] if self.fitting else None


def evaluate(demands: Iterable[Demand], objects: Sequence[Decoded], features: Features) -> list[Verdict]:
    """The verdict on each demand, in order."""
    cluster = Cluster.of(objects)
    verdicts = []
    for demand in demands:
        verdict, allocated = _evaluate(demand, cluster, features)
        verdicts.append(verdict)
        if allocated:
            cluster = Cluster(cluster.slices, cluster.classes, cluster.nodes, (*cluster.claims, *allocated))
    return verdicts


def _evaluate(demand: Demand, cluster: Cluster, features: Features) -> tuple[Verdict, list[ResourceClaim]]:
    pending = [claim for claim in demand.claims if claim.allocation is None]
    outcomes: list[tuple[NodeOutcome, Recorder]] = []
    refused: list[Refused] = []
    for node in cluster.nodes:
        reason = _kept_away(node, demand)
        if reason:
            refused.append(Refused(node.name, reason, fatal=False))
            continue
        recorder = Recorder()
        outcome = allocate(cluster, pending, node.name, features, observer=recorder)
        outcomes.append((outcome, recorder))
        if outcome.kind != "allocated":
            refused.append(Refused(node.name, _reason(outcome, recorder), outcome.fatal))
            if outcome.fatal:
                return Verdict(demand, (), (), tuple(refused)), []
    fitting = [outcome for outcome, _ in outcomes if outcome.kind == "allocated"]
    if not fitting:
        return Verdict(demand, (), (), tuple(refused)), []
    chosen = fitting[0]
    allocated = [
        replace(claim, allocation=allocation) for claim, allocation in zip(pending, chosen.allocations, strict=True)
    ]
    placed = tuple(one for claim in allocated if claim.allocation for one in _placed(claim, claim.allocation, cluster))
    return Verdict(demand, tuple(one.node for one in fitting), placed, tuple(refused)), allocated


def _kept_away(node: Node, demand: Demand) -> str:
    """Why the pod's own node name or selector rules the node out; empty when it does not."""
    if demand.node_name and demand.node_name != node.name:
        return f"the pod is bound to node {demand.node_name}"
    for key, value in (demand.node_selector or {}).items():
        if node.metadata.labels.get(key) != value:
            return f"the pod's nodeSelector wants {key}={value}"
    return ""


def _placed(claim: ResourceClaim, allocation: AllocationResult, cluster: Cluster) -> list[Placed]:
    devices = {(one.driver, one.pool.name, device.name): device for one in cluster.slices for device in one.devices}
    return [
        Placed(str(claim.metadata), one.request, one.pool, one.device, devices.get((one.driver, one.pool, one.device)))
        for one in allocation.results
    ]


def _reason(outcome: NodeOutcome, recorder: Recorder) -> str:
    """Why the search on one node came to nothing, from what the search itself saw."""
    if outcome.kind == "error":
        return outcome.message
    for slot, count, candidates in recorder.wanted:
        if len(candidates) < count:
            removed = Counter(refusal.check.value for refusal in recorder.refusals if refusal.slot == slot)
            what = ", ".join(f"{check} rules out {number}" for check, number in removed.most_common())
            devices = f"{len(candidates)} of {len(candidates) + removed.total()} devices qualify"
            return f"request {slot.request} wants {count}, {devices}" + (f": {what}" if what else "")
    removed = Counter(refusal.check.value for refusal in recorder.refusals)
    what = ", ".join(f"{check} {number} times" for check, number in removed.most_common())
    return f"no combination of devices fits (in the way: {what})" if what else "no combination of devices fits"
