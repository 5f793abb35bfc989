# SPDX-License-Identifier: Apache-2.0
"""The kubelet as a process of its own: runs until it is told to end."""

import signal
from collections.abc import Callable
from pathlib import Path

from .apiclient import KubernetesCluster
from .kubelet import Kubelet
from .options import Options

_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})


def run(options: Options, kubeconfig: Path, *, started: Callable[[Kubelet], None] | None = None) -> None:
    """Run one node's kubelet until SIGTERM or SIGINT. Call it from the main thread, before there are others.

    `started` is called once, when it runs. Raises CheckpointError for a damaged checkpoint.
    """
    # waited for instead of handled: a handler could interrupt this thread anywhere, also while it holds a lock
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        with Kubelet(options, KubernetesCluster(kubeconfig, node_name=options.node_name)) as kubelet:
            if started is not None:
                started(kubelet)
            signal.sigwait(_ENDING)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
