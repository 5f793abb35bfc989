# SPDX-License-Identifier: Apache-2.0
"""Finds nodes with the same search problem, so that the problem is solved once.

Two nodes are equivalent for some claims if their pools agree, device by device, in everything that the search reads:
the values that expressions read are equal, the attributes that constraints compare form the same pattern, and the
properties that every claim depends on (counters, taints, use, ...) are the same. Names and other attributes may differ.
The keys of each pool are computed once and kept.
"""

import copy
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ...errors import NodeSelectorError
from ...kube.resource import AttributeValue, Node
from ..cel import Reads
from .constraints import find_attribute
from .features import Features
from .nodes import is_at
from .outcome import AllocationError
from .pools import PoolKey, PoolView, capacity_column, capacity_facts, distinguishable, keys_of, read_values
from .survey import NodeView, Survey

_ABSENT = -1

Aspect = tuple[str, ...]
"""A property in which nodes may differ: the basics, an attribute, a capacity, or an attribute of a constraint."""

_BASICS: Final[Aspect] = ("basics",)
_CAPACITIES: Final[Aspect] = ("capacities",)
_EVERYTHING: Final[Aspect] = ("everything",)
_ALL: Final = Reads(everything=True)


@dataclass(frozen=True, slots=True)
class ClaimReads:
    """The properties of devices that a set of claims reads, besides the basics that every claim depends on."""

    reads: Reads
    """The attributes and capacities that the expressions read."""
    compared: frozenset[str]
    """The attributes of the constraints."""
    capacities: bool
    """Whether capacity is requested."""

    @property
    def aspects(self) -> Iterator[Aspect]:
        """The aspects that affect the claims."""
        yield _BASICS
        if self.reads.everything:
            yield _EVERYTHING
        yield from (("attribute", *name) for name in sorted(self.reads.attributes))
        yield from (("capacity", *name) for name in sorted(self.reads.capacities))
        if self.capacities:
            yield _CAPACITIES
        yield from (("compared", name) for name in sorted(self.compared))


