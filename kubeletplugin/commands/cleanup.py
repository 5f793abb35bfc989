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
from dra_driver.errors import MpsError, ProgramError
from dra_driver.gpu.nvml import NvmlError
from dra_driver.kube.api import UnreachableError
from dra_driver.kube.resource import ResourceClaim
from dra_driver.process.boot import boot_id
from dra_driver.process.command import UserError, flag, logging_options, version_option
from dra_driver.process.exposed import remove_tree
from dra_driver.process.mps import end_processes, processes_of
from kubeletplugin.containers import cdi
from kubeletplugin.features.mps.daemon import DaemonLimits
from kubeletplugin.features.mps.memory import remove_shared_memory, shared_memory_folder
from kubeletplugin.features.mps.shares import ShareFiles

from ..claims.actions import EXPECTED_ERRORS
from ..claims.lifecycle import Lifecycle
from ..containers.specs import ClaimSpecs, CommonSpec
from ..errors import AnotherInstanceError, NoDriverError
from ..kinds.targets import ClaimRef
from ..kubelet.instance import nobody_running, sockets_of_all
from ..node.gpus import GpuAccess
from ..node.marks import Marks
from ..options import NodeFolders, node_options
from ..records.files import State
from ..records.format import Records, read_records
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
            found = find(node)
            if found.prepared and not force:
                raise UserError(
                    f"{len(found.prepared)} claims are prepared: {', '.join(found.prepared)}; delete the pods that use"
                    " them while the plugin runs, or remove their devices with --force"
                )
            if dry_run:
                for line in found.lines():
                    click.echo(f"would remove {line}")
            else:
                remove(node, found, force)
            for path in found.foreign:
                click.echo(f"left {path}, which belongs to NVIDIA's own DRA driver")
    except AnotherInstanceError as error:
        raise UserError(f"{error}: delete its DaemonSet first") from None
    except OSError as error:
        raise UserError(f"the node cannot be cleaned up: {error}") from None


@dataclass(frozen=True, slots=True)
class NodeRemains:
    """The objects of both drivers on the node: `claims` with a record, the names of those that pods may use, record
    files that cannot be read, changes of GPUs as texts, processes of MPS, and files. The claims of `domains` have only
    files on the node. `foreign` files belong to another driver and stay.
    """

    claims: tuple[ClaimRef, ...]
    domains: DomainsState
    prepared: tuple[str, ...]
    unreadable: tuple[str, ...]
    made: tuple[str, ...]
    processes: tuple[int, ...]
    files: tuple[Path, ...]
    foreign: tuple[Path, ...]

    def lines(self) -> Iterator[str]:
        """A text for each object."""
        yield from (f"claim {claim} (UID {claim.uid}) from this node" for claim in self.claims)
        yield from (f"claim {one.plan.claim} (UID {one.plan.claim.uid}) from this node" for one in self.domains.claims)
        yield from (f"record {name}, which cannot be read" for name in (*self.unreadable, *self.domains.unreadable))
        yield from self.made
        yield from (f"process {pid} of an MPS daemon" for pid in self.processes)
        yield from map(str, self.files)


def find(node: NodeFolders) -> NodeRemains:
    """Find the objects of the driver on the node. Raises OSError."""
    records, unreadable = read_records(node.records)
    marks = Marks(node.folder)
    base, claims, of_domains = (
        cdi.SpecDirectory(node.cdi_root, kind) for kind in (cdi.BASE_KIND, cdi.CLAIM_KIND, cdi.DOMAIN_CLAIM_KIND)
    )
    domains = read_domains(node)
    return NodeRemains(
        claims=tuple(record.plan.claim for record in records),
        domains=domains,
        prepared=tuple(
            [str(one.plan.claim) for one in records if one.state is State.PREPARED]
            + [str(one.plan.claim) for one in domains.claims if one.state is State.PREPARED]
        ),
        unreadable=tuple(unreadable),
        made=(
            *sorted(f"the MIG instance at {one.placement} of GPU {one.gpu_uuid}" for one in marks.instances.all()),
            *sorted(f"the MIG mode that GPU {one.gpu_uuid} was switched to" for one in marks.modes.all()),
            *sorted(f"the compute mode that GPU {one.gpu_uuid} was switched to" for one in marks.compute_modes.all()),
            *sorted(f"the time-slice interval of GPU {one.gpu_uuid}" for one in marks.time_slices.all()),
            *(f"the vfio driver of GPU {mark.address}" for mark in marks.vfio.all()),
            *(f"the NVSwitch partition {mark.partition}" for mark in marks.fabric.all() if not mark.found),
            *sorted(f"a vGPU of type {one.type_id} on {one.address}" for one in marks.vfio.vgpus.all()),
            *sorted(f"the MPS daemon for GPU {uuid}" for uuid in {share.gpu for share in marks.mps.all()}),
        ),
        processes=tuple(processes_of(node.mps.files)),
        files=tuple(
            path
            for path in (
                *map(claims.file, claims.identifiers()),
                base.file(),
                *sockets_of_all(node.folder, node.registry),
                *_shared_memory(node),
                node.folder,
                *map(of_domains.file, of_domains.identifiers()),
                *sockets_of_all(node.domain_folder, node.registry, DOMAIN_DRIVER),
                node.domain_folder,
            )
            if path.exists()
        ),
        foreign=(*claims.foreign_files(), *of_domains.foreign_files()),
    )


