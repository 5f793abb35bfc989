# SPDX-License-Identifier: Apache-2.0
"""Variables, and the fields and indices behind them: `device.attributes['gpu.nvidia.com'].?profile`.

Such a path is followed as a whole. It costs one for each step taken and one for itself, except where
it is a branch of `?:` or an index of another path. Follows cel-go's `interpreter/attributes.go`.

Paths into the device with constant keys, the usual ones, are read straight from the device:
`device.attributes['gpu.nvidia.com'].profile` looks up one published name and builds nothing, at the same cost."""

import functools
from collections.abc import Callable, Sequence
from typing import Final

from ..errors import ErrorValue
from ..library.values import NONE, MapValue, OptionalValue, list_index, no_such_overload, type_name, unwrapped
from ..types import Uint
from .frame import PLAIN, AttributeDomain, CapacityDomain, Frame, no_such_key

Run = Callable[[Frame], object]
"""Evaluates a part of an expression: a value or a ErrorValue. Raises Abort."""

_KEYS: Final = frozenset((str, int, Uint, bool, float))


def is_key(value: object) -> bool:
    """Whether a value of this class can stand in brackets after a path."""
    return value.__class__ in _KEYS


class Evaluable:
    """A part of an expression that is ready to be evaluated. `run` costs all that it costs."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        """Evaluate it."""
        return self._run


class Constant(Evaluable):
    """A value known beforehand. It costs nothing. (A ErrorValue, if building a constant list failed.)"""

    def __init__(self, value: object) -> None:
        super().__init__(lambda _: value)
        self.value = value


_ABSENT: Final = object()


class PathStep:
    """One field or index behind a path. `optional` steps, and those after them, give optionals."""

    def __init__(self, offset: int, *, optional: bool) -> None:
        self.offset = offset
        self.optional = optional

    def take(self, frame: Frame, value: object, *, optional: bool) -> object:
        """The value behind the step, or a ErrorValue; _ABSENT if there is none and the step is `optional`."""
        raise NotImplementedError


class Key(PathStep):
    """A step to a constant key. `test`: has() asks whether there is something, not what."""

    def __init__(self, key: object, offset: int, *, optional: bool = False, test: bool = False) -> None:
        super().__init__(offset, optional=optional)
        self.key = key
        self._test = test

    @property
    def is_plain(self) -> bool:
        """Whether it simply leads to what must be there."""
        return not self.optional and not self._test

    def take(self, frame: Frame, value: object, *, optional: bool) -> object:
        result = _look_up(value, self.key, optional=optional or self._test)
        if self._test and result.__class__ is not ErrorValue:
            if not optional:
                result = result is not _ABSENT
            elif result is not _ABSENT:
                result = None
        return _charged(frame, result, optional=optional)


class Index(PathStep):
    """A step to a key that is computed."""

    def __init__(self, index: Run, offset: int, *, optional: bool = False) -> None:
        super().__init__(offset, optional=optional)
        self._index = index

    def take(self, frame: Frame, value: object, *, optional: bool) -> object:
        key = self._index(frame)
        if is_key(key):
            key = _look_up(value, key, optional=optional)
        elif key.__class__ is not ErrorValue:
            key = ErrorValue("other", f"a {type_name(key)} cannot be a key or index")
        return _charged(frame, key, optional=optional)


def _charged(frame: Frame, result: object, *, optional: bool) -> object:
    """The result of a step, which costs one. An optional step only does when it leads somewhere."""
    if not optional or (result is not _ABSENT and result.__class__ is not ErrorValue):
        frame.charge(1)
    return result


def _look_up(value: object, key: object, *, optional: bool) -> object:
    try:
        if isinstance(value, MapValue):
            found, result = value.find(key)
            if found:
                return result
        elif isinstance(value, list):
            index = list_index(key)
            if 0 <= index < len(value):
                return value[index]
            if not optional:
                return ErrorValue("out_of_range", f"index out of bounds: {index}")
        elif value.__class__ is ErrorValue:
            return value
    except ErrorValue as fault:
        return fault.with_traceback(None)
    return _ABSENT if optional else no_such_key(key)


class Path(Evaluable):
    """A root and the steps behind it. `resolve` is `run` without the path's own cost of one."""

    def __init__(self, root: Run, steps: tuple[PathStep, ...] = ()) -> None:
        self._root = root
        self._steps = steps

    def extended(self, step: PathStep) -> "Path":
        """The path one step further."""
        return Path(self._root, (*self._steps, step))

    def tested(self, field: str, offset: int) -> Evaluable:
        """has(path.field)"""
        return Tested(self.extended(Key(field, offset, test=True)), 0)

    @functools.cached_property
    def resolve(self) -> Run:
        """Follow the path."""
        return _follow(self._root, self._steps)

    @functools.cached_property
    def run(self) -> Run:
        resolve = self.resolve

        def run(frame: Frame) -> object:
            value = resolve(frame)
            frame.cost = cost = frame.cost + 1
            if cost > frame.limit:
                frame.out_of_budget()
            return value

        return run


