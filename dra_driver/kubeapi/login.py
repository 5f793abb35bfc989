# SPDX-License-Identifier: Apache-2.0
"""Which way to the API server is taken: what was asked for, else what the surroundings offer.

The identity of a pod: what kubelet mounts and sets in every container.
"""

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


def load_credentials(kubeconfig: str | None = None, context: str | None = None) -> Credentials:
    """From `kubeconfig` (a path, or several joined by colons), else $KUBECONFIG, else the pod's service account,
    else ~/.kube/config. Raises ConfigError.
    """
    default = Path.home() / ".kube/config"
    paths = kubeconfig or os.environ.get("KUBECONFIG")
    if not paths and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster()
    if not paths and not default.exists():
        raise ConfigError("no cluster given: set --kubeconfig or KUBECONFIG, or run in a pod with a service account")
    from .kubeconfig import read_kubeconfig  # a pod never needs it, nor YAML

    return read_kubeconfig(paths or str(default), context)
