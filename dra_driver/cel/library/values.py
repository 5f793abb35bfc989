# SPDX-License-Identifier: Apache-2.0
"""CEL values in Python: bool, int, Uint, float, str, bytes, None, list, MapValue, and a few classes of our own.

Follows cel-go's `common/types`. A CEL list is a Python list that nobody changes, with two exceptions
that Kubernetes' evaluator makes visible: a concatenation compares its elements more strictly, and the
accumulator of a comprehension grows in place. Map keys of different types never collide (`1`, `1u`, `1.0` and `true`
are four keys); a look-up by number finds int and uint keys alike.

`spend` bounds the work that CEL's cost does not see. Concatenating lists costs one whatever their size, since Go only
links them; comparing nested lists costs by the outermost size; replace() costs by what it reads, not by what it
writes. Such operations report their real size, and one evaluation gets so much of it. Kubernetes has a timeout."""

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from ..errors import Abort, ErrorValue
from ..types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    ERROR,
    INT,
    INT_MAX,
    INT_MIN,
    LIST,
    MAP,
    NULL,
    OPTIONAL,
    STRING,
    TIMESTAMP,
    TYPE,
    UINT,
    UINT_MAX,
    Type,
    Uint,
)
from .time import Duration, Timestamp

BUDGET: Final = 2_000_000
"""Elements, code points or comparisons. An expression that stays below it is evaluated as Kubernetes does."""


class _Meter(threading.local):
    left = BUDGET


_METER: Final = _Meter()


def refill() -> None:
    """Reset the budget of this thread, at the start of an evaluation."""
    _METER.left = BUDGET


def spend(amount: int) -> None:
    """Account for work. Raises Abort when there was too much of it."""
    _METER.left -= amount
    if _METER.left < 0:
        raise Abort("cost_limit", "the evaluation handles too many elements, characters or comparisons")


@dataclass(slots=True, eq=False)
class OptionalValue:
    """optional.of(value), or optional.none() when there is none."""

    value: object = None
    present: bool = field(default=True, kw_only=True)


NONE: Final = OptionalValue(present=False)
"""optional.none()"""


class Extension:
    """A value of a type that Kubernetes adds. Equality with another type is a fault, not false."""

    __slots__ = ()
    cel_type: ClassVar[Type]
    hashable: ClassVar[bool] = True

    def equals(self, other: object) -> bool:
        """CEL's `==` with a value that is not null. Raises ErrorValue for another type."""
        raise NotImplementedError

    @property
    def cost_size(self) -> int:
        """The size of the value in costs that depend on sizes."""
        return 1

    def unwrapped(self) -> object:
        """The value after a trip through Kubernetes' native form, which most extension types do not survive."""
        raise ErrorValue("unsupported_value", f"a {self.cel_type.name} cannot be taken out of a bound optional")


def checked_int(value: int) -> int:
    """An int, if it is one. Raises ErrorValue on overflow."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise ErrorValue("overflow", "integer overflow")


def checked_uint(value: int) -> Uint:
    """A uint, if it is one. Raises ErrorValue on overflow."""
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise ErrorValue("overflow", "unsigned integer overflow")


Found = tuple[bool, object]
NOT_FOUND: Found = (False, None)


class MapValue:
    """A map. What every kind of it answers."""

    __slots__ = ()
    zero_when_empty: ClassVar[bool] = True

    def find(self, key: object) -> Found:
        """(True, value), or (False, None). Raises Abort for a key that cannot be hashed."""
        raise NotImplementedError

    def contains(self, key: object) -> bool:
        """CEL's `key in map`."""
        return self.find(key)[0]

    def keys(self) -> Iterator[object]:
        """The keys, in insertion order (which Kubernetes does not promise)."""
        raise NotImplementedError

    def items(self) -> Iterator[tuple[object, object]]:
        """Keys with values, in the order of `keys`."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


class TextMap(MapValue):
    """A map whose keys are all strings."""

    __slots__ = ("entries",)

    def __init__(self, entries: Mapping[str, object]) -> None:
        self.entries = entries

    def find(self, key: object) -> Found:
        if key.__class__ is str and key in self.entries:
            return True, self.entries[key]
        return NOT_FOUND

    def keys(self) -> Iterator[object]:
        return iter(self.entries)

    def items(self) -> Iterator[tuple[object, object]]:
        return iter(self.entries.items())

    def __len__(self) -> int:
        return len(self.entries)


EMPTY = TextMap({})


class DomainMap(TextMap):
    """`device.attributes` and `device.capacity`: indexing finds an empty map for an unknown domain, `in` does not."""

    __slots__ = ()
    zero_when_empty: ClassVar[bool] = False

    def find(self, key: object) -> Found:
        found = super().find(key)
        return found if found[0] else (True, EMPTY)

    def contains(self, key: object) -> bool:
        return super().find(key)[0]

    def domain(self, name: str) -> TextMap:
        """The entries of one domain."""
        found = self.entries.get(name)
        return found if isinstance(found, TextMap) else EMPTY


class LiteralMap(MapValue):
    """A map made by an expression. `insert` is for the comprehension that builds it."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[object, object]] = {}

    def insert(self, key: object, value: object) -> None:
        """Set the value of a key. Raises Abort for a key that cannot be hashed."""
        self._entries[hashable(key)] = (key, value)

    def remove(self, key: object) -> None:
        """Forget a key, if it is there."""
        self._entries.pop(hashable(key), None)

    def copy(self) -> "LiteralMap":
        """A map with the same entries."""
        twin = LiteralMap()
        twin._entries = dict(self._entries)
        return twin

    def find(self, key: object) -> Found:
        if not self._entries:
            return NOT_FOUND
        for candidate in _candidates(key):
            entry = self._entries.get(candidate)
            if entry is not None:
                return True, entry[1]
        return NOT_FOUND

    def keys(self) -> Iterator[object]:
        return (key for key, _ in self._entries.values())

    def items(self) -> Iterator[tuple[object, object]]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