def remove(node: NodeFolders, found: NodeRemains, force: bool) -> None:
    """Undo every claim and remove all files. Prints what is removed.

    Raises UserError, and keeps the records, if a change of a GPU cannot be undone, except with `force`. Raises OSError.
    """
    if force:
        for name in found.unreadable:
            (node.records / name).unlink(missing_ok=True)
    problems = [*_undo(node, found), *_end_mps(node)]
    left = find(node)
    shared = _shared_memory(node)
    unreadable = (f"record {name}" for name in (*left.unreadable, *left.domains.unreadable))
    problems += [f"{what} stays" for what in (*left.made, *unreadable)]
    if problems and not force:
        raise UserError("not everything could be undone: " + "; ".join(problems) + " (--force continues nevertheless)")
    for claim in (*found.claims, *(one.plan.claim for one in found.domains.claims)):
        click.echo(f"unprepared claim {claim}")
    for problem in problems:
        click.echo(f"left unchanged: {problem}")
    for path in left.files:
        if path in shared:
            click.echo(_remove_shared_memory(path, node))
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


def _shared_memory(node: NodeFolders) -> list[Path]:
    return [shared_memory_folder(node.shared_memory, server) for server in ShareFiles(node.mps.files).servers()]


def _remove_shared_memory(path: Path, node: NodeFolders) -> str:
    try:
        remove_shared_memory(path, ShareFiles(node.mps.files).trash)
    except (MpsError, ProgramError) as error:
        return f"left {path}: {error}"
    return f"removed {path}"


def _undo(node: NodeFolders, found: NodeRemains) -> list[str]:
    """Undo claims and changes of GPUs. Returns the problems as texts."""
    if not (found.claims or found.made):
        return []
    there = threading.Event()
    access = GpuAccess(node.hardware.session(Marks(node.folder).vfio), lambda _: there.set(), node.hardware.proc_root)
    lifecycle = Lifecycle(
        pool="",
        boot_id=boot_id(),
        fetch=_unasked,
        records=Records(node.records),
        specs=ClaimSpecs(CommonSpec(node.cdi_root, node.driver_root), node.mps, node.limits),
        access=access,
        time_slices=node.time_slices,
        vfio=node.vfio,
    )
    access.start()
    there.wait(_DRIVER_SECONDS)  # if no driver is found or it hangs, the GPUs stay as they are
    problems = []
    for claim in found.claims:
        try:
            lifecycle.unprepare(claim)
        except EXPECTED_ERRORS as error:
            problems.append(f"claim {claim}: {error}")
    try:
        lifecycle.recover(access.current())  # undoes changes of GPUs without a record
    except (NoDriverError, NvmlError) as error:
        problems += [str(error)] if found.made else []
    access.stop()
    return problems


def _end_mps(node: NodeFolders) -> list[str]:
    """End the daemons that a killed dra-mps left. Returns the problems as texts."""
    try:
        end_processes(node.mps.files, DaemonLimits.END)
    except MpsError as error:
        return [str(error)]
    return []


def _unasked(ref: ClaimRef) -> ResourceClaim:
    raise UnreachableError(f"the API server was not asked about claim {ref}")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only process that uses `folder`, if it exists."""
    with nobody_running(folder) if folder.is_dir() else contextlib.nullcontext():
        yield
