# SPDX-License-Identifier: Apache-2.0
"""CEL values in Python, their sizes, and the costs at run time that several libraries use.

CEL values are bool, int, Uint, float, str, bytes, None, list, MapValue, OptionalValue, Duration, Timestamp, Type, and
the subclasses of Extension. A CEL list is a Python list that is not changed. There are two exceptions, which are
visible in Kubernetes' evaluator, too: the result of a concatenation compares its elements more strictly (ConcatList),
and the accumulator of a loop grows in place (MutableList). Map keys of different types are different keys (`1`, `1u`,
`1.0` and `true` are four keys), but a lookup by a number finds both int and uint keys. Follows cel-go's `common/types`.

Costs follow cel-go's `interpreter/runtimecost.go` and k8s.io/apiserver `pkg/cel/library/cost.go`. Some operations cost
less than their work. For example, a concatenation of lists costs one, because Go only links them, and replace() does
not count what it writes. Kubernetes has a timeout for such expressions. Here these operations report their work to
`spend`, and each evaluation has a budget.
"""

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from ..declarations import Cost, Function, Implementation, Overload, function, method
from ..errors import Abort, ErrorValue
from ..sizes import CallEstimate, Operand, searching, traversal
from ..types import (
    BOOL,
    DURATION,
    ERROR,
    INT,
    INT_MAX,
    INT_MIN,
    LIST,
    LITERAL_TYPES,
    MAP,
    OPTIONAL,
    STRING,
    TIMESTAMP,
    TYPE,
    UINT_MAX,
    Type,
    Uint,
)
from .time import Duration, Timestamp

BUDGET: Final = 2_000_000
"""Elements, code points or comparisons of one evaluation. Within the budget, results are the same as in Kubernetes."""

Found = tuple[bool, object]
NOT_FOUND: Found = (False, None)

NUMBERS: Final = frozenset((int, Uint, float))


class _Meter(threading.local):
    left = BUDGET


_METER: Final = _Meter()


def refill() -> None:
    """Reset the budget of this thread before an evaluation."""
    _METER.left = BUDGET


def spend(amount: int) -> None:
    """Subtract work from the budget. Raises Abort if the budget is exceeded."""
    _METER.left -= amount
    if _METER.left < 0:
        raise Abort("cost_limit", "the evaluation handles too many elements, characters or comparisons")


@dataclass(slots=True, eq=False)
class OptionalValue:
    """optional.of(value), or optional.none() if no value is `present`."""

    value: object = None
    present: bool = field(default=True, kw_only=True)


NONE: Final = OptionalValue(present=False)
"""optional.none()"""


class Extension:
    """A value of a type that Kubernetes adds to CEL. Comparing it with another type is an error, not false."""

    __slots__ = ()
    cel_type: ClassVar[Type]
    hashable: ClassVar[bool] = True

    @property
    def identity(self) -> object:
        """Two values of the type are equal if their identities are equal."""
        return self

    def equals(self, other: object) -> bool:
        """CEL's `==` with a value that is not null. Raises ErrorValue for another type."""
        if not isinstance(other, self.__class__):
            raise no_such_overload()
        return bool(self.identity == other.identity)

    @property
    def cost_size(self) -> int:
        """The size of the value in costs that depend on sizes."""
        return 1

    def unwrapped(self) -> object:
        """The value after a conversion to Go's native form and back. Most of these types do not support it."""
        raise ErrorValue("unsupported_value", f"a {self.cel_type.name} cannot be taken out of a bound optional")


