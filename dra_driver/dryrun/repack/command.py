# SPDX-License-Identifier: Apache-2.0
"""The subcommand `repack`."""

import click
from click.core import ParameterSource

from ...process.command import InputError
from ...scheduler.repack import GuardKind
from ..completion import complete_operand
from ..drain.rules import version_of
from ..fit import read_demands
from ..labels import parse_selector
from ..options import Subcommand, filename_option, general_options, release_options
from ..progress import progress
from ..references import references_of
from ..release import Rules
from ..report import format_option, print_report
from ..rights import Needs
from ..sources import Origin, opened, origin_options
from ..whatif import WhatIf, what_if_options
from ..workload import Input
from .goals import GPU, MOST_UNITS, Goal, parse_free
from .question import RepackQuestion, Wish, answered
from .report import packing_report
from .result import RepackResult
from .script import Script

_OF_OUTPUT = {"output", "steps", "at_most"}
_GUARDS = {"auto": None, **{kind.value: kind for kind in GuardKind}}


@click.command(
    "repack",
    cls=Subcommand,
    examples=[
        "dra-dryrun repack train.yaml",
        "dra-dryrun repack --free 7g.80gb=2 --never -l app=serve",
        "dra-dryrun repack --whole-nodes 1 -o json",
        "dra-dryrun repack train.yaml -o script > moves.sh",
    ],
)
@click.argument("files", nargs=-1, metavar="[FILE|TYPE/NAME]...", shell_complete=complete_operand)
@filename_option
@click.option("--free", multiple=True, metavar="PROFILE=COUNT", help="Free devices of a profile, such as 7g.80gb=2.")
@click.option("--whole-gpus", type=click.IntRange(1, MOST_UNITS), metavar="N", help="Free N whole GPUs.")
@click.option("--whole-nodes", type=click.IntRange(1, MOST_UNITS), metavar="N", help="Free all GPUs of N nodes.")
@click.option("--report", is_flag=True, help="Tell for each model how many whole GPUs a perfect packing would add.")
@click.option("-l", "--selector", metavar="SELECTOR", default="", help="Move only pods with these labels.")
@click.option("--never", is_flag=True, help="With -l: never move pods with these labels.")
@click.option("--owner", multiple=True, metavar="KIND", help="A kind of controllers that makes its pods again.")
@click.option(
    "--guard",
    type=click.Choice(list(_GUARDS)),
    default="auto",
    show_default=True,
    help="What keeps places free while pods move: DeviceTaintRules if the cluster has them, else a cordon of nodes.",
)
@click.option("--at-most", type=click.IntRange(0), metavar="N", help="Exit status 1 if more than N pods have to move.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="With -o script: only the first N steps.")
@origin_options
@what_if_options
@release_options
@format_option("How the plan is printed: script has the commands that carry it out.", more=("script",))
@general_options
def repack(  # noqa: PLR0913, PLR0917  # one for each flag
    files: tuple[str, ...],
    more_files: tuple[str, ...],
    free: tuple[str, ...],
    whole_gpus: int | None,
    whole_nodes: int | None,
    report: bool,
    selector: str,
    never: bool,
    owner: tuple[str, ...],
    guard: str,
    at_most: int | None,
    steps: int | None,
    origin: Origin,
    what_if: WhatIf,
    rules: Rules,
    output: str,
) -> int:
    """Tell which pods must move so that a demand fits: the fewest, in their order, and where each goes then.

    The demand is in FILE, or TYPE/NAME of the cluster, as for fit. --free, --whole-gpus and --whole-nodes ask without a
    demand. Pods are moved by their controllers: a pod is evicted, and the new pod is placed by the rules of the
    scheduler. Each step is proven by these rules, and no step needs space that does not exist yet. The cluster is only
    read: -o script prints the commands.

    A pod stays if no controller makes it again, if its claim is not its own, if a PodDisruptionBudget or a
    ResourceQuota is in the way, if it is more important than the demand, and if -l says so.

    The exit status is 0 if there is a plan, 1 if no moves help, 2 if the input is wrong or cannot be read, and 3 if the
    plan depends on something unknown.
    """
    goals = [parse_free(text) for text in free]
    goals += [Goal(GPU, whole_gpus)] if whole_gpus else []
    goals += [Goal(GPU, whole_nodes, whole_nodes=True)] if whole_nodes else []
    every = (*files, *more_files)
    if not (every or goals or report):
        raise click.UsageError(
            "Missing argument: name a FILE, or give --free, --whole-gpus, --whole-nodes or --report."
        )
    if report and (every or goals or output == "script"):
        raise InputError("--report is about all GPUs: name no FILE and no devices with it, and print no script")
    if never and not selector:
        raise InputError("--never is for the pods that -l selects: give both")
    if steps is not None and output != "script":
        raise InputError("--steps is for -o script: give both")
    selected = parse_selector(selector) if selector else None
    wish = Wish(selected if never else None, None if never else selected, frozenset(owner), _GUARDS[guard])
    named = references_of(every)
    if named and origin.is_built_in:
        raise InputError(f"{next(iter(named))}: no cluster is configured: set --kubeconfig or KUBECONFIG")
    with (
        opened(origin, rules, Needs(whole_pods=True, references=True)) as place,
        progress("reading the cluster") as say,
    ):
        given = read_demands(every, place, origin.namespace, [])[0] if every else Input()
        source = place.gather(what_if, given.objects, given.around, devices_only=False)
        say("searching")
        question = RepackQuestion(source, place.features, given.demands, goals, wish)
        if question.guard is GuardKind.TAINTS and not version_of(place.features, asked=True):
            raise InputError(f"Kubernetes {place.features.release} has no DeviceTaintRules: use --guard cordon")
        if report:
            found = packing_report(question)
        else:
            result = RepackResult(answered(question), at_most)
    if report:
        print_report(found, output)
        return found.status
    if output == "script":
        files_of_demand = tuple(file for file in every if file not in named)
        script = Script(result.repacking, _again(), files_of_demand, steps, _kubectl(origin))
        click.echo(script.text(), nl=False)
    else:
        print_report(result, output)
    return result.status


def _kubectl(origin: Origin) -> list[str]:
    """The program kubectl, with the options for the cluster that was read."""
    cluster = origin.cluster
    flags = {
        "--kubeconfig": cluster.kubeconfig if cluster is not None else "",
        "--context": cluster.context if cluster is not None else "",
        "--as": cluster.impersonated if cluster is not None else "",
        "--namespace": origin.namespace,
    }
    return ["kubectl", *(word for name, value in flags.items() if value for word in (name, value))]


def _again() -> list[str]:
    """The command as it was given, without the options that are about its output."""
    context = click.get_current_context()
    words = ["dra-dryrun", "repack"]
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in _OF_OUTPUT or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params.get(name)
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(parameter, click.Argument):
            words += map(str, values)
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words.append(parameter.opts[-1])
        else:
            words += (word for given in values for word in (parameter.opts[-1], str(given)))
    return words
