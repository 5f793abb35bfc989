# SPDX-License-Identifier: Apache-2.0
"""Paths: a variable with the fields and indices after it, such as `device.attributes['gpu.nvidia.com'].?profile`.

A path is evaluated as a whole. It costs one for each step, and one for the path itself unless it is a branch of `?:` or
an index of another path. Follows cel-go's `interpreter/attributes.go`.

Most expressions have paths into the device with constant keys. Such a path is read directly from the device. For
example, `device.attributes['gpu.nvidia.com'].profile` looks up one name and builds no maps. Its cost is the same.
"""

import functools
from collections.abc import Sequence
from typing import Final

from ..closures import Evaluable, Run
from ..errors import ErrorValue
from ..library.values import NONE, MapValue, OptionalValue, list_index, no_such_overload, type_name, unwrapped
from ..types import Uint
from .frame import PLAIN, Domain, Frame, no_such_key

_KEYS: Final = frozenset((str, int, Uint, bool, float))

_ABSENT: Final = object()


def is_key(value: object) -> bool:
    """Whether a value is allowed as a key or index."""
    return value.__class__ in _KEYS


class PathStep:
    """One field or index of a path. The results of an `optional` step and of all later steps are optionals."""

    def __init__(self, offset: int, *, optional: bool) -> None:
        self.offset = offset
        self.optional = optional

    def take(self, frame: Frame, value: object, *, optional: bool) -> object:
        """The value of the field or index, or an ErrorValue.

        _ABSENT if there is no value and the step is `optional`.
        """
        raise NotImplementedError


class Key(PathStep):
    """A step to a constant key. With `test`, has() only needs to know whether a value exists."""

    def __init__(self, key: object, offset: int, *, optional: bool = False, test: bool = False) -> None:
        super().__init__(offset, optional=optional)
        self.key = key
        self._test = test

    @property
    def is_plain(self) -> bool:
        """Whether it is an error if there is no value."""
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
    """A step to a key that is not a constant."""

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
    """The result of a step, after adding its cost of one. An optional step without a value costs nothing."""
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
    except ErrorValue as error:
        return error.with_traceback(None)
    return _ABSENT if optional else no_such_key(key)


class Path(Evaluable):
    """A root and the steps after it. `resolve` is `run` without the cost of the path itself."""

    def __init__(self, root: Run, steps: tuple[PathStep, ...] = ()) -> None:
        self._root = root
        self._steps = steps

    def extended(self, step: PathStep) -> "Path":
        """The path with one more step."""
        return Path(self._root, (*self._steps, step))

    def tested(self, field: str, offset: int) -> Evaluable:
        """has(path.field)"""
        return Tested(self.extended(Key(field, offset, test=True)), 0)

    @functools.cached_property
    def resolve(self) -> Run:
        """The function that evaluates the steps."""
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
    """has(path). As a part of another path it behaves like the path inside of has(), as in Kubernetes."""

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
    """condition ? path : path. Further steps are added to both paths."""

    def __init__(self, condition: Run, then: Path, otherwise: Path) -> None:
        self._condition = condition
        self._then = then
        self._otherwise = otherwise

    def extended(self, step: PathStep) -> Path:
        return Branches(self._condition, self._then.extended(step), self._otherwise.extended(step))

    def tested(self, field: str, offset: int) -> Evaluable:
        return Tested(
            self.extended(Key(field, offset, test=True)), -1
        )  # in Kubernetes, has() subtracts a cost that branches do not have

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
    """A path that starts with the plan, so that steps can be added."""
    return plan if isinstance(plan, Path) else Path(plan.run)


def _converted(value: object) -> object:
    try:
        return unwrapped(value)
    except ErrorValue as error:  # the error becomes a value, for which hasValue() is true
        return error.with_traceback(None)


def _follow(root: Run, steps: Sequence[PathStep]) -> Run:
    def resolve(frame: Frame) -> object:
        value = root(frame)
        if value.__class__ is ErrorValue:
            return value
        optional = value.__class__ is OptionalValue
        if isinstance(value, OptionalValue):
            if not value.present:
                return value
            value = _converted(value.value) if frame.converts_optionals else value.value
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
    """The variable `device` and constant fields after it. `offset` is the place of the last field."""

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
        """Whether the path can be read directly."""
        match self._keys:
            case () | ("driver",) | ("attributes" | "capacity",):
                return True
            case ("attributes" | "capacity", domain) | ("attributes" | "capacity", domain, _):
                return "/" not in domain  # the domain of a published name ends at the first slash
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
                return _counted(lambda frame: Domain(frame, domain, Frame.attribute, Frame.attributes), cost)
            case ("capacity", domain):
                return _counted(lambda frame: Domain(frame, domain, Frame.capacity, Frame.capacities), cost)
            case ("attributes",):
                return _counted(Frame.attributes, cost)
            case ("capacity",):
                return _counted(Frame.capacities, cost)
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
    """Reads one attribute. This has no helper functions because nearly all expressions do it."""
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