class Tested(Path):
    """has(): whether a path leads somewhere. As a part of another path it is the raw path, as in Kubernetes."""

    def __init__(self, path: Path, own_cost: int) -> None:
        self._path = path
        self._own_cost = own_cost

    def extended(self, step: PathStep) -> Path:
        return self._path.extended(step)

    @functools.cached_property
    def resolve(self) -> Run:
        return self._path.resolve

    @functools.cached_property
    def run(self) -> Run:
        resolve, own_cost = self._path.resolve, self._own_cost

        def run(frame: Frame) -> object:
            value = resolve(frame)
            if own_cost:
                frame.charge(own_cost)
            return value.present if isinstance(value, OptionalValue) else value

        return run


class Branches(Path):
    """condition ? path : path. Further steps go behind both."""

    def __init__(self, condition: Run, then: Path, otherwise: Path) -> None:
        self._condition = condition
        self._then = then
        self._otherwise = otherwise

    def extended(self, step: PathStep) -> Path:
        return Branches(self._condition, self._then.extended(step), self._otherwise.extended(step))

    def tested(self, field: str, offset: int) -> Evaluable:
        return Tested(self.extended(Key(field, offset, test=True)), -1)  # has() refunds a cost that branches never had

    @functools.cached_property
    def resolve(self) -> Run:
        condition, then, otherwise = self._condition, self._then.resolve, self._otherwise.resolve

        def resolve(frame: Frame) -> object:
            value = condition(frame)
            if value is True:
                return then(frame)
            if value is False:
                return otherwise(frame)
            return value if value.__class__ is ErrorValue else no_such_overload()

        return resolve

    @functools.cached_property
    def run(self) -> Run:
        return self.resolve


def relative(plan: Evaluable) -> Path:
    """The plan as a path that steps can be put behind."""
    return plan if isinstance(plan, Path) else Path(plan.run)


def _follow(root: Run, steps: Sequence[PathStep]) -> Run:
    def resolve(frame: Frame) -> object:
        value = root(frame)
        if value.__class__ is ErrorValue:
            return value
        optional = value.__class__ is OptionalValue
        if isinstance(value, OptionalValue):
            if not value.present:
                return value
            try:
                value = unwrapped(value.value)
            except ErrorValue as fault:  # a value as well: hasValue() is true of it
                value = fault.with_traceback(None)
        for step in steps:
            optional = optional or step.optional
            value = step.take(frame, value, optional=optional)
            if value is _ABSENT:
                return NONE
            if isinstance(value, ErrorValue):
                if value.offset is None:
                    value.offset = step.offset
                return value
        return OptionalValue(value) if optional else value

    return resolve


class DevicePath(Path):
    """The device variable and the constant fields behind it. `offset` is the place of the last one."""

    def __init__(self, *, multiple_allocations: bool, keys: tuple[str, ...] = (), offset: int = 0) -> None:
        self._multiple_allocations = multiple_allocations
        self._keys = keys
        self._offset = offset

    def extended(self, step: PathStep) -> Path:
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
