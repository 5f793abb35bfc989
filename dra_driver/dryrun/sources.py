# SPDX-License-Identifier: Apache-2.0
"""Where the devices come from: the flags that every question shares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from ..command import InputError
from ..resource import Node
from ..resource.codec import Decoded
from .documents import Document
from .inventory import built_in_nodes, connect, from_cluster, from_files, with_defaults
from .release import gathered
from .whatif import WhatIf, changed, new_nodes
from .world import DEVICES_ONLY, Found, World

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Source:
    """Slices, classes, nodes and claims, and in words where they are from and what was changed.

    `world` is None where only devices are considered; `notes` say why, or what else is not considered.
    """

    objects: Sequence[Decoded]
    where: str
    assumptions: tuple[str, ...] = ()
    world: World | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where to look for the objects: in files, in a cluster, or else among the nodes that come with the driver."""

    slices: tuple[str, ...] = ()
    kubeconfig: str | None = None
    context: str | None = None
    in_cluster: bool = False
    built_in: bool = False
    current: bool = False
    """The cluster that kubectl would use, when nothing else is said."""

    @property
    def is_cluster(self) -> bool:
        """Whether the flags name a cluster."""
        return (
            not self.slices
            and not self.built_in
            and any((self.kubeconfig, self.context, self.in_cluster, self.current))
        )

    @property
    def is_anywhere(self) -> bool:
        """Whether the flags name a place at all."""
        return bool(self.slices or self.built_in or self.is_cluster)


_OPTIONS = (
    click.option(
        "--slices",
        multiple=True,
        metavar="FILE",
        envvar="DRA_DRYRUN_SLICES",
        show_envvar=True,
        help="Take the devices from the ResourceSlices in this file or folder, such as one that `snapshot` wrote;"
        " DeviceClasses, Nodes and ResourceClaims there count too. May be repeated.",
    ),
    click.option(
        "--kubeconfig",
        metavar="FILE",
        envvar="KUBECONFIG",
        show_envvar=True,
        help="Take the devices from this cluster (read only: needs get and list).",
    ),
    click.option(
        "--context",
        metavar="NAME",
        envvar="DRA_DRYRUN_CONTEXT",
        show_envvar=True,
        help="The context of your kubeconfig to use.",
    ),
    click.option(
        "--built-in",
        is_flag=True,
        envvar="DRA_DRYRUN_BUILT_IN",
        show_envvar=True,
        help="Take the devices from the nodes that come with the driver, all idle. The default without the others.",
    ),
)
_IN_CLUSTER = click.option(
    "--in-cluster",
    is_flag=True,
    envvar="DRA_DRYRUN_IN_CLUSTER",
    show_envvar=True,
    help="Take the devices from the cluster that this runs in, with the pod's service account.",
)


def origin_options(command: F) -> F:
    """Adds --slices, --kubeconfig, --context, --in-cluster and --built-in, given to the command as `origin`."""
    return gathered(command, (*_OPTIONS[:3], _IN_CLUSTER, *_OPTIONS[3:]), "origin", _origin)


def _origin(
    slices: tuple[str, ...], kubeconfig: str | None, context: str | None, in_cluster: bool, built_in: bool
) -> Origin:
    if in_cluster and built_in:
        raise InputError("--in-cluster and --built-in exclude each other: give the one that the devices come from")
    return Origin(slices, kubeconfig, context, in_cluster, built_in)


def read(origin: Origin, around: Sequence[Document] = (), *, devices_only: bool = False) -> Source:
    """The objects as they are there, and unless `devices_only` the world, to which those `around` are added.

    Raises InputError.
    """
    where = "the nodes that come with the driver"
    if origin.slices:
        where, found = ", ".join(origin.slices), from_files(origin.slices, around, devices_only=devices_only)
    elif origin.is_cluster:
        with connect(origin.kubeconfig, origin.context, origin.in_cluster) as connection:
            where, found = connection.server, from_cluster(connection, devices_only=devices_only, around=around)
    else:
        found = Found(built_in_nodes(), notes=(f"{DEVICES_ONLY}: these nodes say nothing else",))
    if devices_only:
        return Source(found.objects, where, notes=(f"{DEVICES_ONLY}, as asked",))
    return Source(found.objects, where, world=found.world, notes=found.notes)


def read_cluster(origin: Origin) -> Source:
    """The objects as they are there; without a flag those of the current cluster. Raises InputError."""
    return read(origin if origin.is_anywhere else replace(origin, current=True), devices_only=True)


def gather(
    origin: Origin,
    what_if: WhatIf,
    given: Sequence[Decoded] = (),
    around: Sequence[Document] = (),
    *,
    devices_only: bool = True,
) -> Source:
    """The objects to ask: what is there, what is `given` besides, what goes without saying, and the changes to all.

    Raises InputError.
    """
    added = new_nodes(what_if.more)
    if added and not origin.is_anywhere:
        source = Source((), "no cluster", notes=(f"{DEVICES_ONLY}: new nodes say nothing else",))
    else:
        source = read(origin, around, devices_only=devices_only)
    return completed(source, what_if, added, given)


def completed(source: Source, what_if: WhatIf, added: Sequence[Decoded], given: Sequence[Decoded] = ()) -> Source:
    """The same, of a source that was read before; `added` are the nodes to add. Raises InputError."""
    objects = changed(with_defaults([*given, *source.objects]), what_if, added)
    world, assumptions = source.world, what_if.assumptions
    if world is not None:
        nodes = [one for one in added if isinstance(one, Node)]
        world = world.with_nodes(nodes)
        assumptions += ("new nodes had cpu, memory and the like for every pod",) if nodes else ()
        world = world.idle() if what_if.without_claims else world
    return Source(objects, source.where, assumptions, world, source.notes)
