# SPDX-License-Identifier: Apache-2.0
"""Values of devices as keys that can be compared: what expressions read, and attributes of odd form."""

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import cast

from ..cel import Reads
from ..resource import AttributeValue, Device, DeviceCapacity, Version

_SCALARS = frozenset({str, int, bool})
_HASHED_APART = frozenset({str, Version, type(None)})


def read_values(devices: Sequence[Device], driver: str, reads: Reads) -> list[Hashable]:
    """A key for each device of `driver`: equal keys, equal values of what is read."""
    if reads.everything:
        return [repr((device.attributes, device.capacity)) for device in devices]
    columns = [attribute_column(devices, key) for key in published_keys(reads.attributes, driver)]
    columns += [capacity_column(devices, key) for key in published_keys(reads.capacities, driver)]
    return list(zip(*columns, strict=True)) if columns else [()] * len(devices)


def attribute_column(devices: Sequence[Device], key: str) -> Sequence[Hashable]:
    """The attribute published as `key`, for each device."""
    return distinguishable([device.attributes.get(key) for device in devices])


def capacity_column(devices: Sequence[Device], key: str) -> Sequence[Hashable]:
    """The capacity published as `key`, for each device. Expressions may tell 1Gi from 1073741824."""
    return [_written(device.capacity.get(key)) for device in devices]


def published_keys(names: frozenset[tuple[str, str]], driver: str) -> list[str]:
    """The keys under which devices of `driver` may publish: its own domain can be left out."""
    return [key for domain, identifier in sorted(names) for key in keys_of(domain, identifier, driver)]


@lru_cache(maxsize=4096)
def keys_of(domain: str, identifier: str, driver: str) -> tuple[str, ...]:
    """The keys under which devices of `driver` may publish one attribute or capacity."""
    qualified = f"{domain}/{identifier}"
    return (qualified, identifier) if domain == driver else (qualified,)


def distinguishable(values: Sequence[AttributeValue | None]) -> Sequence[Hashable]:
    """Keys for the values: True is not 1, and lists and malformed attributes have one, too."""
    if _HASHED_APART.issuperset(map(type, values)):
        return cast(Sequence[Hashable], values)
    return [None if value is None else repr(value) for value in values]


def odd_devices(devices: Sequence[Device]) -> frozenset[int]:
    """The indexes of devices with an attribute whose mere presence may make every expression fail.

    Those are lists, attributes with no or several values, and versions that are none.
    """
    return frozenset(
        [
            index
            for index, device in enumerate(devices)
            for value in device.attributes.values()
            if type(value) is not str and _is_odd(value)
        ]
    )


def _is_odd(value: AttributeValue) -> bool:
    if isinstance(value, Version):
        return not _is_strict(value.text)
    return type(value) not in _SCALARS


@lru_cache(maxsize=4096)
def _is_strict(version: str) -> bool:
    return Version(version).is_strict


def _written(capacity: DeviceCapacity | None) -> Hashable:
    return None if capacity is None else (capacity.value.nanos, capacity.value.format)
