# SPDX-License-Identifier: Apache-2.0
"""Simulated changes of the cluster: additional nodes, no claims in use, drained nodes.

Each change is a function from objects to objects, so that every subcommand can use its result.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ..gpu.policy import NodePolicy, PolicyError, load_policy
from ..kube.resource import Node, ResourceClaim, ResourceSlice
from ..kube.resource.codec import Decoded
from ..kube.resource.meta import empty
from ..kube.resource.names import is_label_key, is_label_value
from ..process.command import InputError, flags
from ..process.words import listed
from ..scheduler.allocator.nodes import NODE_NAME_FIELD
from .completion import complete_values, types_of_nodes
from .nodetypes import simulated_nodes
from .options import option

F = TypeVar("F", bound=Callable[..., Any])

MOST_NODES: Final = 1000
"""The number of nodes that one --with-node may add."""
_NAMED: Final = 6


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The changes that the user asks for. `more` has the types and numbers of additional nodes, and `policy` is the
    driver's on built-in and additional nodes. These nodes get the `labels`. With `strict_labels`, they have only their
    known labels.
    """

    more: tuple[tuple[str, int], ...] = ()
    without_claims: bool = False
    drained: tuple[str, ...] = ()
    policy: NodePolicy | None = None
    labels: Mapping[str, str] = field(default_factory=empty)
    strict_labels: bool = False

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The changes in words that go with "simulating": `3 additional nodes of type h100x8`."""
        words = [f"{count} additional node{'s' * (count != 1)} of type {kind}" for kind, count in self.more]
        words += ["no claim in use"] if self.without_claims else []
        words += [f"node {name} drained" for name in self.drained]
        words += [f"the label {key}={value} on simulated nodes" for key, value in self.labels.items()]
        return tuple(words)


def what_if_options(command: F) -> F:
    """Adds --with-node, --without-claims, --drain and --policy, given to the command as `what_if`."""
    options = (
        option(
            "--with-node",
            multiple=True,
            metavar="NAME[=COUNT]",
            shell_complete=complete_values(types_of_nodes),
            help="Simulate COUNT (1) additional nodes of a built-in type, such as h100x8 or h100x8-mig, or of a type"
            " that a file describes. Without a cluster, there are no other nodes. May be repeated.",
        ),
        option(
            "--without-claims",
            is_flag=True,
            help="Simulate that no claim is in use.",
        ),
        option(
            "--drain",
            multiple=True,
            metavar="NODE",
            help="Simulate that this node, and the claims that hold its devices, are gone. May be repeated.",
        ),
        option(
            "--policy",
            "policy_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="The driver's policy (the chart's value `policy`) on built-in nodes and on those of --with-node. Other"
            " nodes publish what they publish.",
        ),
    )
    return flags("what_if", _parse, *options)(command)


def _parse(with_node: Sequence[str], without_claims: bool, drain: Sequence[str], policy_file: Path | None) -> WhatIf:
    try:
        policy = None if policy_file is None else load_policy(policy_file)
    except PolicyError as error:
        raise InputError(f"--policy: {error}") from None
    return WhatIf(tuple(parse_node(text) for text in with_node), without_claims, tuple(dict.fromkeys(drain)), policy)


def label_options(command: F) -> F:
    """Adds --node-labels and --strict-labels, given to the command as `labels` and `strict_labels`."""
    options = (
        option(
            "--node-labels",
            "labels",
            multiple=True,
            metavar="KEY=VALUE,...",
            callback=lambda _context, _parameter, texts: parse_labels(texts),
            help="Labels of built-in nodes, of nodes of --with-node, and of nodes of which only slices are known."
            " May be repeated.",
        ),
        option(
            "--strict-labels",
            is_flag=True,
            help="Do not assume that these nodes have labels that pods select and that are not known.",
        ),
    )
    for add_option in reversed(options):
        command = add_option(command)
    return command


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """The labels of `a=b,c=d` and of more such texts. Raises InputError."""
    labels: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not is_label_key(key) or not is_label_value(value):
            raise InputError(f"--node-labels: {part!r} is not a label of the form KEY=VALUE")
        labels[key] = value
    return labels


def parse_node(text: str) -> tuple[str, int]:
    """`h100x8=3` as ("h100x8", 3). Raises InputError."""
    kind, equals, number = text.rpartition("=")
    if not equals:
        return text, 1
    if not kind or not (number.isascii() and number.isdigit()) or not 1 <= int(number) <= MOST_NODES:
        raise InputError(f"--with-node {text}: write NAME=COUNT with a count of 1 to {MOST_NODES}, such as h100x8=3")
    return kind, int(number)


def new_nodes(what_if: WhatIf) -> list[Decoded]:
    """Nodes `new-h100x8-1`, … with their slices, all idle. Raises InputError for a kind that there is not."""
    counts: dict[str, int] = {}
    for kind, count in what_if.more:
        counts[kind] = counts.get(kind, 0) + count
    return [object_ for kind, count in counts.items() for object_ in simulated_nodes(kind, count, what_if.policy)]


def changed(objects: Sequence[Decoded], what_if: WhatIf, added: Sequence[Decoded]) -> list[Decoded]:
    """The objects after the changes; `added` are what `new_nodes` made. Raises InputError."""
    known = {object_.name for object_ in objects if isinstance(object_, Node)}
    twice = sorted(known & {object_.name for object_ in added if isinstance(object_, Node)})
    if twice:
        raise InputError(f"--with-node: there is a node {twice[0]} already, and new ones are named so")
    kept = without_claims(objects) if what_if.without_claims else list(objects)
    return without_nodes([*kept, *added], what_if.drained)


def with_labels(objects: Iterable[Decoded], nodes: Collection[str], labels: Mapping[str, str]) -> list[Decoded]:
    """The objects, with these labels on these nodes."""
    return [
        replace(object_, metadata=replace(object_.metadata, labels={**object_.metadata.labels, **labels}))
        if labels and isinstance(object_, Node) and object_.name in nodes
        else object_
        for object_ in objects
    ]


def without_claims(objects: Iterable[Decoded]) -> list[Decoded]:
    """The objects without the claims that hold devices."""
    return [
        object_ for object_ in objects if not (isinstance(object_, ResourceClaim) and object_.allocation is not None)
    ]


def without_nodes(objects: Sequence[Decoded], names: Collection[str]) -> list[Decoded]:
    """The objects without these nodes and without the claims that hold their devices. Raises InputError.

    Slices of a pool that other nodes share stay: without them the pool would not be complete.
    """
    known = [object_.name for object_ in objects if isinstance(object_, Node)]
    for name in names:
        if name not in known:
            raise InputError(f"--drain {name}: there is no such node (there are {listed(known, _NAMED)})")
    slices = [object_ for object_ in objects if isinstance(object_, ResourceSlice)]
    places: dict[tuple[str, str], set[str | None]] = defaultdict(set)  # None for a slice that names no node
    for slice_ in slices:
        places[slice_.driver, slice_.pool.name].add(slice_.node_name or None)
    local = {
        (slice_.driver, slice_.pool.name, device.name)
        for slice_ in slices
        for device in slice_.devices
        if (slice_.node_name or device.node_name) in names
    }

    def leaves(object_: Decoded) -> bool:
        match object_:
            case Node():
                return object_.name in names
            case ResourceSlice():
                return places[object_.driver, object_.pool.name] <= set(names)
            case ResourceClaim():
                return _holds(object_, local) or _bound_to(object_, names)
        return False

    return [object_ for object_ in objects if not leaves(object_)] if names else list(objects)


def _holds(claim: ResourceClaim, devices: Collection[tuple[str, str, str]]) -> bool:
    return claim.allocation is not None and any(
        (result.driver, result.pool, result.device) in devices for result in claim.allocation.results
    )


def _bound_to(claim: ResourceClaim, names: Collection[str]) -> bool:
    """Whether the claim can only be used on one of the nodes."""
    selector = claim.allocation.node_selector if claim.allocation is not None else None
    return selector is not None and any(
        field.key == NODE_NAME_FIELD and field.operator == "In" and set(field.values) <= set(names)
        for term in selector.terms
        for field in term.match_fields
    )