def hashable(key: object) -> Hashable:
    """A key for a Python dict that keeps values of different types apart. Raises Abort as LiteralMap does."""
    kind = key.__class__
    if kind is str:
        return key
    if kind is bytes or (isinstance(key, Extension) and not key.hashable):
        raise Abort("internal", f"a {kind.__name__.lower()} value cannot be hashed, as maps and sets need it")
    if isinstance(key, list | MapValue):  # only equal to itself
        return kind, id(key)
    return kind, key


def _candidates(key: object) -> Iterator[Hashable]:
    """The dict keys under which an entry for `key` may be: its own, and for numbers the equal int and uint."""
    yield hashable(key)
    kind = key.__class__
    if kind is float:
        if not math.isfinite(key) or key != int(key):  # type: ignore[arg-type, call-overload]
            return
        whole = int(key)  # type: ignore[call-overload]
        if INT_MIN < whole < INT_MAX:
            yield int, whole
        if 0 <= whole <= UINT_MAX:
            yield Uint, Uint(whole)
    elif kind is int and key >= 0:  # type: ignore[operator]
        yield Uint, Uint(key)  # type: ignore[call-overload]
    elif kind is Uint and key <= INT_MAX:  # type: ignore[operator]
        yield int, int(key)  # type: ignore[call-overload]


class ConcatList(list[object]):
    """The result of list + list."""

    __slots__ = ()


class MutableList(list[object]):
    """The list that a comprehension builds: adding to it changes it."""

    __slots__ = ()


_TYPES: Final[dict[type, Type]] = {
    bool: BOOL,
    int: INT,
    Uint: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    type(None): NULL,
    list: LIST,
    ConcatList: LIST,
    MutableList: LIST,
    Type: TYPE,
    OptionalValue: OPTIONAL,
    Duration: DURATION,
    Timestamp: TIMESTAMP,
    ErrorValue: ERROR,  # a few operations leave one inside a list
}


def type_of(value: object) -> Type:
    """The value's type, as `type()` gives it."""
    known = _TYPES.get(value.__class__)
    if known is not None:
        return known
    if isinstance(value, MapValue):
        return MAP
    if isinstance(value, Extension):
        return value.cel_type
    raise TypeError(f"{value.__class__.__name__} is no CEL value")


def type_name(value: object) -> str:
    """The name of the value's type."""
    return type_of(value).name


def no_such_overload(function: str = "", *arguments: object) -> ErrorValue:
    """The fault of calling `function` with values that no overload takes."""
    signature = f": {function}({', '.join(map(type_name, arguments))})" if function else ""
    return ErrorValue("no_such_overload", "no such overload" + signature)


NUMBERS: Final = frozenset((int, Uint, float))


def equal(left: object, right: object) -> bool:
    """CEL's `left == right`. Raises ErrorValue where the comparison itself is an error."""
    if left is None or right is None:
        return left is right
    return equal_values(left, right)


def equal_values(left: object, right: object) -> bool:
    """`equal` without the special standing of null, as containers compare their elements with a given value."""
    kind = left.__class__
    if kind in NUMBERS:
        if right.__class__ not in NUMBERS:
            return False
        if kind is not right.__class__ and (kind is float or right.__class__ is float):
            return float(left) == float(right)  # type: ignore[arg-type]
        return left == right
    if kind in _PLAIN:
        return right.__class__ is kind and left == right
    if isinstance(left, list):
        return isinstance(right, list) and _equal_lists(left, right)
    if isinstance(left, MapValue):
        return isinstance(right, MapValue) and _equal_maps(left, right)
    if isinstance(left, Extension):
        if isinstance(right, ErrorValue):
            raise right
        return left.equals(right)
    if isinstance(left, ErrorValue):
        raise left
    if isinstance(left, Type):
        return isinstance(right, Type) and left.name == right.name
    if isinstance(left, OptionalValue):
        if not isinstance(right, OptionalValue):
            return False
        if left.present and right.present:
            return equal_values(left.value, right.value)
        return left.present == right.present
    return False