def checked_int(value: int) -> int:
    """The value as an int. Raises ErrorValue if it does not fit into 64 bits."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise ErrorValue("overflow", "integer overflow")


def checked_uint(value: int) -> Uint:
    """The value as a uint. Raises ErrorValue if it is negative or does not fit into 64 bits."""
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise ErrorValue("overflow", "unsigned integer overflow")


class MapValue:
    """A map. Its subclasses are the kinds of maps."""

    __slots__ = ()

    def find(self, key: object) -> Found:
        """(True, value) if the map has the key, otherwise NOT_FOUND. Raises Abort for a key that cannot be hashed."""
        raise NotImplementedError

    def contains(self, key: object) -> bool:
        """CEL's `key in map`."""
        return self.find(key)[0]

    def keys(self) -> Iterator[object]:
        """The keys in the order of insertion. (Kubernetes does not guarantee an order.)"""
        return (key for key, _ in self.items())  # noqa: PERF102  # this is keys()

    def items(self) -> Iterator[tuple[object, object]]:
        """The keys with their values, in the order of `keys`."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


class TextMap(MapValue):
    """A map with strings as keys."""

    __slots__ = ("entries",)

    def __init__(self, entries: Mapping[str, object]) -> None:
        self.entries = entries

    def find(self, key: object) -> Found:
        if key.__class__ is str and key in self.entries:
            return True, self.entries[key]
        return NOT_FOUND

    def items(self) -> Iterator[tuple[object, object]]:
        return iter(self.entries.items())

    def __len__(self) -> int:
        return len(self.entries)


EMPTY = TextMap({})


class DomainMap(TextMap):
    """`device.attributes` or `device.capacity`. An index of an unknown domain gives an empty map, but `in` is false."""

    __slots__ = ()

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
    """A map that an expression builds. Loops and map literals `insert` entries."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[object, object]] = {}

    def insert(self, key: object, value: object) -> None:
        """Set the value of a key. Raises Abort for a key that cannot be hashed."""
        self._entries[hashable(key)] = (key, value)

    def remove(self, key: object) -> None:
        """Remove a key if the map has it."""
        self._entries.pop(hashable(key), None)

    def find(self, key: object) -> Found:
        if not self._entries:
            return NOT_FOUND
        for candidate in _candidates(key):
            entry = self._entries.get(candidate)
            if entry is not None:
                return True, entry[1]
        return NOT_FOUND

    def items(self) -> Iterator[tuple[object, object]]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


def hashable(key: object) -> Hashable:
    """A key for a Python dict, different for values of different types. Raises Abort for a value that has no key."""
    kind = key.__class__
    if kind is str:
        return key
    if kind is bytes or (isinstance(key, Extension) and not key.hashable):
        raise Abort("internal", f"a {kind.__name__.lower()} value cannot be hashed, as maps and sets need it")
    if isinstance(key, list | MapValue):  # lists and maps are only equal to themselves
        return kind, id(key)
    return kind, key


def _candidates(key: object) -> Iterator[Hashable]:
    """The dict keys of the entries that `key` finds: its own, and for a number those of the equal int and uint."""
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
    """The list that a loop builds. Concatenation adds to it in place."""

    __slots__ = ()


_TYPES: Final[dict[type, Type]] = {
    **LITERAL_TYPES,
    list: LIST,
    ConcatList: LIST,
    MutableList: LIST,
    Type: TYPE,
    OptionalValue: OPTIONAL,
    Duration: DURATION,
    Timestamp: TIMESTAMP,
    ErrorValue: ERROR,  # lists can contain errors, see `unwrapped`
}


def type_of(value: object) -> Type:
    """The type of a value, as `type()` returns it."""
    known = _TYPES.get(value.__class__)
    if known is not None:
        return known
    if isinstance(value, MapValue):
        return MAP
    if isinstance(value, Extension):
        return value.cel_type
    raise TypeError(f"{value.__class__.__name__} is not a CEL value")


def type_name(value: object) -> str:
    """The name of the type of a value."""
    return type_of(value).name


def no_such_overload(function: str = "", *arguments: object) -> ErrorValue:
    """The error of a call with arguments that no overload accepts."""
    signature = f": {function}({', '.join(map(type_name, arguments))})" if function else ""
    return ErrorValue("no_such_overload", "no such overload" + signature)


def is_zero(value: object) -> bool:
    """Whether optional.ofNonZeroValue() returns optional.none() for the value."""
    if value is None or value is False:
        return True
    if value.__class__ in NUMBERS:
        return value == 0
    if isinstance(value, str | bytes | list):
        return not value
    if isinstance(value, MapValue):
        return len(value) == 0 and not isinstance(value, DomainMap)
    return isinstance(value, Duration | Timestamp) and value.is_zero


def unwrapped(value: object) -> object:
    """The value of a bound optional after a conversion to Go's native form and back.

    Raises ErrorValue if the type does not support the conversion.
    """
    if isinstance(value, Extension):
        return value.unwrapped()
    if isinstance(value, OptionalValue):
        return unwrapped(value.value) if value.present else None
    if isinstance(value, Type):
        return value.name
    if isinstance(value, ConcatList):
        return [_unwrapped_or_error(item) for item in value]
    if isinstance(value, DomainMap):
        return TextMap({str(key): item for key, item in value.items()})
    return value


def _unwrapped_or_error(value: object) -> object:
    try:
        return unwrapped(value)
    except ErrorValue as error:
        return error


