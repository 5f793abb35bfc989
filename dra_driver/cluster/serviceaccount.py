# SPDX-License-Identifier: Apache-2.0
"""The identity of a pod: what kubelet mounts and sets in every container."""

import os
from pathlib import Path

from .credentials import Credentials, reason, token_file
from .errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Credentials:
    """The pod's service account, mounted in `folder`. Raises ConfigError."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError("not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set")
    try:
        ca = (folder / "ca.crt").read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no service account in {folder}: ca.crt: {reason(error)} (is automountServiceAccountToken off?)"
        ) from None
    token = token_file(folder / "token")
    token()  # one that is not there is said now, not with the first request
    address = f"[{host}]" if ":" in host else host
    return Credentials(f"https://{address}:{port}", token, ca, identity=f"the service account in {folder}")
