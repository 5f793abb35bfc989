# SPDX-License-Identifier: Apache-2.0
"""The subcommand `migrate`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from ...process.command import InputError
from ..options import Subcommand, files_argument, general_options, release_options
from ..progress import progress
from ..release import Rules
from ..report import format_option, print_errors, print_report
from ..sources import Origin, cluster_options, opened
from .reading import NEEDS, read_cluster, read_files
from .result import migration_of


@click.command(
    "migrate",
    cls=Subcommand,
    examples=[
        "dra-dryrun migrate --verify",
        "dra-dryrun migrate cluster.yaml config.yaml pods/",
        "dra-dryrun migrate --write plan/ --context production",
    ],
)
@files_argument()
@cluster_options
@release_options
@click.option("--verify", is_flag=True, help="Place the workloads on the devices that the plan would publish.")
@click.option("--write", "folder", metavar="DIR", default="", help="Write the values and manifests to this folder.")
@format_option("How the plan is printed.")
@general_options
def migrate(files: tuple[str, ...], origin: Origin, rules: Rules, verify: bool, folder: str, output: str) -> int:
    """Plan the change from NVIDIA's device plugin (also that for KubeVirt) to this driver.

    FILE contains Nodes, DaemonSets and ConfigMaps of the device plugin and of mig-parted, workloads, and KubeVirt's
    objects. A configuration of the plugin or of mig-parted may also be a file of its own. Without FILE, the cluster is
    read. The command prints the values of the driver's chart, DeviceClasses for the plugin's resources, and what each
    workload needs. It changes nothing in the cluster.

    The exit status is 0 if every workload can run, 1 if one cannot, 2 if the input is wrong or cannot be read, and 3 if
    a workload was not evaluated as a whole.
    """
    if files:
        origin = Origin(asked=True, namespace=origin.namespace)
    elif origin.is_built_in:
        raise InputError("no cluster is configured: name FILEs, or set --kubeconfig or KUBECONFIG")
    with progress("reading") as say, opened(origin, rules, NEEDS) as place:
        where = ", ".join(files) or place.where
        read = read_files(files, place.namespace) if files else read_cluster(place)
        say("planning")
        found = migration_of(place, where, read, place.features, verify=verify)
    if folder:
        _write(folder, found.files())
        found = replace(found, folder=folder)
    print_report(found, output)
    print_errors(found.errors)
    return found.status


def _write(folder: str, files: Mapping[str, str]) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--write {folder}: {error.strerror}") from None
