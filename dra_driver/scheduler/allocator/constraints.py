# SPDX-License-Identifier: Apache-2.0
"""matchAttribute and distinctAttribute. Picked devices are added to the state of a constraint, and removed from it.

Follows Kubernetes' structured allocator. Defects of it are parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...kube.resource import AttributeList, AttributeValue, Device, MalformedAttribute, Version, attribute_kind

Pair = tuple[str, object]
"""(type, value): values of different types are never equal."""

_SCALAR_KINDS = ("string", "int", "bool", "version")  # precedence in the API's one-of, as constraints read it
_LIST_KINDS = ("ints", "bools", "strings", "versions", "int", "bool", "string", "version")


@dataclass(frozen=True, slots=True)
class Fact:
    """The attribute of a device for a constraint. Two facts agree if one `asks` for a value that the other `holds`.

    Both are empty if the attribute cannot be compared, which is the case for a list if constraints are scalar.
    """

    asks: frozenset[Pair]
    holds: frozenset[Pair]


class MatchAttribute:
    """All devices have a value in common."""

    __slots__ = ("_before", "_common", "_devices", "_lists", "_stays_narrow")

    def __init__(self, *, lists: bool, stays_narrow: bool) -> None:
        self._lists = lists
        self._stays_narrow = stays_narrow
        self._devices = 0
        self._common: frozenset[Pair] = frozenset()
        self._before: list[frozenset[Pair]] = []

    def add(self, request: str, fact: Fact) -> bool:
        if self._devices == 0:
            if self._lists and not fact.holds:
                return False
            common = fact.holds
        else:
            common = fact.asks & self._common
            if not common:
                return False
            if not self._lists:
                common = self._common
        self._before.append(self._common)
        self._common = common
        self._devices += 1
        return True

    def remove(self, request: str) -> None:
        self._devices -= 1
        before = self._before.pop()
        if not self._stays_narrow:
            self._common = before


class DistinctAttribute:
    """No two devices have a value in common."""

    __slots__ = ("_devices", "_forgets", "_lists", "_values")

    def __init__(self, *, lists: bool, forgets: bool) -> None:
        self._lists = lists
        self._forgets = forgets
        self._devices = 0
        self._values: dict[str, list[Fact]] = {}

    def add(self, request: str, fact: Fact) -> bool:
        if self._devices and not self._differs(fact):
            return False
        if self._forgets:
            self._values[request] = [fact]
        else:
            self._values.setdefault(request, []).append(fact)
        self._devices += 1
        return True

    def _differs(self, fact: Fact) -> bool:
        if not fact.asks and (self._lists or any(self._values.values())):
            return False
        return all(fact.asks.isdisjoint(other.holds) for facts in self._values.values() for other in facts)

    def remove(self, request: str) -> None:
        self._devices -= 1
        if self._forgets:
            self._values.pop(request, None)
        else:
            self._values[request].pop()


Constraint = MatchAttribute | DistinctAttribute
"""A condition that the devices of a claim must meet together.

`request` is the name of the request, without the alternative. `add` adds the device if
the condition still holds then. When a pick is undone, its device is removed, in reverse order.
"""


def find_attribute(device: Device, driver: str, attribute: str) -> AttributeValue | None:
    """The value of a fully qualified attribute. The driver's own may be published without its domain."""
    value = device.attributes.get(attribute)
    if value is None:
        domain, _, identifier = attribute.partition("/")
        if domain == driver:
            return device.attributes.get(identifier)
    return value


def fact_of(device: Device, driver: str, attribute: str, *, lists: bool) -> Fact | None:
    """The fact about a device for a constraint on `attribute`. None if the device does not have the attribute."""
    value = find_attribute(device, driver, attribute)
    return None if value is None else fact_of_value(value, lists=lists)


def fact_of_value(value: AttributeValue, *, lists: bool) -> Fact:
    """The fact for the value of an attribute."""
    return _list_fact(value) if lists else _scalar_fact(value)


def _scalar_fact(value: AttributeValue) -> Fact:
    fields = _fields(value)
    pairs = [(kind, fields[kind]) for kind in _SCALAR_KINDS if kind in fields]
    return Fact(frozenset(pairs[:1]), frozenset(pairs))


def _list_fact(value: AttributeValue) -> Fact:
    fields = _fields(value)
    for kind in _LIST_KINDS:
        content = fields.get(kind)
        if isinstance(content, tuple | list):
            values = frozenset((kind.removesuffix("s"), item) for item in content)
        elif content is not None:
            values = frozenset({(kind, content)})
        else:
            continue
        if values:
            return Fact(values, values)
    return Fact(frozenset(), frozenset())


def _fields(value: AttributeValue) -> Mapping[str, object]:
    """The attribute in its JSON form."""
    if isinstance(value, MalformedAttribute):
        return value.fields
    if isinstance(value, AttributeList):
        return {value.kind: tuple(item.text if isinstance(item, Version) else item for item in value.items)}
    return {attribute_kind(value): value.text if isinstance(value, Version) else value}
