# SPDX-License-Identifier: Apache-2.0
"""Valid configurations of the driver compute-domain.nvidia.com that a user's object should not have."""

import re
from typing import Final

from ..config import ComputeDomainDaemonConfig, ConfigError, DomainConfig
from .names import DAEMON_PREFIX

_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def mistake(config: DomainConfig, owner: str, place: str) -> ConfigError | None:
    """What is wrong with a valid configuration in an object of the name (or generateName) `owner`. This is only a
    warning. `place` is the path of the configuration.
    """
    if not _UID.fullmatch(config.domain):
        problem = f"{config.domain!r} is not the UID of an object: no node prepares a claim with it"
        return ConfigError(f"{place}.domainID", f"{problem}. Use the claim template that the ComputeDomain names")
    if isinstance(config, ComputeDomainDaemonConfig) and not owner.startswith(f"{DAEMON_PREFIX}{config.domain}"):
        problem = "only the cluster controller makes claims for IMEX daemons: create a ComputeDomain"
        return ConfigError(f"{place}.kind", problem)
    return None
