# SPDX-License-Identifier: Apache-2.0
"""The state of one evaluation: the device, the local variables, and the cost so far.

has(), `in` and selections look up single names in the device. The maps of its attributes and capacities are only built
for an expression that uses such a map as a value. The value of a quantity is created once for each evaluation, because
comparisons and additions change it. Follows `DeviceMatches` of k8s.io/dynamic-resource-allocation `cel/compile.go`.
"""

from collections.abc import Callable, Iterator
from typing import Final

from ....kube.resource import AttributeList, Device, DeviceCapacity, MalformedAttribute, Version
from ..closures import WRAP, CostCounter
from ..errors import ErrorValue
from ..library.quantity import QuantityValue, quantity_of
from ..library.semver import parse_semver
from ..library.values import NOT_FOUND, DomainMap, Found, MapValue, TextMap

PLAIN: Final = frozenset((str, bool, int))
"""Classes of attribute values that need no conversion to CEL values."""

_LISTS: Final = ("ints", "bools", "strings", "versions")
_SCALARS: Final = ("int", "bool", "string", "version")
_NO_DEVICE: Final = Device("")

_MOST_CHECKED: Final = 8192
_CHECKED: Final[dict[int, object]] = {}
"""Attributes, by identity, that can be evaluated in every environment. They are immutable."""


class Frame(CostCounter):
    """One evaluation.

    `slots` are its local variables, and `lists` allows lists as attributes.
    `converts_optionals` as in `Environment`.
    """

    # Attributes of the class make most evaluations faster, because they need not set them.
    lists = False
    converts_optionals = False
    slots: list[object]
    _quantities: dict[str, QuantityValue] | None = None
    _attributes: DomainMap | None = None
    _capacity: DomainMap | None = None

    def __init__(self, driver: str, device: Device) -> None:
        self.driver = driver
        self.device = device
        self.cost = 0

    @staticmethod
    def without_device() -> "Frame":
        """A frame without a limit, for expressions that read no variables."""
        frame = Frame("", _NO_DEVICE)
        frame.limit = WRAP
        return frame

    def check_attributes(self) -> None:
        """Raises ErrorValue if an attribute has no CEL value, also if the expression does not read the attribute."""
        attributes = self.device.attributes
        if _CHECKED.get(id(attributes)) is attributes:
            return
        valid = True
        for name, value in attributes.items():
            if value.__class__ not in PLAIN:
                valid = valid and value.__class__ is Version
                try:
                    self.converted(value)
                except ErrorValue as error:
                    raise ErrorValue("device_attribute", f"attribute {name}: {error.message}") from None
        if valid:
            if len(_CHECKED) >= _MOST_CHECKED:
                _CHECKED.clear()
            _CHECKED[id(attributes)] = attributes

    def converted(self, value: object) -> object:
        """The CEL value of an attribute. Raises ErrorValue if it has none."""
        if value.__class__ in PLAIN:
            return value
        if isinstance(value, Version):
            return parse_semver(value.text)
        if isinstance(value, AttributeList):
            return self._list(value.kind, value.items)
        if isinstance(value, MalformedAttribute):
            return self._first_field(value)
        raise ErrorValue("device_attribute", "unsupported attribute value")

    def _first_field(self, value: MalformedAttribute) -> object:
        """The field that Kubernetes reads of an attribute that does not have exactly one."""
        if self.lists:
            for kind in _LISTS:
                items = value.fields.get(kind)
                if isinstance(items, list):
                    return self._list(kind, tuple(items))
        for kind in _SCALARS:
            field = value.fields.get(kind)
            if kind == "version" and isinstance(field, str):
                return parse_semver(field)
            if field is not None:
                return field
        raise ErrorValue("device_attribute", "unsupported attribute value")

    def _list(self, kind: str, items: tuple[object, ...]) -> list[object]:
        if not self.lists:
            raise ErrorValue(
                "device_attribute", "unsupported attribute value: a list, with DRAListTypeAttributes disabled"
            )
        if kind == "versions":
            return [parse_semver(str(item)) for item in items]
        return list(items)

    def attribute(self, domain: str, qualified: str, plain: str | None) -> object:
        """The value of an attribute, None if the device does not have it.

        `qualified` is its name with the domain. `plain` is its name without the domain, None if it must have a domain.
        """
        published = self.device.attributes
        value = published.get(plain) if plain is not None and self.driver == domain else None
        if value is None:
            value = published.get(qualified)
        return None if value is None else self.converted(value)

    def capacity(self, domain: str, qualified: str, plain: str | None) -> QuantityValue | None:
        """The quantity of a capacity, None if the device does not have it. The names are those of `attribute`."""
        published = self.device.capacity
        if plain is not None and self.driver == domain and plain in published:
            return self._quantity(plain, published[plain])
        capacity = published.get(qualified)
        return None if capacity is None else self._quantity(qualified, capacity)

    def _quantity(self, name: str, capacity: DeviceCapacity) -> QuantityValue:
        known = self._quantities
        if known is None:
            known = self._quantities = {}
        value = known.get(name)
        if value is None:
            value = known[name] = quantity_of(capacity.value)
        return value

    def attributes(self) -> DomainMap:
        """device.attributes"""
        if self._attributes is None:
            named = {name: self.converted(value) for name, value in self.device.attributes.items()}
            self._attributes = self._by_domain(named)
        return self._attributes

    def capacities(self) -> DomainMap:
        """device.capacity"""
        if self._capacity is None:
            named = {name: self._quantity(name, value) for name, value in self.device.capacity.items()}
            self._capacity = self._by_domain(named)
        return self._capacity

    def _by_domain(self, named: dict[str, object] | dict[str, QuantityValue]) -> DomainMap:
        domains: dict[str, dict[str, object]] = {}
        for name, value in named.items():
            domain, slash, identifier = name.partition("/")
            if not slash:
                domain, identifier = self.driver, name
            domains.setdefault(domain, {})[identifier] = value
        return DomainMap({domain: TextMap(entries) for domain, entries in domains.items()})

    def device_map(self, *, multiple_allocations: bool) -> TextMap:
        """The device as a value."""
        fields: dict[str, object] = {
            "driver": self.driver,
            "attributes": self.attributes(),
            "capacity": self.capacities(),
        }
        if multiple_allocations:
            fields["allowMultipleAllocations"] = self.device.allow_multiple_allocations
        return TextMap(fields)


def no_such_key(key: object, offset: int | None = None) -> ErrorValue:
    """The error of a lookup in a map that does not have the key."""
    return ErrorValue("no_such_key", f"no such key: {key}", offset)


class Domain(MapValue):
    """The attributes or capacities of one domain, looked up in the device. `maps` has those of all domains."""

    __slots__ = ("_frame", "_look_up", "_maps", "_name")

    def __init__(
        self,
        frame: Frame,
        name: str,
        look_up: Callable[[Frame, str, str, str | None], object],
        maps: Callable[[Frame], DomainMap],
    ) -> None:
        self._frame = frame
        self._name = name
        self._look_up = look_up
        self._maps = maps

    def find(self, key: object) -> Found:
        if not isinstance(key, str):
            return NOT_FOUND
        name = self._name
        value = self._look_up(self._frame, name, f"{name}/{key}", None if "/" in key else key)
        return NOT_FOUND if value is None else (True, value)

    def items(self) -> Iterator[tuple[object, object]]:
        return self._maps(self._frame).domain(self._name).items()

    def __len__(self) -> int:
        return len(self._maps(self._frame).domain(self._name))
