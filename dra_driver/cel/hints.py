# SPDX-License-Identifier: Apache-2.0
"""Names that an expression asks for and devices do not have, with the nearest ones that they do have."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ..resource import Device
from .ast import Node, walk
from .errors import Issue
from .reads import path_of

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
    """What to say about a key that a device lacks, empty where that is no attribute or capacity."""
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
