# SPDX-License-Identifier: Apache-2.0
"""The dra-mps command: supervises the MPS control daemons of a node."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from dra_driver import __version__
from dra_driver.errors import MpsError
from dra_driver.names import DRIVER_NAME
from dra_driver.process.command import (
    UserError,
    end_when_a_thread_fails,
    flag,
    logging_options,
    on_termination,
    run,
    version_option,
)
from dra_driver.process.files import make_folder, open_lock, try_lock
from dra_driver.process.worker import Worker
from kubeletplugin.containers.cdi import Root

from .options import shared_memory_in, shared_memory_option
from .program import Program
from .protocol2 import Protocol2
from .protocol3 import Protocol3
from .server import SupervisorServer
from .shares import ShareFiles
from .supervisor import MpsSupervisor

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_DRIVER_ROOT: Final = Path("/driver-root")
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.command("dra-mps")
@flag(
    "--kubelet-plugins-directory-path",
    type=_FOLDER,
    default="/var/lib/kubelet/plugins",
    help=f"kubelet's folder for plugins. The driver keeps the files of MPS in {DRIVER_NAME}/mps below it.",
)
@flag(
    "--container-driver-root",
    type=_FOLDER,
    envvar="DRIVER_ROOT_CTR_PATH",
    help="The folder in which the NVIDIA driver is installed, as this process sees it. By default /driver-root, or / if"
    " that does not exist.",
)
@shared_memory_option
@flag(
    "--private-mounts/--no-private-mounts",
    default=True,
    help="Run each daemon with mounts of its own, so that it sees its folders where containers see them, and mount a"
    " tmpfs for shared memory. Needs CAP_SYS_ADMIN.",
)
@logging_options
@version_option
def mps(
    kubelet_plugins_directory_path: Path,
    container_driver_root: Path | None,
    shared_memory_directory_path: Path | None,
    private_mounts: bool,
) -> None:
    """Start, restart and end the MPS control daemons that claims on this node need.

    The daemons end with this process, and their clients with them. So it is a process of its own, beside the plugin.
    """
    folder = kubelet_plugins_directory_path.absolute() / DRIVER_NAME / "mps"
    root = container_driver_root or (_DRIVER_ROOT if _DRIVER_ROOT.is_dir() else Path("/"))
    program = Program(Root(root.absolute()), private_mounts)
    files = ShareFiles(folder)
    memory = shared_memory_in(folder, shared_memory_directory_path)
    supervisor = MpsSupervisor(files, {2: Protocol2(program, folder, memory), 3: Protocol3(program, folder)})
    try:
        supervise(folder, supervisor)
    except (MpsError, OSError) as error:
        raise UserError(f"cannot start: {error}") from None


def supervise(folder: Path, supervisor: MpsSupervisor) -> None:
    """Supervise until this process receives a termination signal. Raises MpsError or OSError."""
    end_when_a_thread_fails()

    def look() -> None:
        supervisor.look()

    worker = Worker("look after MPS", look, interval=_LOOK_SECONDS)
    on_termination(worker.stop)
    make_folder(folder)
    # Two supervisors would end each other's daemons. The lock ends with the process.
    if not try_lock(open_lock(folder / "supervisor.lock")):
        raise MpsError(f"another dra-mps works in {folder}")
    supervisor.begin()
    server = SupervisorServer(folder, supervisor)
    server.start()
    log.info("started", extra={"version": __version__, "socket": str(server.path)})
    worker.run()
    server.stop()
    supervisor.end()
    log.info("stopped")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(mps, arguments)


if __name__ == "__main__":
    main()
