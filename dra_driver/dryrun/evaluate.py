# SPDX-License-Identifier: Apache-2.0
"""Verdicts on demands, which are placed in a cluster one after the other."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from ..config import (
    DEVICE_TYPES,
    Chosen,
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    ConfigError,
    DeviceConfig,
    config_for,
    domain_config_for,
    require_one_backend,
)
from ..domains.names import DAEMON_CLASS, DAEMON_DEVICE
from ..domains.names import DRIVER as DOMAIN_DRIVER
from ..errors import NodeSelectorError
from ..kube.resource import AllocatedDevice, Node, ResourceClaim
from ..kube.resource.codec import Decoded
from ..names import DRIVER_NAME
from ..process.command import InputError
from ..scheduler.allocator import Cluster, ErrorKind, Features
from ..scheduler.allocator.nodes import is_at
from ..scheduler.allocator.selectors import compile_cel
from ..scheduler.cel import CompileError
from ..scheduler.pods import Pod
from .changes import Trial, defect, differing, helpful_changes
from .explain import MOST_EXPLAINED, Explainer, Explanation
from .extended import doubtful_classes, extended_claims, is_of_driver, not_judged, remedy, unserved
from .selection import ALL_KNOWN, OpenLabels, Requirements, assumption_texts, sorted_by_needs
from .verdict import Refused, Verdict, placed_devices
from .wholepod import WholePods, held_claims, of_others, running, valid_pod
from .workload import Demand
from .world import World

_KINDS: Final[dict[object, type[DeviceConfig]]] = {form: kind for kind, forms in DEVICE_TYPES.items() for form in forms}


def evaluate(
    demands: Iterable[Demand],
    objects: Sequence[Decoded],
    features: Features,
    world: World | None = None,
    labels: OpenLabels = ALL_KNOWN,
) -> list[Verdict]:
    """The verdict on each demand, in order. With a `world`, it is about the whole pod, else about its devices only.
    `labels` tells of which nodes some labels are unknown.
    """
    return list(evaluate_each(demands, objects, features, world, labels))


def evaluate_each(
    demands: Iterable[Demand],
    objects: Sequence[Decoded],
    features: Features,
    world: World | None = None,
    labels: OpenLabels = ALL_KNOWN,
) -> Iterator[Verdict]:
    """Like `evaluate`, but gives each verdict immediately."""
    cluster = Cluster.of(objects)
    pods = WholePods(world, cluster, features, labels) if world is not None else None
    one_by_one = _OneByOne(cluster, pods, features, labels)
    for stage, group in groupby(demands, lambda demand: demand.stage):
        # The pods of a stage end before those of the next one begin.
        placing = one_by_one.apart() if stage else one_by_one
        yield from map(placing.verdict, group)


class _OneByOne:
    """Demands, each of which gets what the earlier ones have left."""

    def __init__(self, cluster: Cluster, pods: WholePods | None, features: Features, labels: OpenLabels) -> None:
        self._cluster, self._pods, self._features, self._labels = cluster, pods, features, labels
        self._holders = cluster.allocated
        self._last: Verdict | None = None

    def apart(self) -> "_OneByOne":
        """The same state, which further demands do not change here."""
        pods = self._pods.apart() if self._pods is not None else None
        return _OneByOne(self._cluster, pods, self._features, self._labels)

    def verdict(self, demand: Demand) -> Verdict:
        """The verdict on the next demand. If it cannot be evaluated, the verdict says why."""
        last = self._last
        equal = last is not None and demand.workload and demand.workload == last.demand.workload
        if last is not None and equal and not demand.replaces and not _may_differ(last):
            # the next of several equal pods finds what the last one found
            self._last = replace(last, demand=demand)
            return self._last
        try:
            verdict, allocated = self._decide(demand)
        except InputError as error:
            text = error.message.removeprefix(f"{demand.name}: ")
            verdict, allocated = Verdict(demand, error=text), []
        if not (demand.claims or demand.extended or verdict.rejects or verdict.error):
            verdict = replace(verdict, notes=(*verdict.notes, "the pod asks for no devices"))
        self._last = replace(
            verdict,
            problems=refused_configs(allocated, self._cluster),
            notes=(*verdict.notes, *demand.notes, *doubtful_classes(demand, self._cluster.classes, self._features)),
            unknown=(*verdict.unknown, *demand.unknown),
        )
        if allocated:
            self._cluster = self._cluster.after(allocated)
        return self._last

    def _decide(self, demand: Demand) -> tuple[Verdict, list[ResourceClaim]]:
        """The verdict, and the claims that hold its devices from now on. Raises InputError."""
        pods = self._pods
        if rejects := (*demand.missing, *_refused_selectors(demand, self._features)):
            return Verdict(demand, rejects=rejects), []
        if pods is None and demand.state:
            return running(demand, self._cluster, demand.node_name, demand.state), []
        if pods is not None and demand.submitted is not None:
            return pods.evaluate(demand)
        if pods is not None and (rejects := pods.rejects(demand)):
            return Verdict(demand, rejects=rejects), []
        verdict, allocated, self._labels = _evaluate(demand, self._cluster, self._features, self._holders, self._labels)
        if pods is not None:
            pods.hold(allocated)
        return verdict, allocated


def _refused_selectors(demand: Demand, features: Features) -> Iterator[str]:
    """The selectors of new claims that the API server refuses because they do not compile."""
    for claim in demand.claims:
        for request, required in claim.spec.requirements if claim.allocation is None else ():
            for index, expression in enumerate(required.selectors):
                try:
                    compile_cel(expression, features)
                except CompileError as error:
                    yield f"claim {claim.metadata}: selector {index} of request {request} does not compile: {error}"


def _may_differ(verdict: Verdict) -> bool:
    """Whether the verdict on an equal pod may differ. It cannot if no node takes this pod: nothing has changed."""
    return verdict.node is not None or bool(verdict.demand.daemon_node)


@dataclass(frozen=True, eq=False)
class DeviceTrial:
    """The answers of the nodes for the pending claims and the extended resources of a demand.

    Nodes where the pod cannot go are `away`, with the reasons. They are no part of the trial: neither an answer nor a
    change that would help may come from such a node. `needs` is what has to be assumed of the labels of a node.
    """

    trial: Trial
    away: Mapping[str, str]
    needs: Mapping[str, Requirements]


def device_trial(
    demand: Demand,
    pod: Pod | None,
    claims: Sequence[ResourceClaim],
    cluster: Cluster,
    features: Features,
    labels: OpenLabels,
) -> DeviceTrial:
    """The trial of a demand with these claims. `pod` is its pod, if it is not a claim by itself."""
    pending = [claim for claim in claims if claim.allocation is None]
    pending += extended_claims(demand, cluster.classes, features)
    missing = unserved(demand, cluster.classes, features)
    away: dict[str, str] = {}
    needs: dict[str, Requirements] = {}
    for node in cluster.nodes:
        wanted = () if pod is None else labels.needs(pod, node)
        offered = [resource for resource in missing if is_of_driver(resource) or node.name not in labels.nodes]
        reason = _kept_away(node, demand, claims)
        if pod is not None and wanted is None:
            reason = reason or _not_selected(pod, node, labels)
        if reason := reason or _not_offered(node, offered):
            away[node.name] = reason
        elif wanted:
            needs[node.name] = wanted
    if away:
        nodes = tuple(node for node in cluster.nodes if node.name not in away)
        cluster = replace(cluster, nodes=nodes)
    return DeviceTrial(Trial(cluster, pending, features), away, needs)


def _evaluate(
    demand: Demand, cluster: Cluster, features: Features, holders: Sequence[ResourceClaim], labels: OpenLabels
) -> tuple[Verdict, list[ResourceClaim], OpenLabels]:
    """The verdict on the devices of a demand, the claims that would hold them, and what is known of labels then."""
    pod, rejects = (None, ()) if demand.submitted is None else valid_pod(demand)
    if rejects:
        return Verdict(demand, rejects=rejects), [], labels
    claims = held_claims(demand, cluster)
    tried = device_trial(demand, pod, claims, cluster, features, labels)
    verdict, allocated = _decided(demand, tried, claims, holders)
    missing = unserved(demand, cluster.classes, features)
    if verdict.node is None:
        notes = tuple(remedy(resource, features) for resource in missing if is_of_driver(resource))
        return replace(verdict, notes=notes), allocated, labels
    needs = tried.needs.get(verdict.node, ())
    unknown = not_judged(resource for resource in missing if verdict.node in labels.nodes)
    after = labels.after(verdict.node, needs)
    return replace(verdict, assumptions=assumption_texts(needs), unknown=unknown), allocated, after


def _decided(
    demand: Demand, tried: DeviceTrial, claims: Sequence[ResourceClaim], holders: Sequence[ResourceClaim]
) -> tuple[Verdict, list[ResourceClaim]]:
    trial = tried.trial
    fitting = {name for group in trial.fitting for name in group.nodes}
    if not fitting:
        refused = _refusals(trial, tried.away)
        broken = any(group.outcome.error_kind is ErrorKind.CEL_COMPILE for group in trial.outcomes.groups)
        if broken or not trial.claims:
            return Verdict(demand, refused=refused), []
        changes = tuple(helpful_changes(trial, of_others(demand, holders)))
        return Verdict(demand, refused=refused, changes=changes, defect=defect(trial)), []
    ordered = sorted_by_needs((node.name for node in trial.cluster.nodes if node.name in fitting), tried.needs)
    allocated = trial.allocated(trial.outcomes[ordered[0]])
    placed = tuple(placed_devices((*claims, *allocated), trial.cluster))
    return Verdict(demand, ordered, placed, defect=differing(trial, trial.outcomes, ordered[0])), allocated


def _refusals(trial: Trial, away: Mapping[str, str]) -> tuple[Refused, ...]:
    explainer = Explainer(trial.cluster, trial.features)
    refused = [
        Refused(group.nodes, explainer.explain(trial.claims, group.outcome))
        for group in trial.outcomes.groups[:MOST_EXPLAINED]
        if group.outcome.kind != "allocated"
    ]
    fatal = [refusal for refusal in refused if refusal.explanation.fatal]
    if fatal:
        return tuple(fatal[:1])
    refused.sort(key=lambda refusal: refusal.explanation.distance)
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, reason in away.items():
        by_reason[reason].append(name)
    return (*refused, *(Refused(tuple(names), Explanation(reason, False)) for reason, names in by_reason.items()))


def _kept_away(node: Node, demand: Demand, claims: Iterable[ResourceClaim]) -> str:
    """Why the pod cannot go to the node: its node name, or a claim with devices elsewhere. Else empty."""
    for claim in claims:
        selector = claim.allocation.node_selector if claim.allocation is not None else None
        try:
            if selector is not None and not is_at(selector, node):
                return f"claim {claim.metadata} is allocated, and its devices are not available there"
        except NodeSelectorError as error:
            return f"claim {claim.metadata} is allocated with a node selector that cannot be used: {error}"
    if demand.node_name and demand.node_name != node.name:
        return f"the pod is bound to node {demand.node_name}"
    for request in demand.extended:
        if request.resource in node.plugin_resources:
            return f"a device plugin offers {request.resource} there, which is not evaluated"
    return ""


def _not_selected(pod: Pod, node: Node, labels: OpenLabels) -> str:
    """Why the pod's node selector and node affinity do not match the node."""
    if pod.node_affinity is not None and labels.needs(replace(pod, node_affinity=None), node) is not None:
        return "the pod's node affinity does not match it"
    wrong = {key: value for key, value in pod.node_selector.items() if node.metadata.labels.get(key) != value}
    for key, value in wrong.items():
        if key in node.metadata.labels:
            return f"the pod's nodeSelector wants {key}={value}"
    if labels.assumed.get(node.name):
        selector = " and ".join(f"{key}={value}" for key, value in wrong.items())
        return f"the pod's nodeSelector wants {selector}, and pods that are placed there need other labels"
    return "".join(f"the pod's nodeSelector wants {key}={value}" for key, value in list(wrong.items())[:1])


