# SPDX-License-Identifier: Apache-2.0
"""Stage 3: the cost of an expression in the worst case, computed without a device.

kube-apiserver refuses expressions whose cost exceeds the limit. The cost of a call is that of its operands, and what
the library of the function says (`sizes.CallEstimate`). Costs and sizes of literals, loops, fields and indices are
found here. Follows cel-go's `checker/cost.go`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from .sizes import (
    LIST_COST,
    MAP_COST,
    MESSAGE_COST,
    UNBOUNDED,
    UNKNOWN,
    CallEstimate,
    EstimateCall,
    Operand,
    Size,
    ValuePath,
    add,
    exactly,
    size_at,
    times,
)
from .tree import (
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
from .types import Type, TypeKind, is_optional

_SCALARS: Final = frozenset(
    (TypeKind.BOOL, TypeKind.DOUBLE, TypeKind.DURATION, TypeKind.INT, TypeKind.TIMESTAMP, TypeKind.UINT)
)


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
                return add(MESSAGE_COST, *[self.cost(entry.value) for entry in node.entries])
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

    def _join_entries(self, node: Expression, left: Expression, right: Expression) -> None:
        entries = self._entries_of(left)
        joined = entries.union(self._entries_of(right)) if entries else None
        if joined is not None:
            self._entries[node] = joined

    # literals

    def _list(self, node: ListNode) -> int:
        cost = add(LIST_COST, *[self.cost(element) for element in node.elements])
        self._entries[node] = _Entries(TypeKind.LIST, exactly(1), self._range_of(node.elements))
        return cost

    def _map(self, node: MapNode) -> int:
        cost = add(MAP_COST, *[self.cost(part) for part in node.children()])
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
        declared = size_at(self._path(node))
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
