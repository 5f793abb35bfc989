# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun lint`: the command."""

from dataclasses import replace

import click
from click.core import ParameterSource

from ...cel import NEWEST, RELEASES
from ...command import USAGE, logging_options, output_option, version_option
from ..progress import progress
from ..sources import Origin as DeviceOrigin
from ..sources import origin_options
from ..sources import read as load
from .catalog import Origin
from .check import check
from .finding import Severity
from .report import OUTPUTS, render, summary
from .source import read

FOUND = 1
"""The exit code when something was found."""


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@origin_options
@click.option(
    "--kubernetes-version",
    "release",
    type=click.Choice(RELEASES),
    default=NEWEST,
    show_default=True,
    envvar="KUBERNETES_VERSION",
    show_envvar=True,
    help="The release that the files are for: its API versions, fields, feature gates and CEL.",
)
@click.option(
    "--strict",
    is_flag=True,
    envvar="DRA_DRYRUN_STRICT",
    show_envvar=True,
    help="Warnings count: exit with 1 for them, too.",
)
@output_option(OUTPUTS, "DRA_DRYRUN_LINT_OUTPUT", "How findings are printed; github makes annotations in a workflow.")
@logging_options
@version_option
def lint(
    files: tuple[str, ...],
    origin: DeviceOrigin,
    release: str,
    strict: bool,
    output: str,
) -> int:
    """Find mistakes in the claims, classes and pods in FILE before they are submitted.

    FILE holds YAML or JSON; '-' is standard input, a folder stands for its YAML and JSON files. ResourceClaims,
    ResourceClaimTemplates, DeviceClasses and ResourceSlices are checked, and what Pods and what makes Pods say of
    claims; other objects are passed over. Selectors are tried on the devices of the nodes that come with the driver,
    or on those that --slices or --kubeconfig give (KUBECONFIG in the environment does not).

    Exits with 0 when nothing is wrong, 1 when something is (warnings alone only with --strict), 2 when a file cannot
    be read.
    """
    reading = read(files)
    if click.get_current_context().get_parameter_source("kubeconfig") is ParameterSource.ENVIRONMENT:
        # A cluster that happens to be at hand must not decide what is wrong with a file.
        origin = replace(origin, kubeconfig=None)
    models = not origin.slices and not origin.is_cluster
    with progress("reading the devices") as say:
        source = load(origin)
        say(f"checking {len(reading.sources)} objects")
        result = check(reading, source.objects, release, Origin(source.where, models))
    if text := render(result, output):
        click.echo(text)
    click.echo(summary(result), err=True)
    if reading.unreadable:
        return USAGE
    counted = [one for one in result.findings if strict or one.severity is Severity.ERROR]
    return FOUND if counted else 0
