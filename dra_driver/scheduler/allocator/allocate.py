# SPDX-License-Identifier: Apache-2.0
"""Allocating pending claims: on one node, and on every node of a cluster.

The answers are those of kube-scheduler's structured allocator with each node decided independently. Within one attempt,
the scheduler shares counters between nodes, so a few of its answers depend on timing. Deciding changes nothing in the
cluster, except that the cluster keeps what was prepared.

The order of results, of configuration entries and of node selector requirements is that of Kubernetes' structured
allocator.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

from ...kube.resource import (
    AllocatedConfiguration,
    AllocatedDevice,
    AllocationResult,
    Device,
    Node,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ResourceClaim,
    ResourceSlice,
)
from ..cel import CompileError, Reads
from .candidates import CandidateOptions, search_problem
from .cluster import Cluster
from .equivalence import ClaimReads
from .features import Features, Variant
from .nodes import NODE_NAME_FIELD
from .observer import Recorder
from .option import Option
from .outcome import ALLOCATED, ERROR, UNAVAILABLE, AllocationError, ErrorKind, Group, NodeOutcome, Outcomes
from .pools import PoolState
from .search import Pick, Search, Solution, lack_candidates
from .selectors import Selectors, compile_derived
from .survey import NodeView

FROM_CLASS = "FromClass"
FROM_CLAIM = "FromClaim"

ShareIds = Callable[[], str]
"""Makes the id of a new share: a UUID."""

Decision = Solution | AllocationError | None


def allocations(
    claims: Sequence[ResourceClaim], solution: Solution, view: NodeView, features: Features, share_ids: ShareIds
) -> tuple[AllocationResult, ...]:
    """The AllocationResult of each claim. Raises AllocationError if the node selector cannot be written."""
    return tuple(
        AllocationResult(
            tuple(_result(pick, view, features, share_ids) for pick in picks),
            tuple(_configuration(claim, options, features)),
            _node_selector(claim, picks, view, features),
        )
        for claim, options, picks in zip(claims, solution.options, solution.picks, strict=True)
    )


def _result(pick: Pick, view: NodeView, features: Features, share_ids: ShareIds) -> AllocatedDevice:
    pool, index = view.locate(pick.device)
    device = pool.devices[index]
    required = pick.option.requirements
    shared = pick.share is not None
    return AllocatedDevice(
        request=pick.option.slot.request,
        driver=pool.driver,
        pool=pool.name,
        device=device.name,
        admin_access=required.admin_access,
        tolerations=required.tolerations,
        binding_conditions=device.binding_conditions if features.binding else (),
        binding_failure_conditions=device.binding_failure_conditions if features.binding else (),
        share_id=share_ids() if shared else None,
        consumed_capacity=pick.share.amounts if pick.share is not None else {},
        skip_node_operations=pool.slice_of(index).skip_node_operations if features.optional_node_operations else (),
    )


def _configuration(
    claim: ResourceClaim, used: Sequence[Option], features: Features
) -> Iterator[AllocatedConfiguration]:
    """The configuration of classes and of the claim. An entry for all requests of the claim names no request."""
    defects = features.defects
    by_class: dict[str, list[str]] = {}
    for option in used:
        by_class.setdefault(option.device_class.metadata.name, []).append(option.slot.request)
    classes = {option.device_class.metadata.name: option.device_class for option in used}
    for name, requests in by_class.items():
        named = () if len(requests) == len(used) and not defects.config_names_all_requests else tuple(requests)
        yield from (AllocatedConfiguration(FROM_CLASS, named, opaque) for opaque in classes[name].config)
    for config in claim.spec.config:
        covered = sum(not {option.request, option.slot.request}.isdisjoint(config.requests) for option in used)
        covers_all = not config.requests or (covered == len(used) and not defects.config_names_all_requests)
        entry = AllocatedConfiguration(FROM_CLAIM, () if covers_all else config.requests, config.opaque)
        times = covered if defects.config_repeats and config.requests else min(covered, 1)
        yield from [entry] * (times if config.requests else 1)


def _node_selector(
    claim: ResourceClaim, picks: Sequence[Pick], view: NodeView, features: Features
) -> NodeSelector | None:
    """The nodes that can use the claim: this node only, or all nodes that can reach all devices."""
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for pick in picks:
        pool, index = view.locate(pick.device)
        device, slice_ = pool.devices[index], pool.slice_of(index)
        where: Device | ResourceSlice = device if slice_.per_device_node_selection else slice_
        if where.node_name is not None or (device.binds_to_node and features.variant is not Variant.STABLE):
            this = NodeSelectorRequirement(NODE_NAME_FIELD, "In", (view.node.name,))
            return NodeSelector((NodeSelectorTerm(match_fields=(this,)),))
        terms = where.node_selector.terms if where.node_selector is not None else ()
        if len(terms) > 1:
            raise AllocationError(
                ErrorKind.NODE_SELECTOR,
                f"claim {claim.metadata}: device {view.name(pick.device)} has a node selector with {len(terms)} terms, "
                "and only selectors of one term can be merged",
            )
        for term in terms:
            _merge(fields, term.match_fields)
            _merge(expressions, term.match_expressions)
    if not fields and not expressions:
        return None
    return NodeSelector((NodeSelectorTerm(tuple(expressions), tuple(fields)),))


def _merge(into: list[NodeSelectorRequirement], more: Iterable[NodeSelectorRequirement]) -> None:
    for requirement in more:
        if not any(_same(requirement, known) for known in into):
            into.append(requirement)


def _same(one: NodeSelectorRequirement, other: NodeSelectorRequirement) -> bool:
    return (one.key, one.operator, set(one.values)) == (other.key, other.operator, set(other.values))


def new_share_id() -> str:
    """A random UUID."""
    return str(uuid.uuid4())


def allocate(  # noqa: PLR0913  # what decides about an allocation, by keyword
    cluster: Cluster,
    claims: Sequence[ResourceClaim],
    node_name: str,
    features: Features | None = None,
    *,
    share_ids: ShareIds = new_share_id,
    observer: Recorder | None = None,
    limit: int | None = None,
) -> NodeOutcome:
    """Allocates `claims` together, as those of one pod, with devices that `node_name` can reach.

    `claims` need not be among the cluster's claims. The search on the node ends without a result after `limit` steps;
    the scheduler ends it after ten seconds. Raises KeyError if the cluster has no such node.
    """
    attempt = _Attempt(cluster, claims, features or Features(), share_ids, limit)
    node = cluster.node_by_name[node_name]
    return attempt.outcome(node, attempt.decide(node, observer))


def allocate_all(
    cluster: Cluster,
    claims: Sequence[ResourceClaim],
    features: Features | None = None,
    *,
    share_ids: ShareIds = new_share_id,
) -> Outcomes:
    """`allocate` on every node of the cluster. Equivalent nodes are decided once."""
    return _Attempt(cluster, claims, features or Features(), share_ids, None).outcomes()


def equivalent_nodes(cluster: Cluster, claims: Sequence[ResourceClaim], features: Features) -> list[tuple[str, ...]]:
    """Groups of nodes that are equivalent for these claims, and for any number of copies of them, by their names."""
    attempt = _Attempt(cluster, claims, features, new_share_id, None)
    return [tuple(node.name for node in group) for group in attempt.groups()]


class _Attempt:
    """One set of claims, to be allocated on one or many nodes."""

    def __init__(
        self,
        cluster: Cluster,
        claims: Sequence[ResourceClaim],
        features: Features,
        share_ids: ShareIds,
        limit: int | None,
    ) -> None:
        self._cluster = cluster
        self._claims = claims
        self._features = features
        self._survey = cluster.survey(features)
        self._verdicts = cluster.verdicts(features)
        self._share_ids = share_ids
        self._limit = limit

    def decide(self, node: Node, observer: Recorder | None = None) -> Decision:
        """The solution, None if there is no solution, or the error that ended the search."""
        try:
            view = self._survey.view(node)
            if observer is not None:
                observer.view = view
                observer.skipped += [pool for pool in view.pools if pool.state is not PoolState.COMPLETE]
            options = CandidateOptions(
                view, self._survey, self._cluster.class_by_name, self._features, self._verdicts, observer
            )
            found = [options.of_claim(index, claim) for index, claim in enumerate(self._claims)]
            if observer is None and lack_candidates(found):
                return None
            problem = search_problem(view, self._survey, found, self._features)
            return Search(problem, self._features, observer, self._limit).run()
        except AllocationError as failure:
            return failure

    def outcome(self, node: Node, decision: Decision) -> NodeOutcome:
        """The decision as an outcome with AllocationResults."""
        if isinstance(decision, AllocationError):
            return _failed(node, decision)
        view = self._survey.view(node)
        if decision is None:
            return _without_solution(view)
        try:
            results = allocations(self._claims, decision, view, self._features, self._share_ids)
        except AllocationError as failure:
            return _failed(node, failure)
        return NodeOutcome(node.name, ALLOCATED, results)

    def outcomes(self) -> Outcomes:
        """The outcomes of all nodes."""
        decisions: dict[str, Decision] = {}
        groups: list[Group] = []
        for nodes in self.groups():
            first = nodes[0]
            decision = decisions[first.name] = self.decide(first)
            groups.append(Group(self.outcome(first, decision), tuple(node.name for node in nodes)))

        def write(name: str, group: Group) -> NodeOutcome:
            node = self._cluster.node_by_name[name]
            decision = decisions[group.nodes[0]]
            # An error names devices of its node.
            return self.outcome(node, self.decide(node) if isinstance(decision, AllocationError) else decision)

        return Outcomes(tuple(node.name for node in self._cluster.nodes), groups, write)

    def groups(self) -> Sequence[Sequence[Node]]:
        """The nodes that are equivalent for the claims."""
        reads = claim_reads(self._cluster, self._claims, self._features)
        return self._cluster.equivalence(self._features).groups(reads)


def claim_reads(cluster: Cluster, claims: Sequence[ResourceClaim], features: Features) -> ClaimReads:
    """The properties of devices that decide about claims. Nodes that agree in them are equivalent for the claims."""
    reads = Reads()
    capacities = False
    verdicts = cluster.verdicts(features)
    for required in (required for claim in claims for _, required in claim.spec.requirements):
        device_class = cluster.class_by_name.get(required.device_class_name)
        if device_class is not None:
            reads |= verdicts.of(Selectors(device_class.selectors, required.selectors)).reads
        for derived in required.derived_attributes if features.derived_attributes else ():
            with contextlib.suppress(CompileError):
                reads |= compile_derived(derived.expression, features).reads
        capacities = capacities or bool(required.capacity_requests)
    compared = (
        constraint.match_attribute or constraint.distinct_attribute
        for claim in claims
        for constraint in claim.spec.constraints
    )
    return ClaimReads(reads, frozenset(attribute for attribute in compared if attribute), capacities)


def _failed(node: Node, failure: AllocationError) -> NodeOutcome:
    return NodeOutcome(node.name, ERROR, (), failure.kind, failure.fatal, failure.message, failure.reason)


def _without_solution(view: NodeView) -> NodeOutcome:
    """The outcome without a solution: an error if the node sees any invalid pool, even an unrelated one."""
    invalid = [pool for pool in view.pools if pool.state is PoolState.INVALID]
    if not invalid:
        return NodeOutcome(view.node.name, UNAVAILABLE)
    pools = "; ".join(f"{pool.driver}/{pool.name}: {pool.reason}" for pool in invalid)
    text = f"the claims do not fit, and node {view.node.name} sees invalid pools: {pools}"
    reason = "invalid resource pools were encountered"
    return NodeOutcome(view.node.name, ERROR, (), ErrorKind.INVALID_POOLS, False, text, reason)
