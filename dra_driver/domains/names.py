# SPDX-License-Identifier: Apache-2.0
"""Names of the driver for ComputeDomains, and of its devices, objects, labels, classes and hosts.

The webhook uses them, and loads no API client.
"""

import hashlib
from typing import Final

from ..names import DRIVER_NAME

DRIVER: Final = "compute-domain.nvidia.com"
"""The name of the second DRA driver. It is also the domain of its attributes."""
CHANNEL_TYPE: Final = "channel"
DAEMON_TYPE: Final = "daemon"
"""The values of the attribute `type` of its devices."""
DOMAIN_FILE: Final = "domain"
"""The file, in the driver's folder on a node, with the UID of the domain that the node is in."""
CHANNEL_DEVICE: Final = "channel-0"
DAEMON_DEVICE: Final = "daemon-0"
"""The names of the devices of a node. The only channel that is given to workloads is channel 0."""
CLIQUE_ATTRIBUTE: Final = f"{DRIVER_NAME}/fabricClique"
"""The clique of a channel's node: `<cluster UUID>.<clique ID>`. GPUs have the same attribute."""
DOMAIN_ATTRIBUTE: Final = "domain"
"""The UID of the ComputeDomain that a channel's node is in."""
FABRIC_TAINT: Final = f"{DRIVER}/fabric"
"""On a channel whose node has not joined its NVLink fabric (yet). The value is that of FabricProgress."""
DAEMON_PREFIX: Final = "computedomain-daemon-"
"""With the UID of a domain, the name of the objects for its daemons."""

DOMAIN_LABEL: Final = "resource.nvidia.com/computeDomain"
"""On nodes, and on all objects that belong to a domain. Its value is the UID of the ComputeDomain. NVIDIA's DRA driver
also has a finalizer of this name.
"""
CLIQUE_LABEL: Final = "resource.nvidia.com/computeDomain.cliqueID"
TARGET_LABEL: Final = "resource.nvidia.com/computeDomainTarget"
"""On claim templates: `Daemon` or `Workload`."""

CHANNEL_CLASS: Final = "compute-domain-default-channel.nvidia.com"
DAEMON_CLASS: Final = "compute-domain-daemon.nvidia.com"

IMEX_FOLDER: Final = "/imexd"
"""Where a daemon's container has the folder that it shares with the plugin of its node."""


def daemon_name(domain_uid: str) -> str:
    """The name of the DaemonSet and of the claim template of a domain's daemons, in the driver's namespace. The names
    of the pods begin with it, which the admission policy uses.
    """
    return f"{DAEMON_PREFIX}{domain_uid}"


def clique_name(domain_uid: str, clique: str) -> str:
    """The name of the object with a domain's members in one clique. `clique` is `<cluster UUID>.<clique ID>`."""
    return f"{domain_uid}.{clique}"


def host_name(domain_uid: str, index: int) -> str:
    """The host name of a member, by its index. It differs between domains: IMEX takes daemons with equal lists of nodes
    for members of one domain, and addresses of pods are used again.
    """
    return f"compute-domain-daemon-{hashlib.sha256(domain_uid.encode()).hexdigest()[:10]}-{index:04}"
