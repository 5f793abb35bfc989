# SPDX-License-Identifier: Apache-2.0
"""Where the devices come from: the flags that every question shares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from ..resource.codec import Decoded
from .inventory import built_in_nodes, from_cluster, from_files

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Source:
    """Slices, classes, nodes and claims, and in words where they are from."""

    objects: Sequence[Decoded]
    where: str


def source_options(command: F) -> F:
    """Adds --slices, --kubeconfig, --context and --built-in, to be given to `load`."""
    options = (
        click.option(
            "--slices",
            multiple=True,
            metavar="FILE",
            envvar="DRA_DRYRUN_SLICES",
            show_envvar=True,
            help="Take the devices from the ResourceSlices in this file or folder; DeviceClasses, Nodes and"
            " ResourceClaims there count too. May be repeated.",
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
    for option in reversed(options):
        command = option(command)
    return command


def load(slices: Sequence[str], kubeconfig: str | None, context: str | None, built_in: bool) -> Source:
    """What the flags ask for. Raises InputError."""
    if slices:
        return Source(from_files(slices), ", ".join(slices))
    if built_in or not (kubeconfig or context):
        return Source(built_in_nodes(), "the nodes that come with the driver")
    return Source(*from_cluster(kubeconfig, context))
