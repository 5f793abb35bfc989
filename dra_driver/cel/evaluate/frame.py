# SPDX-License-Identifier: Apache-2.0
"""The state of one evaluation: the device it looks at, local variables, and the cost so far.

The device is read in place. Its two-level maps are only built for an expression that uses one as a value; has(), `in`
and optional selection look up single names in the device. Quantities are made when first read and kept, since
comparing and adding change them. Follows `DeviceMatches` of k8s.io/dynamic-resource-allocation `cel/compile.go`."""

from collections.abc import Iterator
from typing import Final, NoReturn

from ...resource import AttributeList, Device, DeviceCapacity, MalformedAttribute, Version
from ..errors import Abort, ErrorValue
from ..library.quantity import QuantityValue, quantity_of
from ..library.semver import parse_semver
from ..library.values import NOT_FOUND, DomainMap, Found, MapValue, TextMap

PLAIN: Final = frozenset((str, bool, int))
"""Classes of attribute values that are CEL values as they are."""

_LISTS: Final = ("ints", "bools", "strings", "versions")
_SCALARS: Final = ("int", "bool", "string", "version")
_WRAP: Final = 1 << 64
_NO_DEVICE: Final = Device("")

COST_LIMIT: Final = 1_000_000
"""The cost that kube-apiserver accepts at most as an estimate, and that an evaluation may reach."""

_MOST_SOUND: Final = 8192
_SOUND: Final[dict[int, object]] = {}
"""Attributes, by identity, that are known to be fine in every environment: they do not change."""


class Frame:
    """One evaluation. `slots` are its local variables, `limit` is what it may cost, `lists`: attributes may be."""

    # Most evaluations leave these as they are, and are faster for not setting them.
    limit = COST_LIMIT
    lists = False
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
        """For what reads no variables: costs nothing and has no limit."""
        frame = Frame("", _NO_DEVICE)
        frame.limit = _WRAP
        return frame

    def charge(self, amount: int) -> None:
        """Add to the cost. Raises Abort when that exceeds the limit. A negative cost wraps around, as in Go."""
        self.cost += amount
        if self.cost < 0:
            self.cost += _WRAP
        if self.cost > self.limit:
            raise Abort("cost_limit", f"the evaluation costs more than {self.limit}")

    def out_of_budget(self) -> NoReturn:
        """End an evaluation whose cost, counted in steps of one, went over the limit."""
        self.cost = self.limit + 1
        raise Abort("cost_limit", f"the evaluation costs more than {self.limit}")

    def check_attributes(self) -> None:
        """Raise ErrorValue if the device cannot be evaluated at all, whatever the expression reads."""
        attributes = self.device.attributes
        if _SOUND.get(id(attributes)) is attributes:
            return
        sound = True
        for name, value in attributes.items():
            if value.__class__ not in PLAIN:
                sound = sound and value.__class__ is Version
                try:
                    self.converted(value)
                except ErrorValue as fault:
                    raise ErrorValue("device_attribute", f"attribute {name}: {fault.message}") from None
        if sound:
            if len(_SOUND) >= _MOST_SOUND:
                _SOUND.clear()
            _SOUND[id(attributes)] = attributes

    def converted(self, value: object) -> object:
        """The CEL value of an attribute. Raises ErrorValue when there is none."""
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
        """The field that Kubernetes reads of an attribute with none or several."""
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

    def capacity(self, domain: str, qualified: str, plain: str | None) -> QuantityValue | None:
        """A capacity's quantity, if the device has it.

        `qualified` is its published name with the domain, `plain` the one without, where there can be one.
        """
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

    @property
    def attributes(self) -> DomainMap:
        """device.attributes"""
        if self._attributes is None:
            named = {name: self.converted(value) for name, value in self.device.attributes.items()}
            self._attributes = self._by_domain(named)
        return self._attributes

    @property
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
        """The device itself, as a value."""
        fields: dict[str, object] = {"driver": self.driver, "attributes": self.attributes, "capacity": self.capacities}
        if multiple_allocations:
            fields["allowMultipleAllocations"] = self.device.allow_multiple_allocations
        return TextMap(fields)


def no_such_key(key: object, offset: int | None = None) -> ErrorValue:
    """The fault of looking up what a map does not have."""
    return ErrorValue("no_such_key", f"no such key: {key}", offset)


class _Domain(MapValue):
    __slots__ = ("_domain", "_frame")

    def __init__(self, frame: Frame, domain: str) -> None:
        self._frame = frame
        self._domain = domain

    def _built(self) -> MapValue:
        raise NotImplementedError

    def keys(self) -> Iterator[object]:
        return self._built().keys()

    def items(self) -> Iterator[tuple[object, object]]:
        return self._built().items()

    def __len__(self) -> int:
        return len(self._built())

    def _names(self, key: str) -> tuple[str, str | None]:
        """The name with its domain, and the one without, where there can be one."""
        return f"{self._domain}/{key}", None if "/" in key or self._domain != self._frame.driver else key


class AttributeDomain(_Domain):
    """device.attributes[domain]"""

    __slots__ = ()

    def find(self, key: object) -> Found:
        if not isinstance(key, str):
            return NOT_FOUND
        qualified, plain = self._names(key)
        attributes = self._frame.device.attributes
        value = attributes.get(plain) if plain is not None else None
        if value is None:
            value = attributes.get(qualified)
        return NOT_FOUND if value is None else (True, self._frame.converted(value))

    def _built(self) -> MapValue:
        return self._frame.attributes.domain(self._domain)


class CapacityDomain(_Domain):
    """device.capacity[domain]"""

    __slots__ = ()

    def find(self, key: object) -> Found:
        if not isinstance(key, str):
            return NOT_FOUND
        quantity = self._frame.capacity(self._domain, *self._names(key))
        return NOT_FOUND if quantity is None else (True, quantity)

    def _built(self) -> MapValue:
        return self._frame.capacities.domain(self._domain)
