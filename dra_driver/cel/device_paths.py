# SPDX-License-Identifier: Apache-2.0
"""Paths into the device with constant keys, the usual ones, read straight from the device.

`device.attributes['gpu.nvidia.com'].profile` looks up one published name and builds nothing. It costs
what the general path costs.
"""

import functools

from .domains import AttributeDomain, CapacityDomain
from .frame import PLAIN, Frame, no_such_key
from .paths import Key, Path, Run, Step


class DevicePath(Path):
    """The device variable and the constant fields behind it. `offset` is the place of the last one."""

    def __init__(self, *, multiple_allocations: bool, keys: tuple[str, ...] = (), offset: int = 0) -> None:
        self._multiple_allocations = multiple_allocations
        self._keys = keys
        self._offset = offset

    def extended(self, step: Step) -> Path:
        if len(self._keys) < 3 and isinstance(step, Key) and isinstance(step.key, str) and step.is_plain:
            path = DevicePath(
                multiple_allocations=self._multiple_allocations, keys=(*self._keys, step.key), offset=step.offset
            )
            if path.is_known:
                return path
        return Path(self.resolve, (step,))

    @property
    def is_known(self) -> bool:
        """Whether it is one of the paths that are read directly."""
        match self._keys:
            case () | ("driver",) | ("attributes" | "capacity",):
                return True
            case ("attributes" | "capacity", domain) | ("attributes" | "capacity", domain, _):
                return "/" not in domain  # what a published name has before its first slash; a driver may have more
            case ("allowMultipleAllocations",):
                return self._multiple_allocations
        return False

    @functools.cached_property
    def resolve(self) -> Run:
        return self._read(len(self._keys))

    @functools.cached_property
    def run(self) -> Run:
        return self._read(len(self._keys) + 1)

    def _read(self, cost: int) -> Run:
        match self._keys:
            case ("driver",):
                return _driver(cost)
            case ("attributes", domain, identifier):
                return _attribute(domain, identifier, self._offset, cost)
            case ("capacity", domain, identifier):
                return _counted(_capacity(domain, identifier, self._offset), cost)
            case ("attributes", domain):
                return _counted(lambda frame: AttributeDomain(frame, domain), cost)
            case ("capacity", domain):
                return _counted(lambda frame: CapacityDomain(frame, domain), cost)
            case ("attributes",):
                return _counted(lambda frame: frame.attributes, cost)
            case ("capacity",):
                return _counted(lambda frame: frame.capacities, cost)
            case ("allowMultipleAllocations",):
                return _counted(lambda frame: frame.device.allow_multiple_allocations, cost)
        multiple = self._multiple_allocations
        return _counted(lambda frame: frame.device_map(multiple_allocations=multiple), cost)


def _capacity(domain: str, identifier: str, offset: int) -> Run:
    plain = None if "/" in identifier else identifier
    qualified = f"{domain}/{identifier}"

    def read(frame: Frame) -> object:
        return frame.capacity(domain, qualified, plain) or no_such_key(identifier, offset)

    return read


def _attribute(domain: str, identifier: str, offset: int, cost: int) -> Run:
    """One attribute, in a single step: it is what nearly all expressions read."""
    plain = None if "/" in identifier else identifier
    qualified = f"{domain}/{identifier}"

    def run(frame: Frame) -> object:
        frame.cost = total = frame.cost + cost
        if total > frame.limit:
            frame.out_of_budget()
        attributes = frame.device.attributes
        value = attributes.get(plain) if plain is not None and frame.driver == domain else None
        if value is None:
            value = attributes.get(qualified)
        if value.__class__ in PLAIN:
            return value
        return no_such_key(identifier, offset) if value is None else frame.converted(value)

    return run


def _driver(cost: int) -> Run:
    def run(frame: Frame) -> object:
        frame.cost = total = frame.cost + cost
        if total > frame.limit:
            frame.out_of_budget()
        return frame.driver

    return run


def _counted(read: Run, cost: int) -> Run:
    def run(frame: Frame) -> object:
        frame.cost = total = frame.cost + cost
        if total > frame.limit:
            frame.out_of_budget()
        return read(frame)

    return run
