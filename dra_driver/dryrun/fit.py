# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun fit`: whether pods and claims would be scheduled, on which node, and with which devices."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import click

from ..process.command import DurationParameter, InputError
from . import INTERRUPTED
from .answer import Question, answered
from .completion import complete_operand
from .documents import Document, in_namespace, read_all
from .domains import with_templates
from .kueue.objects import Kueue, kueue_at
from .kueue.queues import queue_names
from .live import Watching, ask_again
from .options import Subcommand, files_argument, general_options, interrupted, release_options
from .progress import bar, progress
from .references import references_of
from .release import Rules
from .replicas import MOST_COPIES, only
from .report import format_option, print_errors, print_picture_report
from .rights import Needs
from .sources import Origin, Place, opened, origin_options
from .status import ExitStatus, NotesError
from .whatif import WhatIf, label_options, what_if_options
from .workload import Input, sort_documents


class _Replicas(click.ParamType[int]):
    """A count, or MOST_COPIES for `max`."""

    name = "replicas"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "max":
            return MOST_COPIES
        number = int(str(value)) if str(value).isascii() and str(value).isdigit() else 0
        if not 1 <= number <= MOST_COPIES:
            self.fail(f"{value!r} is neither 'max' nor a number from 1 to {MOST_COPIES}", param, ctx)
        return number


_NOTHING: Final[tuple[Input, Sequence[Document]]] = (Input(), ())


