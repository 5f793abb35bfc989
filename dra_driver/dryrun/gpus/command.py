# SPDX-License-Identifier: Apache-2.0
"""The command line of `dra-dryrun gpus`."""

from dataclasses import replace
from typing import Final

import click

from ...process.collection import collection_paused
from ...process.command import flags
from ...scheduler.allocator import Features
from ..completion import complete_values, namespaces, nodes_of_cluster
from ..labels import parse_selector
from ..options import Subcommand, general_options
from ..progress import progress
from ..report import format_option, print_picture_report
from ..sources import Origin, Place, Source, opened, origin_options_with
from ..whatif import WhatIf, what_if_options
from .collect import used_nodes
from .items import select_node
from .report import GpusReport
from .selection import GpuSelection
from .users import ConsumerPod
from .watch import watch_gpus

_EXAMPLES: Final = (
    "dra-dryrun gpus",
    "dra-dryrun gpus node-1/5",
    "dra-dryrun gpus --pod team-a/train-0",
    "dra-dryrun gpus --free 1g.10gb -l topology.kubernetes.io/zone=zone-a",
    "dra-dryrun gpus --by node.kubernetes.io/instance-type",
    "dra-dryrun gpus -w",
)


def _selection(where: str, selector: str, pod: str, claim: str, unhealthy: bool, free: str) -> GpuSelection:
    node, _, gpu = where.partition("/")
    labels = parse_selector(selector) if selector else None
    return GpuSelection(node, gpu, labels, pod=pod, claim=claim, unhealthy=unhealthy, free=free)


_selection_options = flags(
    "selection",
    _selection,
    click.argument("where", default="", metavar="[NODE[/GPU]]", shell_complete=complete_values(nodes_of_cluster)),
    click.option(
        "-l", "--selector", metavar="LABELS", default="", help="Only nodes with these labels, as for kubectl."
    ),
    click.option(
        "--pod", metavar="[NAMESPACE/]NAME", default="", help="Only GPUs and other devices that this pod uses."
    ),
    click.option(
        "--claim", metavar="[NAMESPACE/]NAME", default="", help="Only GPUs and other devices that this claim holds."
    ),
    click.option("--unhealthy", is_flag=True, help="Only GPUs with a taint that tells of a fault."),
    click.option(
        "--free",
        metavar="PROFILE",
        default="",
        help="Only GPUs of which a claim could get a device of this MIG profile or vGPU type now, or of the kind whole,"
        " share or passthrough.",
    ),
)
_namespace_option = click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    default="",
    shell_complete=complete_values(namespaces),
    help="Only GPUs and other devices that claims of this namespace hold.",
)


@click.command("gpus", cls=Subcommand, examples=_EXAMPLES)
@_selection_options
@origin_options_with(_namespace_option)
@what_if_options
@click.option(
    "--by", metavar="LABEL", default="", help="Print sums of GPUs by the value of this label of their nodes instead."
)
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Follow the cluster: on a terminal as a live view of the whole screen (its last line has the keys), in a pipe"
    " with a line for each change.",
)
@format_option("How the GPUs are printed: wide has the GPUs of all nodes.", html=True)
@general_options
def gpus(  # one for each flag
    selection: GpuSelection, origin: Origin, what_if: WhatIf, by: str, watch: bool, output: str
) -> None:
    """Show who uses which GPU: for each node its GPUs, and for each GPU the MIG devices, shares or whole GPUs in use
    with their pods, the owners of the pods, since when, and the claims.

    NODE shows one node, and NODE/GPU one GPU, by its number, name or UUID. Nodes with equal GPUs and users are one. Of
    more than four different nodes, only the numbers of GPUs are shown. A GPU is partly used if a claim could still get
    a part of it. Devices of other drivers follow. Times are in UTC: when the first pod of the claim started, or without
    a pod, when the claim was created.
    """
    selection = replace(selection, namespace=origin.namespace)

    def report(source: Source, pods: list[ConsumerPod], features: Features) -> GpusReport:
        with collection_paused():
            nodes = selection.of(used_nodes(source.objects, pods, features), source.where)
        notes = (*source.warnings, *(f"simulating {assumption}" for assumption in source.assumptions))
        return GpusReport(source.where, nodes, notes, selection.asks_for_gpus, by)

    select = select_node(selection.node) if selection.node else None
    if watch:
        with opened(origin) as place:
            watch_gpus(place, what_if, lambda source, pods: report(source, pods, place.features), output)
        return
    with progress("reading the devices"), opened(origin, select=select) as place:
        source = place.gather(what_if)
        pods, note = _pods(place)
        made = report(replace(source, warnings=(*source.warnings, *note)), pods, place.features)
    print_picture_report(made, output)


def _pods(place: Place) -> tuple[list[ConsumerPod], tuple[str, ...]]:
    """What is known of the pods, and a note if they may not be listed. Raises ApiError."""
    pods = place.all_pods(ConsumerPod.of_object)
    return (pods, ()) if pods is not None else ([], ("listing pods is not allowed: their owners are not known",))
