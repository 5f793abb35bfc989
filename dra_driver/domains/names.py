# SPDX-License-Identifier: Apache-2.0
"""Names of objects, labels, classes and hosts of ComputeDomains."""

import hashlib
from typing import Final

from ..config import API_VERSION
from ..kube.api import Kind
from . import DAEMON_PREFIX

COMPUTE_DOMAINS: Final = Kind(API_VERSION, "computedomains", namespaced=True)
CLIQUES: Final = Kind(API_VERSION, "computedomaincliques", namespaced=True)
"""The objects with the members of a domain, one for each clique. They are in the driver's namespace."""

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