def _not_offered(node: Node, resources: Iterable[str]) -> str:
    """Why the node does not offer all of these extended resources, which no DeviceClass serves. Empty if it does."""
    missing = [resource for resource in resources if resource not in node.plugin_resources]
    return f"no DeviceClass and no device plugin offers {' and '.join(missing)}" if missing else ""


def refused_configs(claims: Iterable[ResourceClaim], cluster: Cluster) -> tuple[str, ...]:
    """Why the driver would not prepare the allocated claims, each reason once. Other drivers are not judged."""
    return tuple(dict.fromkeys(problem for claim in claims for problem in _problems(claim, cluster)))


def _problems(claim: ResourceClaim, cluster: Cluster) -> Iterator[str]:  # noqa: C901  # one check after the other
    allocation = claim.allocation
    if allocation is None:
        return
    refused = f"claim {claim.metadata}: the driver refuses it on the node"
    configured = {configuration.opaque.driver for configuration in allocation.config}
    chosen: list[Chosen] = []
    for result, placed in zip(allocation.results, placed_devices([claim], cluster), strict=True):
        if result.driver not in configured or result.admin_access:
            continue
        kind = _KINDS.get(placed.device.attributes.get("type")) if placed.device is not None else None
        try:
            if result.driver == DOMAIN_DRIVER:
                domain = _domain_of(result, claim)
                if result.device == DAEMON_DEVICE:
                    others = (one for one, _ in _holders(result, cluster) if one.metadata != claim.metadata)
                    if daemon := next(others, None):
                        yield f"{refused}: claim {daemon.metadata} has the IMEX daemon of node {result.pool}"
                elif other := _of_other_domain(result, domain, cluster):
                    problem = f"claim {other.metadata} of another ComputeDomain has the channel of node {result.pool}"
                    yield f"{refused}: {problem}, and a node is in one at a time"
            elif result.driver == DRIVER_NAME and kind is not None:
                chosen.append(config_for(result, kind, claim))
        except ConfigError as error:
            yield f"{refused}: {error}"
    try:
        require_one_backend(chosen)
    except ConfigError as error:
        yield f"{refused}: {error}"


