# SPDX-License-Identifier: Apache-2.0
"""The two files that nvidia-imex reads when it starts.

Keys and values are described in https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/config.html. The list of
nodes is the same for all daemons of a domain, because IMEX takes daemons with equal lists for members of one domain.
"""

from pathlib import Path
from typing import Final

from ..names import host_name
from . import COMMAND_PORT, PEER_PORT

CONFIG_FILE: Final = "imexd.cfg"
NODES_FILE: Final = "nodes.cfg"
TLS_FILES: Final = ("tls.crt", "tls.key", "ca.crt")
"""The files of a Secret of cert-manager: certificate, key and certificate authority."""


def render_nodes(domain_uid: str, slots: int) -> str:
    """The list of nodes: the host name of every slot, free or not."""
    return "".join(f"{host_name(domain_uid, index)}\n" for index in range(slots))


def render_config(folder: Path, domain_uid: str, address: str, tls: Path | None) -> str:
    """The configuration. `folder` has the list of nodes, and `address` is that of the pod.

    The log goes to standard error. The command service listens on the pod's address, because `nvidia-imex-ctl -N` asks
    the peers. BIND_INTERFACE_IP stays empty: IMEX then finds the address with the host names, and thereby its own ID.
    """
    values: dict[str, object] = {
        "LOG_LEVEL": 4,
        "LOG_FILE_NAME": "",
        "DAEMONIZE": 0,
        "BIND_INTERFACE_IP": "",
        "SERVER_PORT": PEER_PORT,
        "IMEX_NODE_CONFIG_FILE": folder / NODES_FILE,
        "IMEX_CMD_ENABLED": 1,
        "IMEX_CMD_PORT": COMMAND_PORT,
        "IMEX_CMD_BIND_INTERFACE_IP": address,
        "IMEX_WAIT_FOR_QUORUM": "RECOVERY",
    }
    if tls is not None:
        certificate, key, authority = (tls / name for name in TLS_FILES)
        values |= {"IMEX_ENABLE_AUTH_ENCRYPTION": 1, "IMEX_AUTH_ENCRYPTION_MODE": "SSL_TLS", "IMEX_AUTH_SOURCE": "FILE"}
        for side in ("SERVER", "CLIENT"):
            values |= {
                f"IMEX_{side}_KEY": key,
                f"IMEX_{side}_CERT": certificate,
                f"IMEX_{side}_CERT_AUTH": authority,
            }
        # All daemons of a domain share the certificate, which has the host names of all slots.
        values["IMEX_SECURITY_TARGET_OVERRIDE"] = host_name(domain_uid, 0)
    return "".join(f"{key}={value}\n" for key, value in values.items())
