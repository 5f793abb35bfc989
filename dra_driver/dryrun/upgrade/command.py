# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun upgrade`: what another Kubernetes release, other gates or another policy of the driver would change."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from ...gpu.policy import NodePolicy, PolicyError, load_policy
from ...process.command import InputError
from ...process.streams import printable
from ...scheduler.allocator import RELEASES
from ..documents import in_namespace, read_all
from ..domains import with_templates
from ..emptiness import release_notes
from ..options import (
    Subcommand,
    complete_files,
    filename_option,
    general_options,
    parse_gates,
    version_options,
)
from ..progress import bar, progress
from ..release import Rules, ServerRelease
from ..releaseparameter import ReleaseParameter
from ..report import format_option, print_report
from ..rights import Needs
from ..sources import Origin, Place, Source, opened, origin_options
from ..workload import sort_documents
from .comparison import Manifests, compare
from .report import UpgradeReport
from .sides import sides_of

_GATES_METAVAR: Final = "GATE=true,..."


@click.command(
    "upgrade",
    cls=Subcommand,
    examples=[
        "dra-dryrun upgrade --to 1.38",
        "dra-dryrun upgrade --to 1.38 --slices cluster.json manifests",
        "dra-dryrun upgrade --feature-gates DRAListTypeAttributes=true",
        "dra-dryrun upgrade --driver-policy policy.yaml",
    ],
)
@click.argument("files", nargs=-1, metavar="[FILE]...", shell_complete=complete_files)
@filename_option
@origin_options
@click.option(
    "--to",
    "target",
    type=ReleaseParameter(RELEASES),
    metavar="RELEASE",
    help=f"The Kubernetes release to upgrade to: {RELEASES[0]} to {RELEASES[-1]}, or a patch release such as 1.36.4."
    " The default is the release of now, to see what gates or a policy change.",
)
@click.option(
    "--feature-gates",
    metavar=_GATES_METAVAR,
    default="",
    help="Feature gates after the upgrade. Gates that are set now stay as they are, and others have their defaults.",
)
@click.option(
    "--driver-policy",
    "policy_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    shell_complete=complete_files,
    help="The driver's policy after the upgrade (the chart's value `policy`): what changed MIG modes, shares or"
    " passthrough do to running and pending pods. By default, nodes publish what they publish now.",
)
@version_options(RELEASES, "The Kubernetes release of now:")
@click.option(
    "--feature-gates-now",
    metavar=_GATES_METAVAR,
    default="",
    help="Feature gates of now, if the cluster does not report them.",
)
@format_option("How the differences are printed: wide has all of them, with all objects.")
@general_options
def upgrade(  # noqa: PLR0913, PLR0917  # one for each flag
    files: tuple[str, ...],
    more_files: tuple[str, ...],
    origin: Origin,
    target: str | None,
    feature_gates: str,
    policy_file: Path | None,
    rules: Rules,
    feature_gates_now: str,
    output: str,
) -> int:
    """Tell what another Kubernetes release or other feature gates would change for the pods of a cluster.

    Every pod, claim, template and class of the cluster, and every workload in FILE, is judged by the rules of now and
    of then. A running pod is judged as if it was deleted and made again, as when its node is drained. The command
    prints verdicts that change, pools that lose devices, expressions that compile or cost otherwise, fields that come
    or go, API versions of FILE that are no longer served, and the feature gates, rules and known defects in which the
    releases differ. The cluster is only read.

    The exit status is 0 if nothing breaks, 1 if something that fits or works now would not, 2 if the input is wrong or
    cannot be read, and 3 if something could not be judged.
    """
    gates_then, gates_now = parse_gates(feature_gates), parse_gates(feature_gates_now)
    if target is None and not gates_then and policy_file is None:
        raise click.UsageError(
            "Missing option: name the release with --to, gates with --feature-gates, or a policy with --driver-policy."
        )
    policy = None if policy_file is None else _policy(policy_file)
    with progress("reading the cluster") as say, opened(origin, rules, Needs(whole_pods=True)) as place:
        server = place.server or ServerRelease()
        now = place.release_among(RELEASES)
        sides = sides_of(now, target or now, server, gates_now, gates_then)
        source, manifests = _read((*files, *more_files), place, origin.namespace)
        comparison = compare(source, sides, manifests, policy, lambda done, total: say(f"comparing {bar(done, total)}"))
    print_report(UpgradeReport(comparison), output)
    for error in comparison.errors:
        click.echo(printable(f"error: {error}"), err=True)
    return comparison.status


def _policy(path: Path) -> NodePolicy:
    try:
        return load_policy(path)
    except PolicyError as error:
        raise InputError(f"--driver-policy: {error}") from None


def _read(files: Sequence[str], place: Place, namespace: str) -> tuple[Source, Manifests]:
    """The objects of the cluster together with those of files, and what of the files is judged. Raises InputError."""
    read = read_all(files)
    documents, errors = in_namespace(read.documents, place.namespace, asked=namespace)
    values = [document.value for document in documents]
    documents, more = with_templates(documents, place.lookup)
    given = sort_documents(documents, place.lookup, place.names, place.referred)
    source = place.read(given.around)
    own = {(type(object_), object_.metadata.namespace, object_.metadata.name) for object_ in given.objects}
    others = [
        object_
        for object_ in source.objects
        if (type(object_), object_.metadata.namespace, object_.metadata.name) not in own
    ]
    objects = [*given.objects, *others]
    source = replace(source, objects=objects, warnings=(*source.warnings, *release_notes(objects, source.server)))
    problems = (*(problem.note for problem in read.problems), *errors, *more, *given.errors)
    return source, Manifests(given.demands, values, given.unknown, problems)
