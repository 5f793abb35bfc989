# SPDX-License-Identifier: Apache-2.0
"""The dra-kubeletplugin command: prepares claims on one node for kubelet."""

import logging
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import click

from dra_driver import DRIVER_NAME, __version__, cdi
from dra_driver.cluster import ConfigError, Connection, UnreachableError, load_credentials
from dra_driver.command import (
    UserError,
    end_when_a_thread_fails,
    kubeconfig_option,
    logging_options,
    run,
    version_option,
)
from dra_driver.gpu.options import Hardware, hardware_options

from .claims import ClaimReader
from .claimspecs import ClaimSpecs
from .gpus import GpuAccess, Gpus
from .instance import AnotherInstanceError, only_instance
from .lifecycle import Lifecycle
from .records import Records
from .registration import RegistrationService
from .service import VERSIONS, DraService
from .sockets import SocketError, SocketServer

log = logging.getLogger(__name__)

_FOLDER = click.Path(file_okay=False, path_type=Path)
_STOP_SECONDS = 5.0


@click.command()
@click.option("--node-name", required=True, envvar="NODE_NAME", show_envvar=True, help="The Node this process runs on.")
@kubeconfig_option
@click.option(
    "--kubelet-registrar-directory-path",
    type=_FOLDER,
    default="/var/lib/kubelet/plugins_registry",
    show_default=True,
    envvar="KUBELET_REGISTRAR_DIRECTORY_PATH",
    show_envvar=True,
    help="Where kubelet looks for plugins.",
)
@click.option(
    "--kubelet-plugins-directory-path",
    type=_FOLDER,
    default="/var/lib/kubelet/plugins",
    show_default=True,
    envvar="KUBELET_PLUGINS_DIRECTORY_PATH",
    show_envvar=True,
    help=f"The driver keeps its socket and records in {DRIVER_NAME} below it.",
)
@click.option(
    "--cdi-root",
    type=_FOLDER,
    default="/var/run/cdi",
    show_default=True,
    envvar="CDI_ROOT",
    show_envvar=True,
    help="Where the container runtime looks for CDI specs.",
)
@click.option(
    "--nvidia-cdi-hook-path",
    metavar="PATH",
    envvar="NVIDIA_CDI_HOOK_PATH",
    show_envvar=True,
    help="Host path of nvidia-cdi-hook or nvidia-ctk; found below the driver root when not given.",
)
@hardware_options
@logging_options
@version_option
def kubeletplugin(
    node_name: str,
    kubeconfig: str | None,
    kubelet_registrar_directory_path: Path,
    kubelet_plugins_directory_path: Path,
    cdi_root: Path,
    nvidia_cdi_hook_path: str | None,
    hardware: Hardware,
) -> None:
    """Prepare ResourceClaims with devices of driver gpu.nvidia.com for the pods of this node."""
    try:
        connection = Connection(load_credentials(kubeconfig), f"dra-kubeletplugin/{__version__}")
    except (ConfigError, UnreachableError) as error:
        raise UserError(str(error)) from None
    end_when_a_thread_fails()
    folder = kubelet_plugins_directory_path.absolute() / DRIVER_NAME
    registry = kubelet_registrar_directory_path.absolute()
    hook = cdi.HookTool(nvidia_cdi_hook_path) if nvidia_cdi_hook_path else None
    try:
        with only_instance(folder):
            _serve(node_name, connection, folder, registry, cdi_root.absolute(), hook, hardware)
    except (AnotherInstanceError, SocketError) as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"cannot start: {error}") from None


def _serve(
    node_name: str,
    connection: Connection,
    folder: Path,
    registry: Path,
    cdi_root: Path,
    hook: cdi.HookTool | None,
    hardware: Hardware,
) -> None:
    """Answer kubelet until a signal comes. `folder` is the driver's own, `registry` kubelet's. Raises SocketError."""
    root = driver_root(hardware)
    specs = ClaimSpecs(cdi_root, root, hook or cdi.find_hook_tool(root.files))

    def ready(gpus: Gpus) -> None:
        specs.write_common(gpus.inventory.driver_version)
        lifecycle.recover(gpus)

    access = GpuAccess(hardware.nvml, hardware.sys_root, ready)
    lifecycle = Lifecycle(
        pool=node_name,
        boot_id=boot_id(),
        fetch=ClaimReader(connection),
        records=Records(folder / "claims"),
        specs=specs,
        access=access,
    )
    dra = DraService(lifecycle)
    service = SocketServer(folder / "dra.sock", dra, threads=16)
    versions = [f"{version}.DRAPlugin" for version in VERSIONS]
    registration = SocketServer(
        registry / f"{DRIVER_NAME}-reg.sock",
        RegistrationService(service.path, versions),
        threads=1,
    )
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    service.start()  # kubelet connects to it as soon as it sees the other one
    registration.start()
    access.start()
    log.info("started", extra={"version": __version__, "node": node_name, "socket": str(service.path)})
    stopped.wait()
    access.stop()
    registration.stop()
    if dra.drain(_STOP_SECONDS):
        service.stop()
        log.info("stopped")
        return
    log.warning("stopped while calls were running; the next start undoes what they left")
    service.path.unlink(missing_ok=True)
    logging.shutdown()
    os._exit(0)  # a call that hangs in the driver cannot be ended, and its thread would be waited for


def driver_root(hardware: Hardware) -> cdi.DriverRoot:
    """Where CDI specs find the driver's files."""
    dev_is_own = hardware.dev_root == hardware.driver_root
    return cdi.DriverRoot(
        files=cdi.Root(hardware.driver_root, str(hardware.host_driver_root)),
        dev=cdi.Root(hardware.dev_root, str(hardware.host_driver_root) if dev_is_own else "/"),
        proc=hardware.proc_root,
        sys=hardware.sys_root,
    )


def boot_id() -> str:
    """The kernel's name for the time since the machine was last started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(kubeletplugin, arguments)


if __name__ == "__main__":
    main()
