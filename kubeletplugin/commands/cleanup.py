# SPDX-License-Identifier: Apache-2.0
"""`dra-kubeletplugin cleanup`: removes everything that the driver created on this node, for an uninstall.

Claims are undone in the same way as by the plugin, so that MIG instances and modes are as they were before. Then the
files are removed. Files of others stay. The command can be repeated, and reports what it could not do.
"""

import contextlib
import errno
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.gpu.nvml import NvmlError
from dra_driver.kube.api import UnreachableError
from dra_driver.kube.resource import ResourceClaim
from dra_driver.process.boot import boot_id
from dra_driver.process.command import UserError, flag, logging_options, version_option
from dra_driver.process.exposed import remove_tree

from ..claims.boundary import EXPECTED_ERRORS
from ..claims.engine import Engine
from ..claims.files import RecordFiles
from ..claims.model import ClaimRef, State
from ..claims.planner import Planner
from ..claims.records import read_records, record_format
from ..claims.specs import ClaimSpecs
from ..containers import cdi
from ..containers.common import CommonSpec
from ..drivers import REMAINS, gpu_driver
from ..errors import AnotherInstanceError, NoDriverError
from ..kubelet.instance import nobody_running, sockets_of_all
from ..node.folders import NodeFolders
from ..node.node import Node
from ..options import node_options
from .domains import DomainsState, read_domains

_DRIVER_SECONDS: Final = 10.0


@click.command()
@node_options
@flag("--dry-run", is_flag=True, envvar="CLEANUP_DRY_RUN", help="Only print what would be removed.")
@flag(
    "--force",
    is_flag=True,
    envvar="CLEANUP_FORCE",
    help="Also undo claims that pods still use, and delete records that cannot be read or undone.",
)
@logging_options
@version_option
def cleanup(node: NodeFolders, dry_run: bool, force: bool) -> None:
    """Remove everything that the driver created on this node: MIG instances, CDI specs, records, sockets.

    Fails while a plugin runs or while claims are prepared. It can be run again at any time.
    """
    try:
        with _alone(node.folder):
            found = find(on_node(node))
            if found.prepared and not force:
                raise UserError(
                    f"{len(found.prepared)} claims are prepared: {', '.join(found.prepared)}; delete the pods that use"
                    " them while the plugin runs, or remove their devices with --force"
                )
            if dry_run:
                for line in found.lines():
                    click.echo(f"would remove {line}")
            else:
                remove(on_node(node), found, force)
            for path in found.foreign:
                click.echo(f"left {path}, which belongs to NVIDIA's own DRA driver")
    except AnotherInstanceError as error:
        raise UserError(f"{error}: delete its DaemonSet first") from None
    except OSError as error:
        raise UserError(f"the node cannot be cleaned up: {error}") from None


def on_node(folders: NodeFolders) -> Node:
    """The node that is cleaned up."""
    return Node("", boot_id(), folders)


@dataclass(frozen=True, slots=True)
class NodeRemains:
    """The objects of both drivers on the node: `claims` with a record, the names of the claims that pods may use,
    record files that cannot be read, changes of GPUs as texts, other remains of features, and files. The claims of
    `domains` have only files on the node. `foreign` files belong to another driver and stay.
    """

    claims: tuple[ClaimRef, ...]
    domains: DomainsState
    prepared: tuple[str, ...]
    unreadable: tuple[str, ...]
    made: tuple[str, ...]
    of_features: tuple[str, ...]
    files: tuple[Path, ...]
    foreign: tuple[Path, ...]

    def lines(self) -> Iterator[str]:
        """A text for each object."""
        yield from (f"claim {claim} (UID {claim.uid}) from this node" for claim in self.claims)
        yield from (
            f"claim {claim.plan.claim} (UID {claim.plan.claim.uid}) from this node" for claim in self.domains.claims
        )
        yield from (f"record {name}, which cannot be read" for name in (*self.unreadable, *self.domains.unreadable))
        yield from self.made
        yield from self.of_features
        yield from map(str, self.files)