def list_index(index: object) -> int:
    """The index of a list that a value stands for. Raises ErrorValue if the value is not an index."""
    if isinstance(index, int) and index.__class__ is not bool and index <= INT_MAX:
        return int(index)
    if isinstance(index, float) and index.is_integer() and abs(index) < INT_MAX:
        return int(index)
    if index.__class__ in NUMBERS:
        raise ErrorValue("unsupported_index", f"unsupported index value {index} in list")
    raise ErrorValue("unsupported_index", f"unsupported index type '{type_name(index)}' in list")


def succeeds(parse: Callable[..., object], error: type[Exception] = ErrorValue) -> Callable[..., bool]:
    """A function that returns whether `parse` succeeds, that is, does not raise `error`."""

    def test(*arguments: object) -> bool:
        try:
            parse(*arguments)
        except error:
            return False
        return True

    return test


# Sizes and costs


def cost_size(value: object) -> int:
    """The size of a value in the costs of Kubernetes' own functions. Errors and scalars have the size 1."""
    if isinstance(value, str | bytes | list | MapValue):
        return len(value)
    return value.cost_size if isinstance(value, Extension) else 1


def core_cost_size(value: object) -> int:
    """The size of a value in the costs of CEL's standard functions. An optional has the size of its value."""
    while isinstance(value, OptionalValue) and value.present:
        value = value.value
    return cost_size(value)


def traversal_cost(size: int) -> int:
    """The cost of reading a value: a tenth of its size, rounded up."""
    return (size + 9) // 10


def construction_cost(size: int) -> int:
    """The cost of reading a value and building another of the same size: a fifth of the size, rounded up."""
    return (size + 4) // 5


def matching_cost(text_size: int, pattern_size: int) -> int:
    """The cost of matching a regular expression."""
    return traversal_cost(text_size + 1) * ((pattern_size + 3) // 4)


def allocation_cost(size: int, factor: float = 1.0) -> int:
    """The cost of making a list."""
    return int(size * factor) + 11


def read_first(arguments: Sequence[object], result: object) -> int:
    """The cost of reading the first argument of one of Kubernetes' own functions."""
    return traversal_cost(cost_size(arguments[0]))


def read_core(arguments: Sequence[object], result: object) -> int:
    """The cost of reading the first argument of one of CEL's standard functions."""
    return traversal_cost(core_cost_size(arguments[0]))


def read_shorter(arguments: Sequence[object], result: object) -> int:
    """The cost of comparing two values up to the end of the shorter one."""
    return traversal_cost(min(core_cost_size(arguments[0]), core_cost_size(arguments[1])))


def read_both(arguments: Sequence[object], result: object) -> int:
    """The cost of copying two values."""
    return traversal_cost(core_cost_size(arguments[0]) + core_cost_size(arguments[1]))


def rebuild_first(arguments: Sequence[object], result: object) -> int:
    """The cost of reading the first argument and building a value of the same size."""
    return construction_cost(cost_size(arguments[0]))


def visit_first(arguments: Sequence[object], result: object) -> int:
    """The cost of visiting everything inside the first argument: strings by their length, other values one each."""
    return _visits(arguments[0])


def _visits(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass")) // 10
    if isinstance(value, bytes):
        return len(value) // 10
    if isinstance(value, list):
        spend(len(value))
        return sum([_visits(item) for item in value])  # noqa: C419  # a list is faster
    if isinstance(value, MapValue):
        spend(len(value))
        return sum([_visits(key) + _visits(item) for key, item in value.items()])  # noqa: C419  # a list is faster
    return 1


def _same_size(text: Operand, *options: Operand) -> CallEstimate:
    return CallEstimate(traversal(text), text.size)


PARSE: Final = Cost(read_first, lambda text, *options: CallEstimate(traversal(text)))
"""The cost of parsing a text."""
READ: Final = Cost(read_first, _same_size)
"""The cost of reading a text. The result has at most the same size."""
VISIT: Final = Cost(visit_first, searching)
"""The cost of visiting a string, or the elements of a list."""


def parser(name: str, identifier: str, result: Type, call: Implementation) -> Function:
    """A function that parses a text."""
    return function(name, Overload(identifier, (STRING,), result, call, cost=PARSE))


def comparisons(name: str, operand: Type, compare: Callable[..., int]) -> tuple[Function, ...]:
    """compareTo(), isGreaterThan() and isLessThan() of a type. `compare` returns -1, 0 or 1."""
    both = (operand, operand)
    return (
        method("compareTo", (f"{name}_compare_to", both, INT, compare)),
        method("isGreaterThan", (f"{name}_is_greater_than", both, BOOL, lambda left, right: compare(left, right) > 0)),
        method("isLessThan", (f"{name}_is_less_than", both, BOOL, lambda left, right: compare(left, right) < 0)),
    )
