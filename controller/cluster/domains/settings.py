# SPDX-License-Identifier: Apache-2.0
"""The settings of ComputeDomains in this process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.kube.resource.meta import empty


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """How daemons run. `issuer` is the kind and name of cert-manager's issuer, or None without TLS. `resources` are
    those of a container. With `host_managed`, an administrator runs nvidia-imex, and there are no daemons.
    """

    image: str = ""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    service_account: str = "compute-domain-daemon-service-account"
    priority_class: str = "system-node-critical"
    resources: Mapping[str, Any] = field(default_factory=empty)
    log_level: int = 0
    most_nodes: int = 18
    issuer: tuple[str, str] | None = None
    network_policy: bool = True
    host_managed: bool = False


@dataclass(frozen=True, slots=True)
class DomainTiming:
    """How long the loop waits, in seconds, and how many domains it reconciles at the same time."""

    settle: float = 0.1
    status: float = 1.0  # between two writes of one domain's status
    first_retry: float = 0.2
    longest_retry: float = 60.0
    workers: int = 4


@dataclass(frozen=True, slots=True)
class DomainSettings:
    """All of them. `namespace` is that of the driver."""

    namespace: str
    daemons: DaemonSettings
    timing: DomainTiming = DomainTiming()
