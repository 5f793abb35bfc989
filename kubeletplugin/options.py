# SPDX-License-Identifier: Apache-2.0
"""The flags of dra-kubeletplugin as values: the folders on the node, and the settings of the plugin."""

from dataclasses import dataclass
from pathlib import Path

import click

from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.gpu.options import Hardware, PolicyOptions, hardware_options, policy_options
from dra_driver.names import DRIVER_NAME
from dra_driver.process.command import flag, flags, kubeconfig_option
from dra_driver.process.endpoints import Endpoint, endpoint_options
from kubeletplugin.containers import cdi
from kubeletplugin.features.domain.offers import HostDaemon
from kubeletplugin.features.mps.options import shared_memory_in, shared_memory_option

from .host.programs import HostPrograms
from .kubelet.instance import SocketPaths, is_instance_uid, socket_paths
from .node.folders import NodeFolders

DRIVER_MANAGED, HOST_MANAGED = "driverManaged", "hostManaged"
DEFAULT_HOST_SOCKET = "/etc/nvidia-imex/imex_ctrl.sock"

_MPS = "mps"
_FOLDER = click.Path(file_okay=False, path_type=Path)

hook_option = flag(
    "--nvidia-cdi-hook-path",
    metavar="PATH",
    help="Path of nvidia-cdi-hook or nvidia-ctk on the host. By default, it is looked for below the driver root.",
)


@dataclass(frozen=True, slots=True)
class DomainOptions:
    """The settings of ComputeDomains. With `host_managed`, each node has an IMEX daemon of its own, with the socket
    `host_socket`. `namespace` is that of the driver's own objects.
    """

    enabled: bool = False
    host_managed: bool = False
    host_socket: str = DEFAULT_HOST_SOCKET
    namespace: str = ""

    def host_daemon(self, hardware: Hardware) -> HostDaemon | None:
        """The IMEX daemon of the node itself, if claims use it."""
        if not self.host_managed:
            return None
        return HostDaemon(HostPrograms(hardware.driver_root, hardware.enter_root), self.host_socket)


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """The settings of the plugin. `node_name` is empty if it was not given."""

    node_name: str
    node: NodeFolders
    kubeconfig: str | None
    nvidia_cdi_hook_path: str | None
    instance_uid: str
    device_metadata: bool
    claim_status: bool
    mps_shared_memory: bool
    domains: DomainOptions
    policy: PolicyOptions
    endpoint: Endpoint

    @property
    def hook(self) -> cdi.HookTool | None:
        """The hook program of the flag, if it was given."""
        return cdi.HookTool(self.nvidia_cdi_hook_path) if self.nvidia_cdi_hook_path else None

    @property
    def sockets(self) -> SocketPaths:
        """Where this instance listens."""
        return socket_paths(self.node.folder, self.node.registry, self.instance_uid)

    @property
    def domain_sockets(self) -> SocketPaths:
        """Where this instance listens for the driver compute-domain.nvidia.com."""
        return socket_paths(self.node.domain_folder, self.node.registry, self.instance_uid, DOMAIN_DRIVER)


def _node(
    kubelet_registrar_directory_path: Path,
    kubelet_plugins_directory_path: Path,
    cdi_root: Path,
    shared_memory_directory_path: Path | None,
    hardware: Hardware,
) -> NodeFolders:
    folder = kubelet_plugins_directory_path.absolute() / DRIVER_NAME
    registry = kubelet_registrar_directory_path.absolute()
    memory = shared_memory_in(folder / _MPS, shared_memory_directory_path)
    return NodeFolders(registry, folder, cdi_root.absolute(), memory, hardware)


node_options = flags(
    "node",
    _node,
    flag(
        "--kubelet-registrar-directory-path",
        type=_FOLDER,
        default="/var/lib/kubelet/plugins_registry",
        help="The folder in which kubelet looks for plugins.",
    ),
    flag(
        "--kubelet-plugins-directory-path",
        type=_FOLDER,
        default="/var/lib/kubelet/plugins",
        help=f"kubelet's folder for plugins. The driver keeps its socket and records in {DRIVER_NAME} below it.",
    ),
    flag(
        "--cdi-root",
        type=_FOLDER,
        default="/var/run/cdi",
        help="The folder in which the container runtime looks for CDI specs.",
    ),
    shared_memory_option,
    hardware_options,
)
"""Adds the flags for folders on the node, and passes a Node as `node`."""


def _domains(compute_domains: bool, imex_mode: str, imex_host_socket_path: str, namespace: str) -> DomainOptions:
    return DomainOptions(compute_domains, imex_mode == HOST_MANAGED, imex_host_socket_path, namespace)


domain_options = flags(
    "domains",
    _domains,
    flag(
        "--compute-domains/--no-compute-domains",
        default=False,
        help=f"Also serve claims of the driver {DOMAIN_DRIVER}.",
        show_default=False,
    ),
    flag(
        "--imex-mode",
        type=click.Choice((DRIVER_MANAGED, HOST_MANAGED)),
        default=DRIVER_MANAGED,
        help=f"Who runs IMEX daemons: the driver, for each ComputeDomain, or ({HOST_MANAGED}) each node, for all of"
        " them.",
    ),
    flag(
        "--imex-host-socket-path",
        default=DEFAULT_HOST_SOCKET,
        help=f"The socket of the command service of the node's own IMEX daemon, for --imex-mode={HOST_MANAGED}.",
    ),
    flag(
        "--namespace",
        default="",
        help="The namespace that the driver runs in. Only claims in this namespace can have the daemon of a"
        " ComputeDomain.",
    ),
)
"""Adds the flags of ComputeDomains, and passes a DomainOptions as `domains`."""


def _checked_uid(_context: click.Context, _option: click.Parameter, uid: str) -> str:
    if uid and not is_instance_uid(uid):
        raise click.BadParameter(f"{uid!r} must be letters, digits, '.' and '-', at most 63, as a pod's UID is")
    return uid


plugin_options = flags(
    "options",
    PluginOptions,
    flag("--node-name", default="", help="The name of the Node on which this process runs."),
    kubeconfig_option,
    node_options,
    policy_options,
    hook_option,
    flag(
        "--instance-uid",
        default="",
        metavar="UID",
        callback=_checked_uid,
        envvar="POD_UID",
        help="Give this process sockets of its own, so that an old process can run beside it during a rolling update"
        " (kubelet 1.33 and later). Without this flag, only one process can run on a node.",
    ),
    flag(
        "--device-metadata/--no-device-metadata",
        default=False,
        help="Mount a file with the attributes of its devices into every container (KEP-5304).",
    ),
    flag(
        "--claim-status/--no-claim-status",
        default=True,
        help="Write conditions and UUIDs of prepared devices to status.devices of ResourceClaims.",
        show_default=False,
    ),
    flag(
        "--mps-shared-memory/--no-mps-shared-memory",
        default=True,
        help="Give containers with MPS the /dev/shm of their MPS daemon instead of one of their own.",
    ),
    domain_options,
    endpoint_options,
)
"""Adds all flags of the plugin itself, and passes them as `options`."""
