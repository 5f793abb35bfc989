# SPDX-License-Identifier: Apache-2.0
"""The cost of an expression in the worst case, computed without a device.

kube-apiserver refuses expressions whose cost exceeds the limit. The cost of a call depends on the sizes of its
operands. A size is a range of numbers, and arithmetic on sizes stops at 64 bits. The sizes of what a device contains
are the limits of the resource.k8s.io API. Costs are upper bounds only, because nothing depends on lower bounds.

Follows cel-go's `checker/cost.go`, and the size estimator of k8s.io/dynamic-resource-allocation `cel/compile.go`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..syntax.tree import (
    Call,
    Comprehension,
    Expression,
    Ident,
    ListNode,
    Literal,
    MapNode,
    MessageNode,
    Select,
    qualified_name,
)
from ..types import Type, TypeKind, is_optional

UNBOUNDED: Final = (1 << 64) - 1
"""The largest cost or size. It also stands for an unknown one."""

TRAVERSAL: Final = 0.1
"""The cost of reading one code point, byte, element or entry."""
PATTERN: Final = 0.25
"""The cost of one code point of a regular expression, for each code point of the text."""

_LIST: Final = 10
_MAP: Final = 30
_MESSAGE: Final = 40


# Sizes

_SCALARS: Final = frozenset(
    (TypeKind.BOOL, TypeKind.DOUBLE, TypeKind.DURATION, TypeKind.INT, TypeKind.TIMESTAMP, TypeKind.UINT)
)


def add(*amounts: int) -> int:
    """The sum, at most UNBOUNDED."""
    return min(sum(amounts), UNBOUNDED)


def times(one: int, other: int) -> int:
    """The product, at most UNBOUNDED."""
    return min(one * other, UNBOUNDED)


def scaled(amount: int, factor: float) -> int:
    """The product with a factor, computed in floating point and rounded up, at most UNBOUNDED."""
    if amount > 0 and factor > 0 and float(amount) > float(UNBOUNDED) / factor:
        return UNBOUNDED
    return min(math.ceil(float(amount) * factor), UNBOUNDED)


@dataclass(frozen=True, slots=True)
class Size:
    """The smallest and the largest number of code points, bytes, elements or entries."""

    low: int
    high: int

    def plus(self, other: "Size") -> "Size":
        """The size of both together."""
        return Size(add(self.low, other.low), add(self.high, other.high))

    def times(self, other: "Size") -> "Size":
        """The product of two sizes."""
        return Size(times(self.low, other.low), times(self.high, other.high))

    def union(self, other: "Size") -> "Size":
        """The range that includes both."""
        return Size(min(self.low, other.low), max(self.high, other.high))

    def scaled(self, factor: float) -> int:
        """The cost in the worst case if each unit costs `factor`."""
        return scaled(self.high, factor)


UNKNOWN: Final = Size(0, UNBOUNDED)


def exactly(size: int) -> Size:
    """A size that is known."""
    return Size(size, size)


# Operands


ValuePath = tuple[str, ...]
"""The path from a variable to a value, such as `device`, `attributes`, `@values`. Empty if it is unknown."""


def _size_at(path: ValuePath) -> Size | None:
    """The size of the value at a path into the device, by the limits of the API. None if it is unknown."""
    match path:
        case ("device",):
            return Size(0, 0)
        case ("device", "allowMultipleAllocations"):
            return Size(0, 1)
        case ("device", "driver") | ("device", "attributes" | "capacity", "@keys"):
            return Size(0, 63)
        case ("device", "attributes" | "capacity") | ("device", "attributes" | "capacity", "@items" | "@values"):
            return Size(0, 32)
        case ("device", "attributes" | "capacity", "@items" | "@values", "@keys"):
            return Size(0, 32)
        case ("device", "attributes", "@items" | "@values", _):
            return Size(0, 64)
        case ("device", "capacity", "@items" | "@values", "@items" | "@values"):
            return Size(0, 0)  # a quantity
    return None


@dataclass(frozen=True, slots=True)
class Operand:
    """A target or argument of a call. `known` is its size if it is known."""

    node: Expression | None
    type: Type
    path: ValuePath
    known: Size | None

    @property
    def size(self) -> Size:
        """Its size, UNKNOWN if it is not known."""
        return self.known or UNKNOWN

    @property
    def element(self) -> "Operand | None":
        """The element of a list, None for other values."""
        if not self.type.parameters:
            return None
        path = (*self.path, "@items") if self.path else ()
        return Operand(None, self.type.parameters[0], path, _size_at(path))

    def integer(self, default: int) -> int:
        """The value of an int literal (0 for negative ones), `default` for all other operands."""
        value = self.node.value if isinstance(self.node, Literal) else None
        return max(0, value) if isinstance(value, int) and value.__class__ is int else default


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """The cost of a call without its arguments, and the size of its result if it is known."""

    cost: int
    size: Size | None = None


EstimateCall = Callable[..., CallEstimate]
"""The cost of a call from its operands, the target first."""


def traversal(operand: Operand) -> int:
    """The cost of reading an operand completely."""
    return operand.size.scaled(TRAVERSAL)


def matching(text: Operand, pattern: Operand) -> int:
    """The cost of matching a regular expression."""
    return times(scaled(add(text.size.high, 1), TRAVERSAL), pattern.size.scaled(PATTERN))


def searching(target: Operand, *arguments: Operand) -> CallEstimate:
    """The estimate for visiting a string, or the elements of a list."""
    element = target.element
    if element is None:
        return CallEstimate(traversal(target))
    each = 1
    if element.type.kind in (TypeKind.STRING, TypeKind.BYTES):
        each = add(each, traversal(element))
    return CallEstimate(times(target.size.high, each))


# Expressions


@dataclass(frozen=True, slots=True)
class _Entries:
    """The sizes of the keys and values of a list or map."""

    kind: TypeKind
    key: Size
    value: Size

    def union(self, other: "_Entries | None") -> "_Entries | None":
        if other is None:
            return None
        return replace(self, key=self.key.union(other.key), value=self.value.union(other.value))


@dataclass(frozen=True, slots=True)
class _Local:
    """What is known about a local variable."""

    path: ValuePath
    size: Size | None
    entries: _Entries | None = None


def estimate(root: Expression, estimate_of: Callable[[str, str], EstimateCall | None]) -> int:
    """The cost of a checked tree in the worst case, at most UNBOUNDED.

    `estimate_of` returns the estimate for a function and the id of an overload, None if each call costs one.
    """
    return _Estimator(estimate_of).cost(root)


class _Estimator:
    def __init__(self, estimate_of: Callable[[str, str], EstimateCall | None]) -> None:
        self._estimate_of = estimate_of
        self._paths: dict[Expression, ValuePath] = {}
        self._sizes: dict[Expression, Size] = {}
        self._entries: dict[Expression, _Entries] = {}
        self._locals: dict[str, list[_Local]] = {}

    def cost(self, node: Expression) -> int:
        """The cost of a node. Stores paths and sizes that the costs of other nodes depend on."""
        match node:
            case Ident():
                local = self._local(node)
                self._paths[node] = local.path if local else (f".{node.name}" if node.shadowed else node.name,)
                return 1
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListNode():
                return self._list(node)
            case MapNode():
                return self._map(node)
            case MessageNode():
                return add(_MESSAGE, *[self.cost(entry.value) for entry in node.entries])
            case Comprehension():
                return self._binding(node) if node.is_binding else self._loop(node)
        return 0

    def _select(self, node: Select) -> int:
        if node.constant is not None:
            self._paths[node] = (qualified_name(node) or "",)
            return 1
        cost = self.cost(node.operand)
        if node.test:
            return cost
        self._paths[node] = self._path_below(node.operand, node.field)
        return add(cost, node.operand.type.kind in (TypeKind.MAP, TypeKind.STRUCT))

    def _path_below(self, node: Expression, name: str) -> ValuePath:
        return (*self._path(node), name)

    # calls

    def _call(self, node: Call) -> int:
        if node.function == "dyn":
            (argument,) = node.arguments
            cost = add(1, self.cost(argument))
            self._copy_sizes(node, argument)
            return cost
        costs = [self.cost(argument) for argument in node.arguments]
        operands = [self._operand(argument) for argument in node.arguments]
        spent = 0
        if node.target is not None:
            spent = self.cost(node.target)
            operands.insert(0, self._operand(node.target))
        worst = 0
        result: Size | None = None
        for overload in node.overloads:
            estimated = self._overload(node, overload, operands, costs)
            worst = max(worst, estimated.cost)
            if estimated.size is not None:
                result = estimated.size if result is None else result.union(estimated.size)
            if overload in ("index_list", "index_map"):
                entries = self._entries_of(node.arguments[0])
                result = entries.value if entries else None
                part = "@items" if overload == "index_list" else "@values"
                self._paths[node] = self._path_below(node.arguments[0], part)
            if result is None:
                result = self._size(node)
        if result is not None:
            self._sizes[node] = result
        return add(spent, worst)

    def _overload(self, node: Call, overload: str, operands: Sequence[Operand], costs: Sequence[int]) -> CallEstimate:
        spent = add(*costs)
        match overload:
            case "logical_and" | "logical_or":
                return CallEstimate(spent)
            case "conditional":
                return self._conditional(node, costs)
            case "add_list" | "add_string" | "add_bytes":
                self._join_entries(node, node.arguments[0], node.arguments[1])
            case "select_optional_field":
                return CallEstimate(add(spent, 1))
        custom = self._estimate_of(node.function, overload)
        if custom is None:
            return CallEstimate(add(spent, 1))
        estimated = custom(*operands)
        return replace(estimated, cost=add(estimated.cost, spent))

    def _conditional(self, node: Call, costs: Sequence[int]) -> CallEstimate:
        _, then, otherwise = node.arguments
        size = self._size_or_unknown(then).union(self._size_or_unknown(otherwise))
        self._join_entries(node, then, otherwise)
        return CallEstimate(add(costs[0], max(costs[1], costs[2])), size)

    def _join_entries(self, node: Expression, one: Expression, other: Expression) -> None:
        entries = self._entries_of(one)
        joined = entries.union(self._entries_of(other)) if entries else None
        if joined is not None:
            self._entries[node] = joined

    # literals

    def _list(self, node: ListNode) -> int:
        cost = add(_LIST, *[self.cost(element) for element in node.elements])
        self._entries[node] = _Entries(TypeKind.LIST, exactly(1), self._range_of(node.elements))
        return cost

    def _map(self, node: MapNode) -> int:
        cost = add(_MAP, *[self.cost(part) for part in node.children()])
        keys, values = [entry.key for entry in node.entries], [entry.value for entry in node.entries]
        self._entries[node] = _Entries(TypeKind.MAP, self._range_of(keys), self._range_of(values))
        return cost

    def _range_of(self, nodes: Sequence[Expression]) -> Size:
        covered = Size(UNBOUNDED if nodes else 0, 0)
        for node in nodes:
            covered = covered.union(self._size_or_unknown(node))
        return covered

    # loops

    def _binding(self, node: Comprehension) -> int:
        cost = self._begin(node)
        cost = add(cost, self.cost(node.result))
        self._locals[node.accumulator].pop()
        self._copy_sizes(node, node.result)
        return cost

    def _loop(self, node: Comprehension) -> int:
        cost = self._begin(node)
        entries = self._entries_of(node.range)
        is_list = (entries.kind if entries else node.range.type.kind) is TypeKind.LIST
        key, value = (entries.key, entries.value) if entries else (None, None)
        if node.second:
            self._push_item(node.variable, node.range, "@indices" if is_list else "@keys", key)
            self._push_item(node.second, node.range, "@items" if is_list else "@values", value)
        elif is_list:
            self._push_item(node.variable, node.range, "@items", value)
        else:
            self._push_item(node.variable, node.range, "@keys", key)
        each = add(self.cost(node.condition), self.cost(node.step))
        self._locals[node.variable].pop()
        if node.second:
            self._locals[node.second].pop()
        cost = add(cost, self.cost(node.result))
        self._locals[node.accumulator].pop()
        count = self._size_or_unknown(node.range)
        if isinstance(node.initial, Literal):
            self._copy_sizes(node, node.initial)
        elif isinstance(node.initial, ListNode | MapNode):
            self._sizes[node] = count
            self._copy_entries(node, node.step)
        return add(cost, times(count.high, each))

    def _begin(self, node: Comprehension) -> int:
        """The cost of the range and of the initial accumulator, which becomes a local variable."""
        cost = add(self.cost(node.range), self.cost(node.initial))
        initial = node.initial
        self._push(node.accumulator, _Local(self._path(initial), self._size(initial), self._entries_of(initial)))
        return cost

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _push_item(self, name: str, iterated: Expression, part: str, size: Size | None) -> None:
        self._push(name, _Local(self._path_below(iterated, part), size))

    # sizes

    def _local(self, node: Expression) -> _Local | None:
        if not isinstance(node, Ident) or node.absolute:
            return None
        stack = self._locals.get(node.name)
        return stack[-1] if stack else None

    def _path(self, node: Expression) -> ValuePath:
        local = self._local(node)
        return local.path if local else self._paths.get(node, ())

    def _operand(self, node: Expression) -> Operand:
        return Operand(node, node.type, self._path(node), self._size(node))

    def _size_or_unknown(self, node: Expression) -> Size:
        return self._size(node) or UNKNOWN

    def _size(self, node: Expression) -> Size | None:
        known = self._sizes.get(node) or _written_size(node)
        if known is not None:
            return known
        declared = _size_at(self._path(node))
        if declared is not None:
            self._sizes[node] = declared
            return declared
        if _is_scalar(node.type):
            return exactly(1)
        local = self._local(node)
        return local.size if local else None

    def _entries_of(self, node: Expression) -> _Entries | None:
        local = self._local(node)
        return self._entries.get(node) or (local.entries if local else None)

    def _copy_entries(self, node: Expression, source: Expression) -> None:
        entries = self._entries_of(source)
        if entries is not None:
            self._entries[node] = entries

    def _copy_sizes(self, node: Expression, source: Expression) -> None:
        size = self._size(source)
        if size is not None:
            self._sizes[node] = size
        self._copy_entries(node, source)


def _written_size(node: Expression) -> Size | None:
    """The size of a literal."""
    match node:
        case Literal(value=str() | bytes() as text):
            return exactly(len(text))
        case Literal():
            return exactly(1)
        case ListNode():
            return exactly(len(node.elements))
        case MapNode():
            return exactly(len(node.entries))
    return None


def _is_scalar(candidate: Type) -> bool:
    if is_optional(candidate):
        return bool(candidate.parameters) and _is_scalar(candidate.parameters[0])
    return candidate.kind in _SCALARS
