# SPDX-License-Identifier: Apache-2.0
"""The attributes and capacities that an expression reads, and the names in it that no device has.

Callers evaluate each distinct combination of what is read once; users are told the nearest existing names."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ..resource import Device
from .check.checker import VARIABLE
from .errors import Issue
from .syntax.tree import Call, Ident, Literal, Node, Select, walk

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
            self.attributes | other.attributes, self.capacities | other.capacities, self.everything or other.everything
        )


EVERYTHING: Final = Reads(everything=True)


def reads_of(root: Node) -> Reads:
    """The attributes and capacities that the tree reads: all where a part of the device is used as a value."""
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


_SINGULAR: Final = {"attributes": "attribute", "capacity": "capacity"}
_LISTED: Final = 8

Names = Mapping[str, frozenset[str]]
"""Identifiers by domain."""


@dataclass(frozen=True, slots=True)
class PublishedNames:
    """The names of the attributes and capacities that some devices publish."""

    attributes: Names
    capacity: Names

    @staticmethod
    def of(devices: Iterable[tuple[str, Device]]) -> "PublishedNames":
        """The names that devices, each with its driver, publish."""
        attributes: dict[str, set[str]] = {}
        capacity: dict[str, set[str]] = {}
        for driver, device in devices:
            for names, published in ((attributes, device.attributes), (capacity, device.capacity)):
                for name in published:
                    domain, slash, identifier = name.partition("/")
                    names.setdefault(domain if slash else driver, set()).add(identifier if slash else name)
        return PublishedNames(_frozen(attributes), _frozen(capacity))


def _frozen(names: Mapping[str, set[str]]) -> Names:
    return {domain: frozenset(identifiers) for domain, identifiers in names.items()}


def unknown_names(root: Node, names: PublishedNames) -> list[Issue]:
    """Where the expression reads what no device has, in source order. has() and optional reads count, too."""
    found = [
        Issue("unknown_name", message, node.offset)
        for node in walk(root)
        for message in _missing(node, names, "no device has")
    ]
    return sorted(found, key=lambda issue: issue.offset)


def suggestion(root: Node, offset: int, driver: str, device: Device) -> str:
    """A hint for a key that the device lacks; empty if the key is not that of an attribute or capacity."""
    names = PublishedNames.of([(driver, device)])
    messages = (
        message
        for node in walk(root)
        if node.offset == offset
        for message in _missing(node, names, "the device does not have")
    )
    return next(messages, "")


def _missing(node: Node, names: PublishedNames, who: str) -> Iterator[str]:
    match path_of(node):
        case ("attributes" | "capacity" as field, str(domain), str(identifier)):
            published = names.attributes if field == "attributes" else names.capacity
            if domain not in published:
                yield f"{who} any {_SINGULAR[field]} in domain {domain!r}" + _nearest(domain, published)
            elif identifier not in published[domain]:
                what = f"{_SINGULAR[field]} {identifier!r} in domain {domain}"
                other = "capacity" if field == "attributes" else "attributes"
                elsewhere = names.capacity if field == "attributes" else names.attributes
                if identifier in elsewhere.get(domain, ()):
                    path = f"device.{other}[{domain!r}].{identifier}"
                    yield f"{who} {what}; it is published as {_SINGULAR[other]}: {path}"
                else:
                    yield f"{who} {what}" + _nearest(identifier, published[domain])


def _nearest(wanted: str, existing: Iterable[str]) -> str:
    known = {name.lower(): name for name in sorted(existing)}
    close = difflib.get_close_matches(wanted.lower(), known, n=1)
    if close:
        return f"; did you mean {known[close[0]]!r}?"
    shown = [repr(name) for name in sorted(known.values())]
    if not shown:
        return ""
    more = f" and {len(shown) - _LISTED} more" if len(shown) > _LISTED else ""
    return f" (there are {', '.join(shown[:_LISTED])}{more})"
