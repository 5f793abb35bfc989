# SPDX-License-Identifier: Apache-2.0
"""What Kubernetes checks in addition once the types are right.

Literal arguments that cannot work (durations, timestamps, regular expressions, format strings) are found by the
functions that take them; lists and maps of mixed types are refused here. Follows cel-go's `cel/validator.go`.
"""

from collections.abc import Callable, Iterator, Sequence

from ..errors import Issue
from ..syntax.tree import Call, ListNode, Literal, MapNode, Node, walk
from ..types import Type
from .declarations import CheckConstants, Registry
from .unify import unwrap_optional


def validate(root: Node, registry: Registry) -> list[Issue]:
    """What is wrong, in source order."""
    found = [issue for node in walk(root) if isinstance(node, Call) for issue in _in_arguments(node, registry)]
    found += _mixed(root)
    return sorted(found, key=lambda issue: issue.offset)


def _in_arguments(call: Call, registry: Registry) -> Iterator[Issue]:
    constants = registry.functions[call.function].constants if call.function in registry.functions else None
    if constants is not None and call.arguments:
        yield from constants(call)


def literal_argument(is_usable: Callable[[object], bool]) -> CheckConstants:
    """A check of the first argument that is not part of the target, where it is a literal."""

    def check(call: Call) -> Iterator[Issue]:
        argument = call.arguments[0]
        if isinstance(argument, Literal) and not is_usable(argument.value):
            yield Issue("invalid_literal", f"invalid {call.function} argument", argument.offset)

    return check


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
