# SPDX-License-Identifier: Apache-2.0
"""Which way to the API server is taken: what was asked for, else what the surroundings offer."""

import os
from pathlib import Path

from .credentials import Credentials
from .errors import ConfigError
from .serviceaccount import in_cluster


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
