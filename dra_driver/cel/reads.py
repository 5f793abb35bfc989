# SPDX-License-Identifier: Apache-2.0
"""What an expression reads of a device, so that callers evaluate each distinct combination once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .ast import Call, Ident, Literal, Node, Select
from .checker import VARIABLE

_INDEXING: Final = frozenset(("_[_]", "_[?_]", "_?._"))


@dataclass(frozen=True, slots=True)
class Reads:
    """What an expression's value depends on, beside the driver's name and allowMultipleAllocations.

    Attributes and capacities are (domain, identifier); `everything` when they cannot be told.
    """

    attributes: frozenset[tuple[str, str]] = frozenset()
    capacities: frozenset[tuple[str, str]] = frozenset()
    everything: bool = False

    def __or__(self, other: "Reads") -> "Reads":
        return Reads(
            self.attributes | other.attributes,
            self.capacities | other.capacities,
            self.everything or other.everything,
        )


EVERYTHING: Final = Reads(everything=True)


def reads_of(root: Node) -> Reads:
    """What the tree reads. A device, or a part of it, that is used as a value counts as everything."""
    found = Reads()
    pending = [root]
    while pending:
        node = pending.pop()
        path = path_of(node)
        if path is None:
            pending.extend(node.children())
            continue
        match path:
            case ("driver" | "allowMultipleAllocations", *_):
                pass
            case ("attributes", str(domain), str(identifier), *_) if "/" not in domain:
                found |= Reads(attributes=frozenset(((domain, identifier),)))
            case ("capacity", str(domain), str(identifier), *_) if "/" not in domain:
                found |= Reads(capacities=frozenset(((domain, identifier),)))
            case _:
                return EVERYTHING
        pending.extend(_computed_keys(node))
    return found


def path_of(node: Node) -> tuple[object, ...] | None:
    """The keys behind `device` (None: a computed one), or None where the node is no such path."""
    keys: list[object] = []
    while True:
        if isinstance(node, Select) and node.constant is None:
            keys.append(node.field)
            node = node.operand
        elif isinstance(node, Call) and node.function in _INDEXING:
            key = node.arguments[1]
            keys.append(key.value if isinstance(key, Literal) else None)
            node = node.arguments[0]
        elif isinstance(node, Ident) and node.constant is None and node.name == VARIABLE:
            return tuple(reversed(keys))
        else:
            return None


def _computed_keys(node: Node) -> Iterator[Node]:
    while not isinstance(node, Ident):
        if isinstance(node, Call):
            yield node.arguments[1]
            node = node.arguments[0]
        else:
            assert isinstance(node, Select)
            node = node.operand
