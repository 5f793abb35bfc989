# SPDX-License-Identifier: Apache-2.0
"""The dra-dryrun command, also `kubectl dra-dryrun`: what a claim would get before it is submitted."""

from collections.abc import Sequence

import click

from ..allocation import Features
from ..command import InputError, logging_options, run, version_option
from ..resource import Node
from .documents import read_documents
from .evaluate import evaluate
from .inventory import built_in_nodes, from_cluster, from_files, with_defaults
from .report import print_tables, to_json
from .workload import sort_documents

NOTHING_FITS = 1
"""The exit code when a demand fits nowhere."""


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--slices",
    multiple=True,
    metavar="FILE",
    envvar="DRA_DRYRUN_SLICES",
    show_envvar=True,
    help="Take the devices from the ResourceSlices in this file or folder; DeviceClasses, Nodes and allocated"
    " ResourceClaims there count too. May be repeated.",
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    envvar="KUBECONFIG",
    show_envvar=True,
    help="Take the devices from this cluster (read only: needs get and list).",
)
@click.option(
    "--context",
    metavar="NAME",
    envvar="DRA_DRYRUN_CONTEXT",
    show_envvar=True,
    help="The context of your kubeconfig to use.",
)
@click.option(
    "--built-in",
    is_flag=True,
    envvar="DRA_DRYRUN_BUILT_IN",
    show_envvar=True,
    help="Take the devices from the nodes that come with the driver, all idle.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json"]),
    default="table",
    show_default=True,
    envvar="DRA_DRYRUN_OUTPUT",
    show_envvar=True,
    help="How the verdict is printed.",
)
@logging_options
@version_option
def dryrun(
    files: tuple[str, ...],
    slices: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    built_in: bool,
    output: str,
) -> int:
    """Say which device on which node the claims in FILE would get, or why they get none.

    FILE holds ResourceClaims, ResourceClaimTemplates, Pods, Deployments, StatefulSets, Jobs or CronJobs with the
    templates that they use; '-' is standard input, a folder stands for its YAML and JSON files. Several pods are
    placed one after the other. Only devices are considered: not CPU, memory, affinity or node taints.

    Without --slices, --kubeconfig or --context the devices are the built-in ones.

    Exits with 0 when everything fits, 1 when something does not, 2 when the input cannot be used.
    """
    given = sort_documents(read_documents(files))
    if not given.demands:
        kinds = ", ".join(sorted({document.kind for document in given.ignored})) or "nothing else"
        raise InputError(f"{' '.join(files)}: no pending claim, template or pod to evaluate (there is {kinds})")
    if slices:
        found, where = from_files(slices), ", ".join(slices)
    elif built_in or not (kubeconfig or context):
        found, where = built_in_nodes(), "the nodes that come with the driver"
    else:
        found, where = from_cluster(kubeconfig, context)
    objects = with_defaults([*given.objects, *found])
    verdicts = evaluate(given.demands, objects, Features())
    if output == "json":
        click.echo(to_json(verdicts))
    else:
        print_tables(verdicts, where, sum(isinstance(one, Node) for one in objects), wide=output == "wide")
    return 0 if all(verdict.node is not None for verdict in verdicts) else NOTHING_FITS


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(dryrun, arguments)


if __name__ == "__main__":
    main()