def _domain_of(result: AllocatedDevice, claim: ResourceClaim) -> str:
    """The UID of the domain of a channel or daemon. Raises ConfigError."""
    if result.device == DAEMON_DEVICE:
        return domain_config_for(result, ComputeDomainDaemonConfig, claim).domain
    return domain_config_for(result, ComputeDomainChannelConfig, claim).domain


def _of_other_domain(result: AllocatedDevice, domain: str, cluster: Cluster) -> ResourceClaim | None:
    """A claim that has the channel of the same node for another domain. The scheduler learns that only when the driver
    has prepared the claim. Where IMEX daemons belong to the hosts (there is no class for them), domains share nodes.
    """
    if all(class_.metadata.name != DAEMON_CLASS for class_ in cluster.classes):
        return None
    for claim, one in _holders(result, cluster):
        with suppress(ConfigError):
            if _domain_of(one, claim) != domain:
                return claim
    return None


def _holders(result: AllocatedDevice, cluster: Cluster) -> Iterator[tuple[ResourceClaim, AllocatedDevice]]:
    """The allocated claims that have the same device."""
    for claim in cluster.allocated:
        for allocated in claim.allocation.results if claim.allocation is not None else ():
            if (allocated.driver, allocated.pool, allocated.device) == (result.driver, result.pool, result.device):
                yield claim, allocated
