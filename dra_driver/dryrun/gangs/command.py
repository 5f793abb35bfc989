# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun gangs`: whether groups of pods would be scheduled as a whole, and whether that is possible at all."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import click

from ...process.command import DurationParameter, InputError
from ...process.streams import printable
from ...scheduler.gangs import SECONDS
from ..completion import complete_operand
from ..documents import Document, in_namespace, read_all, within
from ..domains import with_templates
from ..groups import ReferencedObjects
from ..options import Subcommand, filename_option, general_options, release_options
from ..progress import bar, progress
from ..references import references_of
from ..release import Rules
from ..report import format_option, print_report
from ..rights import Needs
from ..sources import Origin, Place, opened, origin_options
from ..status import Note, NotesError
from ..whatif import WhatIf, label_options, what_if_options
from ..workload import Input, is_workload, sort_documents
from .ask import answers
from .grouping import Grouped, grouped
from .printed import GangReport

_POD_GROUP: Final = re.compile(r"(?:podgroups?|pg)/([a-z0-9][a-z0-9.-]*)")


@click.command(
    "gangs",
    cls=Subcommand,
    examples=[
        "dra-dryrun gangs job.yaml",
        "dra-dryrun gangs podgroup/train -n team-a --context production",
        "dra-dryrun gangs --all-pending -A",
        "dra-dryrun gangs jobset.yaml --with-node h100x8=32",
        "dra-dryrun gangs pods.yaml --min-count 8",
    ],
)
@click.argument("files", nargs=-1, metavar="[FILE|TYPE/NAME]...", shell_complete=complete_operand)
@filename_option
@click.option("--all-pending", is_flag=True, help="The groups of all pending pods of the namespace.")
@click.option("-A", "--all-namespaces", is_flag=True, help="With --all-pending: the pods of all namespaces.")
@origin_options
@what_if_options
@label_options
@release_options
@click.option(
    "--min-count",
    type=click.IntRange(1),
    metavar="N",
    help="Take the pods of each object that makes no group as a gang of which N pods must run at once.",
)
@click.option(
    "--search-timeout",
    "search_seconds",
    type=DurationParameter("5s or 1m"),
    metavar="DURATION",
    default=f"{SECONDS:.0f}s",
    show_default=True,
    help="The time limit of the search for an assignment of one group. After it, whether there is one is unknown.",
)
@format_option("How the answers are printed: wide has every pod.")
@general_options
def gangs(  # noqa: PLR0913, PLR0917  # one for each flag
    files: tuple[str, ...],
    more_files: tuple[str, ...],
    all_pending: bool,
    all_namespaces: bool,
    origin: Origin,
    what_if: WhatIf,
    rules: Rules,
    labels: Mapping[str, str],
    strict_labels: bool,
    min_count: int | None,
    search_seconds: float,
    output: str,
) -> int:
    """Tell whether kube-scheduler places the groups of pods in FILE as a whole, and if not, whether it could.

    A group is a PodGroup of Kubernetes 1.37 with its pods, a Job with `spec.scheduling`, a JobSet, a TrainJob, a
    replica of a LeaderWorkerSet, or a group of Volcano or KAI Scheduler. podgroup/NAME is a group of the cluster with
    its pending pods. The scheduler's own verdict is compared with a search for all pods at once. If the scheduler
    refuses a group although an assignment exists, the command prints the assignment, and changes with which the
    scheduler finds one.

    The exit status is 0 if every group is scheduled, 1 if one is not, 2 if the input is wrong or cannot be read, and 3
    if a verdict depends on something unknown, such as the scores of nodes.
    """
    what_if = replace(what_if, labels=labels, strict_labels=strict_labels)
    operands = (*files, *more_files)
    if not (operands or all_pending):
        raise click.UsageError("Missing argument: name a FILE, podgroup/NAME, or --all-pending.")
    if origin.is_built_in and (all_pending or any(_POD_GROUP.fullmatch(operand) for operand in operands)):
        raise InputError("no cluster is configured: set --kubeconfig or KUBECONFIG, or use --slices")
    with opened(origin, rules, Needs(whole_pods=True, references=True)) as place:
        given, found = _read(operands, place, origin.namespace, all_pending, all_namespaces, min_count)
        with progress("reading the devices") as say:
            source = place.gather(what_if, given.objects, given.around, devices_only=False)
            asked = []
            for answer in answers(found.groups, source, place.features, search_seconds):
                asked.append(answer)
                say(f"placing {bar(len(asked), len(found.groups))}")
    report = GangReport(
        asked,
        source,
        [demand.name for demand in found.others],
        (*given.unknown, *source.unknown, *source.unknown_of_pods),
        (*given.errors, *found.errors, *source.errors),
    )
    print_report(report, output)
    for error in report.errors:
        click.echo(printable(f"error: {error}"), err=True)
    return report.status


def _read(  # what the options name
    operands: Sequence[str],
    place: Place,
    namespace: str,
    all_pending: bool,
    all_namespaces: bool,
    min_count: int | None,
) -> tuple[Input, Grouped]:
    """The documents, and the groups among them. Raises InputError if there is no group."""
    named_groups = {match[1] for operand in operands if (match := _POD_GROUP.fullmatch(operand))}
    rest = [operand for operand in operands if not _POD_GROUP.fullmatch(operand)]
    named = references_of(rest)
    read = read_all([file for file in rest if file not in named])
    documents, errors = in_namespace(read.documents, place.namespace, asked=namespace)
    documents += [place.named(object_) for object_ in named.values()]
    if all_pending:
        documents += place.pods(namespace=None if all_namespaces else place.namespace)
    elif named_groups:
        documents += [pod for pod in place.pods(namespace=place.namespace) if _group_of(pod) in named_groups]
    documents, more = with_templates(documents, place.lookup)
    given = sort_documents(documents, place.lookup, place.names, place.referred)
    found_errors: tuple[Note, ...] = (*(problem.note for problem in read.problems), *errors, *more, *given.errors)
    given = replace(given, errors=found_errors)
    library = ReferencedObjects((document.value for document in documents), place.referred)
    namespaces = {document.namespace for document in documents if document.kind != "Pod" and is_workload(document)}
    workloads, notes = place.workloads(sorted(namespaces)) if namespaces else ([], ())
    given = replace(given, unknown=(*given.unknown, *notes))
    found = grouped([*documents, *workloads], given.demands, library, min_count)
    if found.groups:
        return given, found
    if given.errors or found.errors:
        raise NotesError(*given.errors, *found.errors)
    if all_pending or named_groups:
        raise InputError("no pending pod belongs to a group")
    pods = ", ".join(demand.name for demand in found.others[:3])
    if not pods:
        raise InputError(f"{' '.join(operands)}: there is no group of pods")
    raise InputError(f"{' '.join(operands)}: {pods}: in no group; --min-count takes the pods of an object as one")


def _group_of(pod: Document) -> object:
    return within(within(pod.value, "spec"), "schedulingGroup").get("podGroupName")