@click.command(
    "fit",
    cls=Subcommand,
    examples=[
        "dra-dryrun pod.yaml",
        "dra-dryrun -f pod.yaml -n team-a --context production",
        "dra-dryrun pod/train",
        "dra-dryrun deployment/serve claim/shared",
        "dra-dryrun --all-pending",
        "dra-dryrun --replicas max claim.yaml",
    ],
)
@files_argument("[FILE|TYPE/NAME]...", complete_operand)
@click.option(
    "--all-pending", is_flag=True, help="Explain all pending pods of the namespace, in the scheduler's order."
)
@click.option("-A", "--all-namespaces", is_flag=True, help="With --all-pending: the pods of all namespaces.")
@origin_options
@what_if_options
@label_options
@release_options
@click.option(
    "--replicas",
    type=_Replicas(),
    metavar="N|max",
    help="Count how many copies of the pod, template or claim in FILE fit, now and on an idle cluster.",
)
@click.option(
    "--devices-only",
    is_flag=True,
    help="Evaluate only the devices of the pods, and no other requirements.",
)
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Keep watching the cluster, and print the verdict each time that it changes, until Ctrl-C. Needs the right to"
    " watch.",
)
@click.option(
    "--until-fits",
    is_flag=True,
    help="Watch the cluster, and end with exit status 0 as soon as everything fits.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=DurationParameter("30s or 10m"),
    metavar="DURATION",
    help="With --until-fits: give up after this time, with the exit status of the last verdict. 0s evaluates once. By"
    " default, there is no limit.",
)
@format_option("How the verdict is printed.", html=True)
@general_options
def fit(  # noqa: PLR0913, PLR0917  # one for each flag
    files: tuple[str, ...],
    all_pending: bool,
    all_namespaces: bool,
    origin: Origin,
    what_if: WhatIf,
    rules: Rules,
    labels: Mapping[str, str],
    strict_labels: bool,
    replicas: int | None,
    devices_only: bool,
    watch: bool,
    until_fits: bool,
    timeout_seconds: float | None,
    output: str,
) -> int:
    """Tell on which node, and with which devices, the pods and claims in FILE would be scheduled, or why not.

    FILE contains ResourceClaims, ResourceClaimTemplates, Pods, Deployments, Jobs and other workloads, such as those of
    Ray, Kubeflow, KServe and KubeVirt. '-' is standard input, and a folder means its YAML and JSON files. TYPE/NAME is
    an object of the cluster: pod/train, deploy/serve, claim/shared, template/one-gpu. Of a pod, the command explains
    why it is pending, or prints its devices. A ComputeDomain in FILE stands for the claim template that is made for it.
    Several pods are placed one after the other. If nodes and pods are known, all default rules of the scheduler apply,
    else only devices are evaluated.

    The exit status is 0 if everything was evaluated and fits, 1 if something does not fit, 2 if the input is wrong or
    cannot be read, and 3 if something was not evaluated, or its verdict depends on something unknown.
    """
    what_if = replace(what_if, labels=labels, strict_labels=strict_labels)
    if all_pending and origin.is_built_in:
        raise InputError("--all-pending: no cluster is configured: set --kubeconfig or KUBECONFIG, or use --slices")
    if replicas is not None and output == "html":
        raise InputError("--replicas is not printed as html (use table, wide, json or yaml)")
    if not (files or all_pending):
        raise click.UsageError("Missing argument: name a FILE, TYPE/NAME such as pod/NAME, or --all-pending.")
    if timeout_seconds is not None and not until_fits:
        raise InputError("--timeout is the time limit of --until-fits: give both")
    named = references_of(files)
    if named and origin.is_built_in:
        first = next(iter(named))
        raise InputError(f"{first}: no cluster is configured: set --kubeconfig or KUBECONFIG, or use --slices")
    needs = Needs(whole_pods=not devices_only, references=True, watches=watch or until_fits)
    with opened(origin, rules, needs) as place:
        pending = place.pods(namespace=None if all_namespaces else place.namespace) if all_pending else []
        nothing_pends = all_pending and not pending and not (files)
        if nothing_pends and output in ("table", "wide"):
            click.echo(f"no pod is pending in {'any namespace' if all_namespaces else place.namespace}")
            return ExitStatus.FITS
        read = read_demands(files, place, origin.namespace, pending) if not nothing_pends else _NOTHING
        given, documents = read
        queues = queue_names(documents)
        demands = given.demands if replicas is None else (only(given.demands),)
        question = Question(
            demands,
            place.features,
            replicas,
            len(given.demands),
            tuple(file for file in files if file not in named),
            tuple(named),
            given.idle,
            given.unknown,
            given.errors,
            queues,
            kueue_at(place, documents) if queues else Kueue(),
        )
        if watch or until_fits:
            with suppress(KeyboardInterrupt):
                return ask_again(
                    place,
                    what_if,
                    given.objects,
                    lambda source: answered(question, source),
                    Watching(until_fits, timeout_seconds, devices_only),
                    output,
                )
            return INTERRUPTED
        with progress("reading the devices") as say:
            source = place.gather(what_if, given.objects, given.around, devices_only=devices_only)
            say("placing")
            answer = answered(question, source, lambda done, total: say(f"placing {bar(done, total)}"))
    print_picture_report(answer, output)
    print_errors(answer.errors)
    if answer.interrupted:
        return interrupted(answer.interrupted)
    return answer.status


def read_demands(
    files: tuple[str, ...], place: Place, namespace: str, pending: list[Document]
) -> tuple[Input, Sequence[Document]]:
    """The demands of the files and of the pending pods, and all documents. Raises InputError if there is nothing to
    answer.
    """
    named = references_of(files)
    read = read_all([file for file in files if file not in named])
    documents, errors = in_namespace(read.documents, place.namespace, asked=namespace)
    documents += [place.named(object_) for object_ in named.values()]
    documents += pending
    documents, more = with_templates(documents, place.lookup)
    given = sort_documents(documents, place.lookup, place.names, place.referred)
    given = replace(given, errors=(*(problem.note for problem in read.problems), *errors, *more, *given.errors))
    if given.demands or (given.unknown and not given.errors) or (given.idle and not given.errors):
        return given, documents
    if given.errors:
        raise NotesError(*given.errors)
    if not documents:
        raise InputError(f"{' '.join(files)}: there is no object in it")
    kinds = ", ".join(sorted({document.kind for document in given.ignored})) or "nothing else"
    raise InputError(f"{' '.join(files)}: no pending claim, template or pod to evaluate (there is {kinds})")
