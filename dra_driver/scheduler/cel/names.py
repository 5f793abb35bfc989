# SPDX-License-Identifier: Apache-2.0
"""What an expression reads: the attributes and capacities, and the names that no device has.

`reads_of` lets callers evaluate devices with the same values only once. `unknown_names` and `suggestion` find names in
the expression that no device has, with the most similar existing name.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ...kube.resource import Device
from .declarations import VARIABLE
from .errors import CelIssue
from .tree import Call, Expression, Ident, Literal, Select, walk

_INDEXING: Final = frozenset(("_[_]", "_[?_]", "_?._"))

_SINGULAR: Final = {"attributes": "attribute", "capacity": "capacity"}
_LISTED: Final = 8

Names = Mapping[str, frozenset[str]]
"""Identifiers by domain."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What the value of an expression depends on, besides the name of the driver and allowMultipleAllocations.

    Attributes and capacities are (domain, identifier). `everything` is set if they are not known.
    """

    attributes: frozenset[tuple[str, str]] = frozenset()
    capacities: frozenset[tuple[str, str]] = frozenset()
    everything: bool = False

    def __or__(self, other: "Reads") -> "Reads":
        return Reads(
            self.attributes | other.attributes, self.capacities | other.capacities, self.everything or other.everything
        )


EVERYTHING: Final = Reads(everything=True)


def reads_of(root: Expression) -> Reads:
    """The attributes and capacities that the tree reads. These are all if a part of the device is used as a value."""
    found = Reads()
    pending = [root]
    while pending:
        node = pending.pop()
        path, inner = path_of(node)
        pending.extend(inner)
        match path:
            case None | ("driver" | "allowMultipleAllocations", *_):
                pass
            case ("attributes", str(domain), str(identifier), *_) if "/" not in domain:
                found |= Reads(attributes=frozenset(((domain, identifier),)))
            case ("capacity", str(domain), str(identifier), *_) if "/" not in domain:
                found |= Reads(capacities=frozenset(((domain, identifier),)))
            case _:
                return EVERYTHING
    return found


def path_of(root: Expression) -> tuple[tuple[object, ...] | None, list[Expression]]:
    """The keys after `device`, where None is a computed key, and the expressions in its brackets.

    The keys are None, and the expressions are the children, if the node is not a path into the device.
    """
    keys: list[object] = []
    computed: list[Expression] = []
    node = root
    while True:
        if isinstance(node, Select) and node.constant is None:
            keys.append(node.field)
            node = node.operand
        elif isinstance(node, Call) and node.function in _INDEXING:
            node, key = node.arguments
            keys.append(key.value if isinstance(key, Literal) else None)
            computed.append(key)
        elif isinstance(node, Ident) and node.constant is None and node.name == VARIABLE:
            return tuple(reversed(keys)), computed
        else:
            return None, list(root.children())


@dataclass(frozen=True, slots=True)
class PublishedNames:
    """The names of the attributes and capacities that some devices publish."""

    attributes: Names
    capacity: Names

    @staticmethod
    def of(devices: Iterable[tuple[str, Device]]) -> "PublishedNames":
        """The names that these devices publish. Each device comes with its driver."""
        attributes: dict[str, set[str]] = {}
        capacity: dict[str, set[str]] = {}
        # Most devices publish the same names: each combination is split once.
        alike = dict.fromkeys((driver, tuple(device.attributes), tuple(device.capacity)) for driver, device in devices)
        for driver, of_attributes, of_capacity in alike:
            for names, published in ((attributes, of_attributes), (capacity, of_capacity)):
                for name in published:
                    domain, slash, identifier = name.partition("/")
                    names.setdefault(domain if slash else driver, set()).add(identifier if slash else name)
        return PublishedNames(_frozen(attributes), _frozen(capacity))


def _frozen(names: Mapping[str, set[str]]) -> Names:
    return {domain: frozenset(identifiers) for domain, identifiers in names.items()}


def unknown_names(root: Expression, names: PublishedNames) -> list[CelIssue]:
    """The places where the expression reads names that no device has, in source order, also in has() and `.?`."""
    found = [
        CelIssue("unknown_name", message, node.offset)
        for node in walk(root)
        for message in _missing(node, names, "no device has")
    ]
    return sorted(found, key=lambda issue: issue.offset)


def suggestion(root: Expression, offset: int, driver: str, device: Device) -> str:
    """A hint for a name that the device does not have. Empty if the name is not that of an attribute or capacity."""
    names = PublishedNames.of([(driver, device)])
    messages = (
        message
        for node in walk(root)
        if node.offset == offset
        for message in _missing(node, names, "the device does not have")
    )
    return next(messages, "")


def _missing(node: Expression, names: PublishedNames, who: str) -> Iterator[str]:
    match path_of(node)[0]:
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
