# SPDX-License-Identifier: Apache-2.0
"""The dra-dryrun command, also `kubectl dra-dryrun`: what a claim would get before it is submitted."""

from collections.abc import Sequence

import click

from ..allocation import Features
from ..command import InputError, logging_options, run, version_option
from ..resource import Node
from .documents import read_documents
from .evaluate import evaluate
from .expression import cel
from .inventory import with_defaults
from .report import print_tables, to_json
from .sources import load, source_options
from .workload import sort_documents

NOTHING_FITS = 1
"""The exit code when a demand fits nowhere."""


class _Questions(click.Group):
    """The usual question has no name: `dra-dryrun claim.yaml` is `dra-dryrun fit claim.yaml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags_of_the_group = {"--help", "--version"}
        if not args or args[0] not in {*self.commands, *flags_of_the_group}:
            args = ["fit", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Questions)
@version_option
def dryrun() -> None:
    """Say which device on which node claims would get, or why they get none.

    `dra-dryrun FILE...` is short for `dra-dryrun fit FILE...`.
    """


@dryrun.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@source_options
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
def fit(
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

    Exits with 0 when everything fits, 1 when something does not, 2 when the input cannot be used.
    """
    given = sort_documents(read_documents(files))
    if not given.demands:
        kinds = ", ".join(sorted({document.kind for document in given.ignored})) or "nothing else"
        raise InputError(f"{' '.join(files)}: no pending claim, template or pod to evaluate (there is {kinds})")
    source = load(slices, kubeconfig, context, built_in)
    objects = with_defaults([*given.objects, *source.objects])
    verdicts = evaluate(given.demands, objects, Features())
    if output == "json":
        click.echo(to_json(verdicts))
    else:
        print_tables(verdicts, source.where, sum(isinstance(one, Node) for one in objects), wide=output == "wide")
    return 0 if all(verdict.node is not None for verdict in verdicts) else NOTHING_FITS


dryrun.add_command(cel)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(dryrun, arguments)


if __name__ == "__main__":
    main()
