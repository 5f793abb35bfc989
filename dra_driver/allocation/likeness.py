# SPDX-License-Identifier: Apache-2.0
"""Which nodes pose the same problem, so that it is solved once.

Two nodes are alike for some claims when their pools, device by device, agree in everything that the
search looks at: values that expressions read are equal, attributes that constraints compare form the
same pattern, and what counts for every claim (counters, taints, use, ...) is the same. Names and other
attributes may differ. Keys are made for each pool once and kept.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..cel import Reads
from ..resource import AttributeValue, Device, Node, ResourceSlice
from .constraints import find_attribute
from .errors import AllocationError
from .facts import (
    attribute_column,
    capacity_column,
    distinguishable,
    published_keys,
    read_values,
)
from .features import Features
from .nodes import NodeSelectorError, is_at
from .pools import PoolView
from .survey import NodeView, Survey

_ABSENT = -1


@dataclass(frozen=True, slots=True)
class Concern:
    """What a set of claims looks at, beyond what counts for all."""

    reads: Reads
    """What the expressions read."""
    compared: frozenset[str]
    """The attributes of the constraints."""
    capacities: bool
    """Whether capacity is requested."""


class Likeness:
    """Groups the nodes of a survey."""

    def __init__(self, survey: Survey, nodes: Sequence[Node], features: Features) -> None:
        self._survey = survey
        self._nodes = nodes
        self._features = features
        self._ids: dict[Hashable, int] = {}
        self._basic: dict[PoolView, int] = {}
        self._columns: dict[tuple[PoolView, str], int] = {}
        self._groups: dict[Concern, list[list[Node]]] = {}

    def prepare(self) -> None:
        """Makes what does not depend on claims, so that the first decision need not."""
        for node in self._nodes:
            try:
                view = self._survey.view(node)
            except AllocationError:
                continue  # as in groups
            for pool in view.pools:
                self._basics(pool)
                for key in pool.attribute_keys:
                    self._column(pool, key)

    def groups(self, concern: Concern) -> Sequence[Sequence[Node]]:
        """All nodes, those that are alike together, in the order of their first ones."""
        if concern not in self._groups:
            groups: dict[Hashable, list[Node]] = {}
            for node in self._nodes:
                groups.setdefault(self._node_key(node, concern), []).append(node)
            self._groups[concern] = list(groups.values())
        return self._groups[concern]

    def _node_key(self, node: Node, concern: Concern) -> Hashable:
        try:
            return self._key(self._survey.view(node), concern)
        except AllocationError:
            return node.name  # what is wrong is told when the node is decided

    def _key(self, view: NodeView, concern: Concern) -> Hashable:
        pools = view.pools
        key: list[Hashable] = [(self._basics(pool), self._values(pool, concern)) for pool in pools]
        if len(pools) > 1:
            key.append(_pattern([pool.name for pool in pools]))
        key.extend(self._id(self._compared(pools, attribute)) for attribute in sorted(concern.compared))
        key.extend(tuple(_matches(pool, view.node)) for pool in pools if pool.places)
        return tuple(key)

    def _id(self, value: Hashable) -> int:
        return self._ids.setdefault(value, len(self._ids))

    def _basics(self, pool: PoolView) -> int:
        """A number for what counts for every claim."""
        if pool not in self._basic:
            self._basic[pool] = self._id(
                (
                    pool.driver,
                    pool.state,
                    tuple([(len(slice_.devices), *_place_form(slice_)) for slice_ in pool.slices]),
                    tuple([self._device_facts(device) for device in pool.devices]),
                    tuple([(index, repr(pool.devices[index].attributes)) for index in sorted(pool.odd_devices)]),
                    tuple(self._use(pool)),
                )
            )
        return self._basic[pool]

    def _device_facts(self, device: Device) -> Hashable:
        shared = device.allow_multiple_allocations
        policies = [capacity for capacity in device.capacity.values() if capacity.request_policy is not None]
        return (
            tuple(
                [
                    (taken.counter_set, *taken.counters, *[amount.nanos for amount in taken.counters.values()])
                    for taken in device.consumes_counters
                ]
            ),
            device.taints,
            shared,
            bool(device.binding_conditions),
            device.binds_to_node,
            *_place_form(device),
            repr(device.capacity) if shared or policies else None,
        )

    def _use(self, pool: PoolView) -> Iterator[Hashable]:
        usage = self._survey.usage(pool.key)
        yield from pool.available(usage).items()
        if usage.whole or usage.shared:
            for device in pool.devices:
                name = device.name
                consumed = usage.consumed.get(name)
                yield name in usage.whole, name in usage.shared, consumed and repr((consumed, device.capacity))

    def _values(self, pool: PoolView, concern: Concern) -> Hashable:
        """Numbers for what the claims read."""
        if concern.reads.everything:
            return self._id(tuple(read_values(pool.devices, pool.driver, concern.reads)))
        numbers = [self._column(pool, key) for key in published_keys(concern.reads.attributes, pool.driver)]
        capacities = published_keys(concern.reads.capacities, pool.driver)
        numbers.extend(self._id(tuple(capacity_column(pool.devices, key))) for key in capacities)
        if concern.capacities:
            numbers.append(self._id(tuple([repr(device.capacity) for device in pool.devices])))
        return tuple(numbers)

    def _column(self, pool: PoolView, key: str) -> int:
        """A number for the values of one attribute."""
        if key not in pool.attribute_keys:
            return _ABSENT
        number = self._columns.get((pool, key))
        if number is None:
            number = self._columns[pool, key] = self._id(tuple(attribute_column(pool.devices, key)))
        return number

    def _compared(self, pools: Iterable[PoolView], attribute: str) -> Hashable:
        """Which devices agree in the attribute. Lists may overlap: then the values themselves."""
        values: list[AttributeValue | None] = []
        odd = False
        for pool in pools:
            odd = odd or bool(pool.odd_devices)
            values.extend(find_attribute(device, pool.driver, attribute) for device in pool.devices)
        return tuple(distinguishable(values)) if odd else _pattern(distinguishable(values))


def _pattern(values: Iterable[Hashable]) -> Hashable:
    """Each value as the number of its first occurrence; what is missing stays so."""
    numbers: dict[Hashable, int | None] = {None: None}
    return tuple([numbers.setdefault(value, len(numbers)) for value in values])


def _place_form(where: Device | ResourceSlice) -> tuple[bool, int]:
    """What decides whether an allocation's node selector can be written."""
    return where.node_name is not None, len(where.node_selector.terms) if where.node_selector is not None else 0


def _matches(pool: PoolView, node: Node) -> Iterator[bool | None]:
    """Which devices with places of their own are at the node; None when that cannot be told."""
    for where in pool.places.values():
        try:
            yield is_at(where, node)
        except NodeSelectorError:
            yield None
