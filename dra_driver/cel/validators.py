# SPDX-License-Identifier: Apache-2.0
"""What Kubernetes checks in addition once the types are right: constants that cannot work.

Follows cel-go's `cel/validator.go` and `ext/formatting.go`: durations, timestamps and regular expressions
written as literals, lists and maps of mixed types, and format strings with literal arguments.
"""

from collections.abc import Iterator, Sequence

from . import patterns
from .ast import Call, ListNode, Literal, MapNode, Node, walk
from .errors import Fault, Issue
from .formats import Clause, FormatError, clauses
from .times import Timestamp, parse_duration, parse_timestamp
from .types import Kind, Type
from .unify import unwrap_optional


def validate(root: Node) -> list[Issue]:
    """What is wrong, in source order."""
    found = [issue for node in walk(root) for issue in _literal_arguments(node)]
    found += _mixed(root)
    found += [issue for node in walk(root) for issue in _format(node)]
    return sorted(found, key=lambda issue: issue.offset)


def _literal_arguments(node: Node) -> Iterator[Issue]:
    if not isinstance(node, Call) or not node.arguments:
        return
    argument = node.arguments[0]
    if not isinstance(argument, Literal):
        return
    if not _is_usable(node.function, argument.value):
        yield Issue("invalid_literal", f"invalid {node.function} argument", argument.offset)


def _is_usable(function: str, value: object) -> bool:
    match function, value:
        case "duration", str():
            return parse_duration(value) is not None
        case "duration", int():
            return False
        case "timestamp", str():
            timestamp = parse_timestamp(value)
            return timestamp is not None and timestamp.in_range
        case "timestamp", int():
            return Timestamp(value).in_range
        case "matches", str():
            try:
                patterns.compiled(value)
            except Fault:
                return False
    return True


def _mixed(root: Node) -> Iterator[Issue]:
    """Lists and maps whose parts have different types, unless they are arguments of format()."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Call) and node.function == "format":
            continue
        pending.extend(node.children())
        if isinstance(node, ListNode):
            yield from _different(_parts(node.elements, node.optional))
        elif isinstance(node, MapNode):
            optional = frozenset(index for index, entry in enumerate(node.entries) if entry.optional)
            yield from _different(_parts([entry.key for entry in node.entries], frozenset()))
            yield from _different(_parts([entry.value for entry in node.entries], optional))


def _parts(nodes: Sequence[Node], optional: frozenset[int]) -> Iterator[tuple[Node, Type]]:
    for index, node in enumerate(nodes):
        yield node, unwrap_optional(node.type)[0] if index in optional else node.type


def _different(parts: Iterator[tuple[Node, Type]]) -> Iterator[Issue]:
    first: Type | None = None
    for node, found in parts:
        if first is None:
            first = found
        elif found != first:
            message = f"expected type '{first}' but found '{found}': use dyn() for mixed types"
            yield Issue("type_mismatch", message, node.offset)
            return


def _format(node: Node) -> Iterator[Issue]:
    if not isinstance(node, Call) or node.function != "format" or not isinstance(node.target, Literal):
        return
    arguments = node.arguments[0]
    if not isinstance(arguments, ListNode) or not isinstance(node.target.value, str):
        return
    elements = arguments.elements
    used = 0
    try:
        for used, clause in enumerate(clauses(node.target.value), start=1):
            if isinstance(clause, FormatError):
                raise clause
            wrong = _misfit(clause, elements[used - 1]) if used <= len(elements) else None
            if wrong is not None:
                yield Issue("format", clause.refusal(wrong.type.name), wrong.offset)
                return
    except FormatError as error:
        yield Issue("format", str(error), node.offset)
        return
    if len(elements) != used:
        message = f"format() has {used} clauses but {len(elements)} arguments"
        yield Issue("format", message, node.offset)


def _misfit(clause: Clause, argument: Node) -> Node | None:
    """The argument, or the part of it, that the clause cannot show."""
    if argument.type.kind is not Kind.DYN and argument.type.kind not in clause.kinds:
        return argument
    if clause.letter != "s":
        return None
    parts: Iterator[Node] = iter(())
    if isinstance(argument, ListNode | MapNode):
        parts = argument.children()
    return next((misfit for part in parts if (misfit := _misfit(clause, part))), None)
