# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun node-template`: the ResourceSlices that a new node would publish, for an autoscaler."""

import click

from ..kube.resource import ResourceSlice
from ..process.command import InputError
from .completion import complete_values, types_of_nodes
from .nodetypes import is_node_type, like, simulated_nodes
from .options import Subcommand, general_options
from .progress import progress
from .report import object_format_option
from .snapshot import encoded, written
from .sources import Origin, opened, origin_options
from .whatif import WhatIf, what_if_options


@click.command(
    "node-template",
    cls=Subcommand,
    examples=[
        "dra-dryrun node-template h100x8 --policy policy.yaml > template.yaml",
        "dra-dryrun node-template node-1 --context production",
    ],
)
@click.argument("name", shell_complete=complete_values(types_of_nodes))
@origin_options
@what_if_options
@object_format_option("How the slices are written.")
@general_options
def node_template(name: str, origin: Origin, what_if: WhatIf, output: str) -> None:
    """Print the ResourceSlices that a new node like NAME will publish, for an autoscaler that simulates nodes.

    NAME is a node of the cluster, or a built-in type such as h100x8 or a file that describes one, which needs no
    cluster.
    """
    click.echo(written(list(encoded(_template(name, origin, what_if))), output), nl=False)


def _template(name: str, origin: Origin, what_if: WhatIf) -> list[ResourceSlice]:
    """The slices of a new node. Raises InputError."""
    if is_node_type(name):
        return [object_ for object_ in simulated_nodes(name, 1, what_if.policy) if isinstance(object_, ResourceSlice)]
    if what_if.policy is not None:
        raise InputError(f"--policy: {name} is not a built-in type of nodes, whose slices follow from a policy")
    with progress("reading the devices"), opened(origin) as place:
        source = place.gather(what_if)
    found = [object_ for object_ in source.objects if isinstance(object_, ResourceSlice) and object_.node_name == name]
    if not found:
        raise InputError(f"there is no node {name!r} with slices in {source.where}, and no built-in type of this name")
    return [like(slice_, f"new-{name}-1") for slice_ in found]
