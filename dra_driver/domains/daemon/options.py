# SPDX-License-Identifier: Apache-2.0
"""The flags of dra-imex-daemon."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from ...process.command import flag, flags, kubeconfig_option
from ...process.endpoints import Endpoint, endpoint_options
from ..names import IMEX_FOLDER

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """The settings of the daemon, which have the names of its flags."""

    compute_domain_uuid: str
    clique_id: str
    node_name: str
    pod_ip: str
    namespace: str
    folder: Path
    hosts_file: Path
    imex_program: str
    imex_control_program: str
    imex_enable_auth_encryption: bool
    tls_directory: Path
    kubeconfig: str | None
    endpoint: Endpoint

    @property
    def tls(self) -> Path | None:
        """The folder with the certificates, if connections are encrypted."""
        return self.tls_directory if self.imex_enable_auth_encryption else None


daemon_options = flags(
    "options",
    DaemonOptions,
    flag("--compute-domain-uuid", default="", help="The UID of the ComputeDomain. The claim of the pod sets it."),
    flag("--clique-id", default="", help="The clique of the node's GPUs. The claim of the pod sets it."),
    flag("--node-name", required=True, help="The node that this process runs on."),
    flag("--pod-ip", required=True, help="The address of this pod, which peers connect to."),
    flag("--namespace", envvar="POD_NAMESPACE", required=True, help="The namespace of this pod."),
    flag(
        "--folder",
        envvar="IMEX_FOLDER",
        type=_FOLDER,
        default=IMEX_FOLDER,
        help="The folder that this process shares with the plugin of its node.",
    ),
    flag(
        "--hosts-file",
        type=click.Path(dir_okay=False, path_type=Path),
        default="/etc/hosts",
        help="The hosts file of this pod.",
    ),
    flag("--imex-program", default="nvidia-imex", help="The IMEX daemon of the NVIDIA driver."),
    flag("--imex-control-program", default="nvidia-imex-ctl", help="The control program of the IMEX daemon."),
    flag(
        "--imex-enable-auth-encryption",
        is_flag=True,
        help="Encrypt and authenticate the connections of the daemons of the domain with TLS.",
    ),
    flag(
        "--tls-directory",
        type=_FOLDER,
        default="/imexd-tls",
        help="The folder with tls.crt, tls.key and ca.crt of the domain.",
    ),
    kubeconfig_option,
    endpoint_options,
)
"""Adds the flags of the daemon, whose command gets them as `options`."""