class NodeEquivalence:
    """Groups the nodes of a survey. Each node has a number for each aspect. Nodes with equal numbers are equivalent."""

    def __init__(self, survey: Survey, nodes: Sequence[Node], features: Features) -> None:
        self._survey = survey
        self._nodes = nodes
        self._features = features
        self._ids: dict[Hashable, int] = {}
        self._facts: dict[PoolView, int] = {}
        self._basic: dict[PoolView, int] = {}
        self._columns: dict[tuple[PoolView, str], int] = {}
        self._numbers: dict[Aspect, list[int]] = {}
        self._groups: dict[ClaimReads, list[list[Node]]] = {}

    def after(self, survey: Survey, touched: Collection[PoolKey]) -> "NodeEquivalence":
        """The groups under a survey that differs only in the use of the pools `touched`.

        Numbers represent values, so both objects can share them. Only nodes that see a touched pool get new numbers.
        """
        seeing = sorted({index for key in touched for index in self._seeing.get(key, ())})
        after = copy.copy(self)
        after._survey = survey
        after._basic = {pool: number for pool, number in self._basic.items() if pool.key not in touched}
        after._numbers = dict(self._numbers)
        after._groups = {}
        if _BASICS in self._numbers:
            numbers = after._numbers[_BASICS] = list(self._numbers[_BASICS])
            for index in seeing:
                numbers[index] = after._number(index, _BASICS)
        return after

    def groups(self, claim_reads: ClaimReads) -> Sequence[Sequence[Node]]:
        """Groups of equivalent nodes, in the order of their first nodes."""
        if claim_reads not in self._groups:
            groups: dict[Hashable, list[Node]] = {}
            keys = zip(*[self._numbers_in(aspect) for aspect in claim_reads.aspects], strict=True)
            for node, key in zip(self._nodes, keys, strict=True):
                groups.setdefault(key, []).append(node)
            self._groups[claim_reads] = list(groups.values())
        return self._groups[claim_reads]

    @cached_property
    def _views(self) -> Sequence[NodeView | None]:
        """The view of each node, or None if a node selector is invalid. The decision for the node reports the error."""
        return [self._view(node) for node in self._nodes]

    def _view(self, node: Node) -> NodeView | None:
        try:
            return self._survey.view(node)
        except AllocationError:
            return None

    @cached_property
    def _seeing(self) -> Mapping[PoolKey, Sequence[int]]:
        """The nodes, by their indexes, that see each pool."""
        seeing: dict[PoolKey, list[int]] = defaultdict(list)
        for index, view in enumerate(self._views):
            for pool in view.pools if view is not None else ():
                seeing[pool.key].append(index)
        return seeing

    def _numbers_in(self, aspect: Aspect) -> list[int]:
        """Each node's number in the aspect."""
        if aspect not in self._numbers:
            self._numbers[aspect] = [self._number(index, aspect) for index in range(len(self._nodes))]
        return self._numbers[aspect]

    def _number(self, index: int, aspect: Aspect) -> int:
        view = self._views[index]
        return self._id(("broken", self._nodes[index].name) if view is None else tuple(self._values(view, aspect)))

    def _values(self, view: NodeView, aspect: Aspect) -> Iterator[Hashable]:
        pools = view.pools
        match aspect:
            case ("basics",):
                yield from [self._basics(pool) for pool in pools]
                if len(pools) > 1:
                    yield _pattern([pool.name for pool in pools])
                yield from (tuple(_matches(pool, view.node)) for pool in pools if pool.places)
            case ("attribute", domain, identifier):
                yield from [
                    self._column(pool, key) for pool in pools for key in keys_of(domain, identifier, pool.driver)
                ]
            case ("capacity", domain, identifier):
                yield from [
                    tuple(capacity_column(pool.devices, key))
                    for pool in pools
                    for key in keys_of(domain, identifier, pool.driver)
                ]
            case ("capacities",):
                yield from [capacity_facts(device) for pool in pools for device in pool.devices]
            case ("everything",):
                yield from [tuple(read_values(pool, _ALL)) for pool in pools]
            case ("compared", attribute):
                yield self._compared(pools, attribute)

    def _id(self, value: Hashable) -> int:
        return self._ids.setdefault(value, len(self._ids))

    def _basics(self, pool: PoolView) -> int:
        """A number for the properties of a pool that every claim depends on."""
        if pool not in self._basic:
            if pool not in self._facts:
                self._facts[pool] = self._id(pool.facts)
            self._basic[pool] = self._id((self._facts[pool], *self._use(pool)))
        return self._basic[pool]

    def _use(self, pool: PoolView) -> Iterator[Hashable]:
        usage = self._survey.usage(pool.key)
        yield from pool.available(usage).items()
        if usage.whole or usage.shared:
            for device in pool.devices:
                name = device.name
                consumed = usage.consumed.get(name)
                amounts = (tuple(sorted(consumed.items())), capacity_facts(device)) if consumed else None
                yield name in usage.whole, name in usage.shared, amounts

    def _column(self, pool: PoolView, key: str) -> int:
        """A number for the values of one attribute."""
        if key not in pool.attribute_keys:
            return _ABSENT
        number = self._columns.get((pool, key))
        if number is None:
            number = self._columns[pool, key] = self._id(tuple(pool.attribute_column(key)))
        return number

    def _compared(self, pools: Iterable[PoolView], attribute: str) -> Hashable:
        """The pattern of equal values of the attribute, or the values themselves if some are lists."""
        values: list[AttributeValue | None] = []
        odd = False
        for pool in pools:
            odd = odd or bool(pool.odd_devices)
            values.extend(find_attribute(device, pool.driver, attribute) for device in pool.devices)
        return tuple(distinguishable(values)) if odd else _pattern(distinguishable(values))


def _pattern(values: Iterable[Hashable]) -> Hashable:
    """Replaces each value by the number of its first occurrence. None stays None."""
    numbers: dict[Hashable, int | None] = {None: None}
    return tuple([numbers.setdefault(value, len(numbers)) for value in values])


def _matches(pool: PoolView, node: Node) -> Iterator[bool | None]:
    """Whether the node can reach each device that has its own node selector. None if the selector is invalid."""
    for where in pool.places.values():
        try:
            yield is_at(where, node)
        except NodeSelectorError:
            yield None
