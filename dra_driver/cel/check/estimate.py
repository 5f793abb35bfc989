# SPDX-License-Identifier: Apache-2.0
"""The worst-case cost of an expression, found without a device. kube-apiserver refuses what is over the limit.

Follows cel-go's `checker/cost.go`. Costs here are upper bounds only: nothing depends on the lower ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..syntax.tree import (
    Call,
    Comprehension,
    Ident,
    ListNode,
    Literal,
    MapNode,
    MessageNode,
    Node,
    Select,
    qualified_name,
)
from ..types import Type, TypeKind, Uint, is_optional
from .declarations import UNBOUNDED, UNKNOWN, CallEstimate, Names, Operand, Registry, Size, add, exactly, of_path, times

_LIST: Final = 10
_MAP: Final = 30
_MESSAGE: Final = 40


@dataclass(frozen=True, slots=True)
class _Entries:
    """The sizes of a list's or map's keys and values."""

    kind: TypeKind
    key: Size
    value: Size

    def union(self, other: "_Entries | None") -> "_Entries | None":
        if other is None:
            return None
        return replace(self, key=self.key.union(other.key), value=self.value.union(other.value))


@dataclass(frozen=True, slots=True)
class _Local:
    path: Names | None
    size: Size | None
    entries: _Entries | None = None


def estimate(root: Node, registry: Registry) -> int:
    """The cost of a checked tree in the worst case, at most UNBOUNDED."""
    return _Estimator(registry).cost(root)


class _Estimator:
    def __init__(self, registry: Registry) -> None:
        self._functions = registry.functions
        self._paths: dict[Node, Names] = {}
        self._sizes: dict[Node, Size] = {}
        self._entries: dict[Node, _Entries] = {}
        self._locals: dict[str, list[_Local]] = {}

    def cost(self, node: Node) -> int:
        """The node's cost; notes paths and sizes on the way."""
        match node:
            case Ident():
                local = self._local(node)
                path = local.path if local else Names.of(f".{node.name}" if node.shadowed else node.name)
                if path is not None:
                    self._paths[node] = path
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
            self._paths[node] = Names.of(qualified_name(node) or "")
            return 1
        cost = self.cost(node.operand)
        if node.test:
            return cost
        self._continue(node, node.operand, node.field)
        return add(cost, node.operand.type.kind in (TypeKind.MAP, TypeKind.STRUCT))

    def _continue(self, node: Node, operand: Node, name: str) -> None:
        path = self._path(operand)
        self._paths[node] = path.followed_by(name) if path else Names.of(name)

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
                self._continue(node, node.arguments[0], "@items" if overload == "index_list" else "@values")
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
        function = self._functions[node.function]
        custom = function.overload(overload).estimate or function.estimate
        if custom is None:
            return CallEstimate(add(spent, 1))
        estimated = custom(*operands)
        return replace(estimated, cost=add(estimated.cost, spent))

    def _conditional(self, node: Call, costs: Sequence[int]) -> CallEstimate:
        _, then, otherwise = node.arguments
        size = self._size_or_unknown(then).union(self._size_or_unknown(otherwise))
        self._join_entries(node, then, otherwise)
        return CallEstimate(add(costs[0], max(costs[1], costs[2])), size)

    def _join_entries(self, node: Node, one: Node, other: Node) -> None:
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
        cost = _MAP
        for entry in node.entries:
            cost = add(cost, self.cost(entry.key), self.cost(entry.value))
        keys, values = [entry.key for entry in node.entries], [entry.value for entry in node.entries]
        self._entries[node] = _Entries(TypeKind.MAP, self._range_of(keys), self._range_of(values))
        return cost

    def _range_of(self, nodes: Sequence[Node]) -> Size:
        covered = Size(UNBOUNDED if nodes else 0, 0)
        for node in nodes:
            covered = covered.union(self._size_or_unknown(node))
        return covered

    # loops

    def _binding(self, node: Comprehension) -> int:
        cost = add(self.cost(node.range), self.cost(node.initial))
        self._push(node.accumulator, self._bound(node.initial))
        cost = add(cost, self.cost(node.result))
        self._locals[node.accumulator].pop()
        self._copy_sizes(node, node.result)
        return cost

    def _loop(self, node: Comprehension) -> int:
        cost = add(self.cost(node.range), self.cost(node.initial))
        self._push(node.accumulator, self._bound(node.initial))
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
        self._note_result(node, count)
        return add(cost, times(count.high, each))

    def _note_result(self, node: Comprehension, count: Size) -> None:
        if isinstance(node.initial, Literal):
            self._copy_size(node, node.initial)
        elif isinstance(node.initial, ListNode | MapNode):
            self._sizes[node] = count
            entries = self._entries_of(node.step)
            if entries is not None:
                self._entries[node] = entries

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _bound(self, node: Node) -> _Local:
        path = self._path(node)
        entries = self._entries_of(node)
        return _Local(path, self._size(node), entries)

    def _push_item(self, name: str, iterated: Node, part: str, size: Size | None) -> None:
        path = self._path(iterated)
        self._push(name, _Local(path.followed_by(part) if path else Names.of(part), size))

    # sizes

    def _local(self, node: Node) -> _Local | None:
        if not isinstance(node, Ident) or node.absolute:
            return None
        stack = self._locals.get(node.name)
        return stack[-1] if stack else None

    def _path(self, node: Node) -> Names | None:
        local = self._local(node)
        return local.path if local else self._paths.get(node)

    def _operand(self, node: Node) -> Operand:
        path = self._path(node)
        return Operand(node, node.type, path, self._size(node))

    def _size_or_unknown(self, node: Node) -> Size:
        return self._size(node) or UNKNOWN

    def _size(self, node: Node) -> Size | None:
        known = self._sizes.get(node)
        if known is not None:
            return known
        written = _written_size(node)
        if written is not None:
            return written
        declared = of_path(self._path(node))
        if declared is not None:
            self._sizes[node] = declared
            return declared
        if _is_scalar(node.type):
            return exactly(1)
        local = self._local(node)
        return local.size if local else None

    def _entries_of(self, node: Node) -> _Entries | None:
        known = self._entries.get(node)
        if known is not None:
            return known
        local = self._local(node)
        return local.entries if local else None

    def _copy_size(self, node: Node, source: Node) -> None:
        size = self._size(source)
        if size is not None:
            self._sizes[node] = size

    def _copy_sizes(self, node: Node, source: Node) -> None:
        self._copy_size(node, source)
        entries = self._entries_of(source)
        if entries is not None:
            self._entries[node] = entries


def _written_size(node: Node) -> Size | None:
    """The size of a literal."""
    match node:
        case Literal(value=str() | bytes() as text):
            return exactly(len(text))
        case Literal(value=bool() | float() | int() | Uint() | None):
            return exactly(1)
        case ListNode():
            return exactly(len(node.elements))
        case MapNode():
            return exactly(len(node.entries))
    return None


def _is_scalar(candidate: Type) -> bool:
    if is_optional(candidate):
        return bool(candidate.parameters) and _is_scalar(candidate.parameters[0])
    return candidate.kind in (
        TypeKind.BOOL,
        TypeKind.DOUBLE,
        TypeKind.DURATION,
        TypeKind.INT,
        TypeKind.TIMESTAMP,
        TypeKind.UINT,
    )
