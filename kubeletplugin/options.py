# SPDX-License-Identifier: Apache-2.0
"""The flags of dra-kubeletplugin as values: the folders on the node, and the settings of the plugin."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from dra_driver import DRIVER_NAME, cdi
from dra_driver.command import flag, kubeconfig_option
from dra_driver.endpoints import Endpoint, endpoint_options
from dra_driver.gpu.options import Hardware, PolicyOptions, hardware_options, policy_options

from .hardware.settings import TimeSlices
from .kubelet.instance import SocketPaths, is_instance_uid, socket_paths

F = TypeVar("F", bound=Callable[..., object])

_FOLDER = click.Path(file_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Node:
    """The folders of this driver on the node, as absolute paths. `folder` is its own, `registry` is kubelet's."""

    registry: Path
    folder: Path
    cdi_root: Path
    hardware: Hardware

    @property
    def records(self) -> Path:
        """The folder of the claims' records."""
        return self.folder / "claims"

    @property
    def metadata(self) -> Path:
        """The folder of the claims' metadata files."""
        return self.folder / "metadata"

    @property
    def mps(self) -> Path:
        """The folder in which this driver and dra-mps meet."""
        return self.folder / "mps"

    @property
    def driver_root(self) -> cdi.DriverRoot:
        """The places where CDI specs find the driver's files."""
        hardware = self.hardware
        dev_is_own = hardware.dev_root == hardware.driver_root
        return cdi.DriverRoot(
            files=cdi.Root(hardware.driver_root, str(hardware.host_driver_root)),
            dev=cdi.Root(hardware.dev_root, str(hardware.host_driver_root) if dev_is_own else "/"),
            proc=hardware.proc_root,
            sys=hardware.sys_root,
        )

    @property
    def time_slices(self) -> TimeSlices:
        """Sets time-slice intervals."""
        return TimeSlices(self.driver_root.files, self.hardware.nvml_library)


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of the plugin. `node_name` is empty if it was not given."""

    node_name: str
    node: Node
    kubeconfig: str | None
    hook: cdi.HookTool | None
    instance_uid: str
    device_metadata: bool
    claim_status: bool
    mps_shared_memory: bool
    policy: PolicyOptions
    endpoint: Endpoint

    @property
    def sockets(self) -> SocketPaths:
        """Where this instance listens."""
        return socket_paths(self.node.folder, self.node.registry, self.instance_uid)


def node_options(command: F) -> F:
    """Adds the flags for folders on the node, and passes a Node as `node`."""

    @flag(
        "--kubelet-registrar-directory-path",
        type=_FOLDER,
        default="/var/lib/kubelet/plugins_registry",
        help="The folder in which kubelet looks for plugins.",
    )
    @flag(
        "--kubelet-plugins-directory-path",
        type=_FOLDER,
        default="/var/lib/kubelet/plugins",
        help=f"kubelet's folder for plugins. The driver keeps its socket and records in {DRIVER_NAME} below it.",
    )
    @flag(
        "--cdi-root",
        type=_FOLDER,
        default="/var/run/cdi",
        help="The folder in which the container runtime looks for CDI specs.",
    )
    @hardware_options
    @functools.wraps(command)
    def wrapped(
        *arguments: object,
        kubelet_registrar_directory_path: Path,
        kubelet_plugins_directory_path: Path,
        cdi_root: Path,
        hardware: Hardware,
        **others: object,
    ) -> object:
        folder = kubelet_plugins_directory_path.absolute() / DRIVER_NAME
        node = Node(kubelet_registrar_directory_path.absolute(), folder, cdi_root.absolute(), hardware)
        return command(*arguments, node=node, **others)

    return wrapped  # type: ignore[return-value]  # functools.wraps keeps the signature, not the type


def hook_option(command: F) -> F:
    """Adds --nvidia-cdi-hook-path."""
    return flag(
        "--nvidia-cdi-hook-path",
        metavar="PATH",
        help="Path of nvidia-cdi-hook or nvidia-ctk on the host. By default, it is looked for below the driver root.",
    )(command)


def plugin_options(command: F) -> F:
    """Adds all flags of the plugin itself, and passes them as `options`."""

    @flag("--node-name", default="", help="The name of the Node on which this process runs.")
    @kubeconfig_option
    @node_options
    @policy_options
    @hook_option
    @flag(
        "--instance-uid",
        default="",
        metavar="UID",
        callback=_checked_uid,
        envvar="POD_UID",
        help="Give this process sockets of its own, so that an old process can run beside it during a rolling update"
        " (kubelet 1.33 and later). Without this flag, only one process can run on a node.",
    )
    @flag(
        "--device-metadata/--no-device-metadata",
        default=False,
        help="Mount a file with the attributes of its devices into every container (KEP-5304).",
    )
    @flag(
        "--claim-status/--no-claim-status",
        default=True,
        help="Write conditions and UUIDs of prepared devices to status.devices of ResourceClaims.",
        show_default=False,
    )
    @click.option(
        "--mps-shared-memory/--no-mps-shared-memory",
        default=True,
        show_default=True,
        envvar="MPS_SHARED_MEMORY",
        show_envvar=True,
        help="Give containers with MPS the /dev/shm of their MPS daemon instead of one of their own.",
    )
    @endpoint_options
    @functools.wraps(command)
    def wrapped(
        *arguments: object,
        node_name: str,
        kubeconfig: str | None,
        node: Node,
        nvidia_cdi_hook_path: str | None,
        policy: PolicyOptions,
        instance_uid: str,
        device_metadata: bool,
        claim_status: bool,
        mps_shared_memory: bool,
        endpoint: Endpoint,
        **others: object,
    ) -> object:
        options = Options(
            node_name=node_name,
            node=node,
            kubeconfig=kubeconfig,
            hook=cdi.HookTool(nvidia_cdi_hook_path) if nvidia_cdi_hook_path else None,
            instance_uid=instance_uid,
            device_metadata=device_metadata,
            claim_status=claim_status,
            mps_shared_memory=mps_shared_memory,
            policy=policy,
            endpoint=endpoint,
        )
        return command(*arguments, options=options, **others)

    return wrapped  # type: ignore[return-value]  # functools.wraps keeps the signature, not the type


def _checked_uid(_context: click.Context, _option: click.Parameter, uid: str) -> str:
    if uid and not is_instance_uid(uid):
        raise click.BadParameter(f"{uid!r} must be letters, digits, '.' and '-', at most 63, as a pod's UID is")
    return uid
