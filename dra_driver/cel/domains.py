# SPDX-License-Identifier: Apache-2.0
"""What a device publishes in one domain, as a CEL map that is looked up in the device itself.

has(), `in` and optional selection ask for single names; only size(), macros and comparisons take the map as a
whole, and then it is built.
"""

from collections.abc import Iterator

from .frame import Frame
from .maps import NOT_FOUND, Found, MapValue


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
