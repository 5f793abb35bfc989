# SPDX-License-Identifier: Apache-2.0
"""CEL values in Python: bool, int, Uint, float, str, bytes, None, list, MapValue, and a few classes of our own.

Follows cel-go's `common/types`. A CEL list is a Python list that nobody changes, with two exceptions
that Kubernetes' evaluator makes visible: a concatenation compares its elements more strictly, and the
accumulator of a comprehension grows in place.
"""

from typing import Final

from . import effort
from .errors import Fault
from .maps import MapValue, TextMap
from .scalars import INT_MAX, Extension, OptionalValue, Uint
from .times import Duration, Timestamp
from .types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    ERROR,
    INT,
    LIST,
    MAP,
    NULL,
    OPTIONAL,
    STRING,
    TIMESTAMP,
    TYPE,
    UINT,
    Type,
)


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
    Fault: ERROR,  # a few operations leave one inside a list
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


def no_such_overload(function: str = "", *arguments: object) -> Fault:
    """The fault of calling `function` with values that no overload takes."""
    signature = f": {function}({', '.join(map(type_name, arguments))})" if function else ""
    return Fault("no_such_overload", "no such overload" + signature)


NUMBERS: Final = frozenset((int, Uint, float))


def equal(left: object, right: object) -> bool:
    """CEL's `left == right`. Raises Fault where the comparison itself is an error."""
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
        if isinstance(right, Fault):
            raise right
        return left.equals(right)
    if isinstance(left, Fault):
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
    effort.spend(len(left))
    fault: Fault | None = None
    for mine, other in zip(left, right, strict=True):
        try:
            if not equal(mine, other):
                return False
        except Fault as undecided:  # counts as equal, unless the list is a concatenation
            fault = fault or undecided
    if fault is not None and isinstance(left, ConcatList):
        raise fault
    return True


def _equal_maps(left: MapValue, right: MapValue) -> bool:
    if len(left) != len(right):
        return False
    effort.spend(len(left))
    for key, mine in left.items():
        found, other = right.find(key)
        if not found:
            return False
        try:
            if not equal(mine, other):
                return False
        except Fault:  # counts as equal
            continue
    return True


def same(left: object, right: object) -> bool:
    """Whether two values are equal, an error counting as no: how searches in lists compare."""
    try:
        return equal_values(left, right)
    except Fault:
        return False


COMPARABLE: Final = frozenset((bool, int, Uint, float, str, bytes, Duration, Timestamp))


def compare(left: object, right: object) -> int:
    """-1, 0 or 1. Raises Fault for NaN and for values that have no common order."""
    kind = left.__class__
    if kind in NUMBERS:
        if right.__class__ not in NUMBERS:
            raise no_such_overload()
        if left != left or right != right:
            raise Fault("nan_order", "NaN values cannot be ordered")
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
    """What a value counts for in the cost of an extension function. Errors and scalars count 1."""
    if isinstance(value, str | bytes | list | MapValue):
        return len(value)
    return value.cost_size if isinstance(value, Extension) else 1


def core_cost_size(value: object) -> int:
    """What a value counts for in the cost of a standard function: like `cost_size`, but looks into optionals."""
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
    """What a bound optional holds when it is read: its value, taken to Kubernetes' native form and back.

    Raises Fault when there is no way back.
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
    except Fault as fault:
        return fault


def list_index(index: object) -> int:
    """A list index from a value. Raises Fault for what is none."""
    if isinstance(index, int) and index.__class__ is not bool and index <= INT_MAX:
        return int(index)
    if isinstance(index, float) and index.is_integer() and abs(index) < INT_MAX:
        return int(index)
    if index.__class__ in NUMBERS:
        raise Fault("unsupported_index", f"unsupported index value {index} in list")
    raise Fault("unsupported_index", f"unsupported index type '{type_name(index)}' in list")