def find(node: Node) -> NodeRemains:
    """Find the objects of the driver on the node. Raises OSError."""
    folders, driver = node.folders, gpu_driver()
    records, unreadable = read_records(folders.records, driver)
    remains = [feature(node) for feature in REMAINS]
    base, claims, of_domains = (
        cdi.SpecDirectory(folders.cdi_root, kind) for kind in (cdi.BASE_KIND, cdi.CLAIM_KIND, cdi.DOMAIN_CLAIM_KIND)
    )
    domains = read_domains(folders)
    made = [sorted({stray.remains for stray in step.strays(node)} - {""}) for step in driver.steps]
    return NodeRemains(
        claims=tuple(record.plan.claim for record in records),
        domains=domains,
        prepared=tuple(
            [str(record.plan.claim) for record in records if record.state is State.PREPARED]
            + [str(claim.plan.claim) for claim in domains.claims if claim.state is State.PREPARED]
        ),
        unreadable=tuple(unreadable),
        made=tuple(text for texts in made for text in texts),
        of_features=tuple(line for feature in remains for line in feature.lines()),
        files=tuple(
            path
            for path in (
                *map(claims.file, claims.identifiers()),
                base.file(),
                *sockets_of_all(folders.folder, folders.registry),
                *(path for feature in remains for path in feature.paths()),
                folders.folder,
                *map(of_domains.file, of_domains.identifiers()),
                *sockets_of_all(folders.domain_folder, folders.registry, DOMAIN_DRIVER),
                folders.domain_folder,
            )
            if path.exists()
        ),
        foreign=(*claims.foreign_files(), *of_domains.foreign_files()),
    )


def remove(node: Node, found: NodeRemains, force: bool) -> None:
    """Undo every claim and remove all files. Prints what is removed.

    Raises UserError, and keeps the records, if a change of a GPU cannot be undone, except with `force`. Raises OSError.
    """
    if force:
        for name in found.unreadable:
            (node.folders.records / name).unlink(missing_ok=True)
    remains = [feature(node) for feature in REMAINS]
    problems = [*_undo(node, found), *(problem for feature in remains for problem in feature.end())]
    left = find(node)
    owners = {path: feature for feature in remains for path in feature.paths()}
    unreadable = (f"record {name}" for name in (*left.unreadable, *left.domains.unreadable))
    problems += [f"{what} stays" for what in (*left.made, *unreadable)]
    if problems and not force:
        raise UserError("not everything could be undone: " + "; ".join(problems) + " (--force continues nevertheless)")
    for claim in (*found.claims, *(claim.plan.claim for claim in found.domains.claims)):
        click.echo(f"unprepared claim {claim}")
    for problem in problems:
        click.echo(f"left unchanged: {problem}")
    for path in left.files:
        if path in owners:
            click.echo(owners[path].remove(path))
        elif path.is_dir():
            click.echo(_remove_folder(path))
        else:
            path.unlink(missing_ok=True)
            click.echo(f"removed {path}")


def _remove_folder(folder: Path) -> str:
    """Remove the content of the folder, and the folder itself if possible. Returns a text about it."""
    for path in folder.iterdir():
        remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EROFS):
            raise
        return f"emptied {folder}, and kept the folder, because it is a mount point here ({error.strerror})"
    return f"removed {folder}"


def _undo(node: Node, found: NodeRemains) -> list[str]:
    """Undo claims and changes of GPUs. Returns the problems as texts."""
    if not (found.claims or found.made):
        return []
    common = CommonSpec(node.folders.cdi_root, node.folders.driver_root)
    driver = gpu_driver()
    files = RecordFiles(node.folders.records, record_format(driver))
    engine = Engine(Planner(driver, node, _unasked), files, ClaimSpecs(node, common))
    there = threading.Event()
    node.access.start(there.set)
    there.wait(_DRIVER_SECONDS)  # if no driver is found or it hangs, the GPUs stay as they are
    problems = []
    for claim in found.claims:
        try:
            engine.unprepare(claim)
        except EXPECTED_ERRORS as error:
            problems.append(f"claim {claim}: {error}")
    try:
        node.gpus()
        engine.recover()  # undoes changes of GPUs without a record
    except (NoDriverError, NvmlError) as error:
        problems += [str(error)] if found.made else []
    node.access.stop()
    return problems


def _unasked(ref: ClaimRef) -> ResourceClaim:
    raise UnreachableError(f"the API server was not asked about claim {ref}")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only process that uses `folder`, if it exists."""
    with nobody_running(folder) if folder.is_dir() else contextlib.nullcontext():
        yield
