# SPDX-License-Identifier: Apache-2.0
"""A solution as the AllocationResults that the scheduler writes.

Order of results, of configuration entries and of node selector requirements follows Kubernetes'
structured allocator.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..resource import (
    AllocatedConfiguration,
    AllocatedDevice,
    AllocationResult,
    Device,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ResourceClaim,
    ResourceSlice,
)
from .features import Features, Variant
from .nodes import NODE_NAME_FIELD
from .option import Option
from .outcome import AllocationError, ErrorKind
from .search import Pick, Solution
from .survey import NodeView

FROM_CLASS = "FromClass"
FROM_CLAIM = "FromClaim"

ShareIds = Callable[[], str]
"""Makes the id of a new share: a UUID."""


def allocations(
    claims: Sequence[ResourceClaim], solution: Solution, view: NodeView, features: Features, share_ids: ShareIds
) -> tuple[AllocationResult, ...]:
    """What the solution gives to each claim. AllocationError when it cannot be written down."""
    return tuple(
        AllocationResult(
            tuple(_result(pick, view, features, share_ids) for pick in picks),
            tuple(_configuration(claim, options, features)),
            _node_selector(claim, picks, view, features),
        )
        for claim, options, picks in zip(claims, solution.options, solution.picks, strict=True)
    )


def _result(pick: Pick, view: NodeView, features: Features, share_ids: ShareIds) -> AllocatedDevice:
    pool, device = view.device(pick.device)
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
    )


def _configuration(
    claim: ResourceClaim, used: Sequence[Option], features: Features
) -> Iterator[AllocatedConfiguration]:
    by_class: dict[str, list[str]] = {}
    for option in used:
        by_class.setdefault(option.device_class.metadata.name, []).append(option.slot.request)
    classes = {option.device_class.metadata.name: option.device_class for option in used}
    for name, requests in by_class.items():
        for opaque in classes[name].config:
            yield AllocatedConfiguration(FROM_CLASS, tuple(requests), opaque)
    for config in claim.spec.config:
        entry = AllocatedConfiguration(FROM_CLAIM, config.requests, config.opaque)
        if not config.requests:
            yield entry
            continue
        times = sum(not {option.request, option.slot.request}.isdisjoint(config.requests) for option in used)
        for _ in range(times if features.quirks.config_repeats else min(times, 1)):
            yield entry


def _node_selector(
    claim: ResourceClaim, picks: Sequence[Pick], view: NodeView, features: Features
) -> NodeSelector | None:
    """Where the claim can be used: on this node only, or where all devices can be reached."""
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
