# SPDX-License-Identifier: Apache-2.0
"""Paths into the device with constant keys, the usual ones, read straight from the device.

`device.attributes['gpu.nvidia.com'].profile` looks up one published name and builds nothing. It costs
what the general path costs.
"""

import functools
from .frame import Frame
from .paths import Key, Path, Run, Step


class DevicePath(Path):
    """The device variable and the constant fields behind it."""

    def __init__(self, *, multiple_allocations: bool, keys: tuple[str, ...] = ()) -> None:
        self._multiple_allocations = multiple_allocations
        self._keys = keys

    def extended(self, step: Step) -> Path:
        if len(self._keys) < 3 and isinstance(step, Key) and isinstance(step.key, str) and step.is_plain:
            path = DevicePath(multiple_allocations=self._multiple_allocations, keys=(*self._keys, step.key))
            if path.is_known:
                return path
        return Path(self.resolve, (step,))

    @property
    def is_known(self) -> bool:
        """Whether it is one of the paths that are read directly."""
        match self._keys:
            case () | ("driver",) | ("attributes" | "capacity",) | ("attributes" | "capacity", _):
                return True
            case ("attributes" | "capacity", domain, _):
                return "/" not in domain  # what a published name has before its first slash; a driver may have more
            case ("allowMultipleAllocations",):
                return self._multiple_allocations
        return False

    @functools.cached_property
    def resolve(self) -> Run:
        return _counted(self._read(), len(self._keys))

    @functools.cached_property
    def run(self) -> Run:
        return _counted(self._read(), len(self._keys) + 1)

    def _read(self) -> Run:
        match self._keys:
            case ("driver",):
                return lambda frame: frame.driver
            case ("allowMultipleAllocations",):
                return lambda frame: frame.device.allow_multiple_allocations
            case ("attributes",):
                return lambda frame: frame.attributes
            case ("capacity",):
                return lambda frame: frame.capacities
            case ("attributes", domain):
                return lambda frame: frame.attribute_domain(domain)
            case ("capacity", domain):
                return lambda frame: frame.capacity_domain(domain)
            case (field, domain, identifier):
                return _reader(field, domain, identifier)
        multiple = self._multiple_allocations
        return lambda frame: frame.device_map(multiple_allocations=multiple)


def _reader(field: str, domain: str, identifier: str) -> Run:
    plain = None if "/" in identifier else identifier
    qualified = f"{domain}/{identifier}"
    if field == "attributes":
        return lambda frame: frame.attribute(domain, identifier, qualified, plain)
    return lambda frame: frame.capacity(domain, identifier, qualified, plain)


def _counted(read: Run, cost: int) -> Run:
    def run(frame: Frame) -> object:
        frame.cost = total = frame.cost + cost
        if total > frame.limit:
            frame.out_of_budget()
        return read(frame)

    return run