_PLAIN: Final = frozenset((bool, str, bytes, type(None), Duration, Timestamp))


def _equal_lists(left: list[object], right: list[object]) -> bool:
    if len(left) != len(right):
        return False
    spend(len(left))
    fault: ErrorValue | None = None
    for mine, other in zip(left, right, strict=True):
        try:
            if not equal(mine, other):
                return False
        except ErrorValue as undecided:  # counts as equal, unless the list is a concatenation
            fault = fault or undecided
    if fault is not None and isinstance(left, ConcatList):
        raise fault
    return True


def _equal_maps(left: MapValue, right: MapValue) -> bool:
    if len(left) != len(right):
        return False
    spend(len(left))
    for key, mine in left.items():
        found, other = right.find(key)
        if not found:
            return False
        try:
            if not equal(mine, other):
                return False
        except ErrorValue:  # counts as equal
            continue
    return True


def same(left: object, right: object) -> bool:
    """Whether two values are equal, an error counting as no: how searches in lists compare."""
    try:
        return equal_values(left, right)
    except ErrorValue:
        return False


COMPARABLE: Final = frozenset((bool, int, Uint, float, str, bytes, Duration, Timestamp))


def compare(left: object, right: object) -> int:
    """-1, 0 or 1. Raises ErrorValue for NaN and for values that have no common order."""
    kind = left.__class__
    if kind in NUMBERS:
        if right.__class__ not in NUMBERS:
            raise no_such_overload()
        if left != left or right != right:
            raise ErrorValue("nan_order", "NaN values cannot be ordered")
        if kind is float or right.__class__ is float:
            left, right = float(left), float(right)  # type: ignore[arg-type]
    elif kind not in COMPARABLE or right.__class__ is not kind:
        raise no_such_overload()
    return int(left > right) - int(left < right)  # type: ignore[operator]


def size_of(value: object) -> int | None:
    """Code points, bytes, elements or entries; None for other values."""
    if isinstance(value, str | bytes | list | MapValue):
        return len(value)
    return None


def cost_size(value: object) -> int:
    """The size of a value in the cost of an extension function. Errors and scalars have size 1."""
    if isinstance(value, str | bytes | list | MapValue):
        return len(value)
    return value.cost_size if isinstance(value, Extension) else 1


def core_cost_size(value: object) -> int:
    """The size of a value in the cost of a standard function: that of `cost_size`, but an optional has its value's."""
    while isinstance(value, OptionalValue) and value.present:
        value = value.value
    return cost_size(value)


def is_zero(value: object) -> bool:
    """Whether optional.ofNonZeroValue() takes it for nothing."""
    if value is None or value is False:
        return True
    if value.__class__ in NUMBERS:
        return value == 0
    if isinstance(value, str | bytes | list):
        return not value
    if isinstance(value, MapValue):
        return value.zero_when_empty and len(value) == 0
    return isinstance(value, Duration | Timestamp) and value.is_zero


def unwrapped(value: object) -> object:
    """The value of a bound optional after a conversion to Kubernetes' native form and back.

    Raises ErrorValue when there is no way back.
    """
    if isinstance(value, Extension):
        return value.unwrapped()
    if isinstance(value, OptionalValue):
        return unwrapped(value.value) if value.present else None
    if isinstance(value, Type):
        return value.name
    if isinstance(value, ConcatList):
        return [_unwrapped_or_fault(item) for item in value]
    if isinstance(value, MapValue) and not value.zero_when_empty:
        return TextMap({str(key): item for key, item in value.items()})
    return value


def _unwrapped_or_fault(value: object) -> object:
    try:
        return unwrapped(value)
    except ErrorValue as fault:
        return fault


def list_index(index: object) -> int:
    """A list index from a value. Raises ErrorValue for what is none."""
    if isinstance(index, int) and index.__class__ is not bool and index <= INT_MAX:
        return int(index)
    if isinstance(index, float) and index.is_integer() and abs(index) < INT_MAX:
        return int(index)
    if index.__class__ in NUMBERS:
        raise ErrorValue("unsupported_index", f"unsupported index value {index} in list")
    raise ErrorValue("unsupported_index", f"unsupported index type '{type_name(index)}' in list")


def succeeds(parse: Callable[..., object]) -> Callable[..., bool]:
    """The function that tells whether `parse` does not raise ErrorValue."""

    def test(*arguments: object) -> bool:
        try:
            parse(*arguments)
        except ErrorValue:
            return False
        return True

    return test
