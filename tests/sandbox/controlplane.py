# SPDX-License-Identifier: Apache-2.0
"""The sandbox's scheduler and claim controller, and Kubernetes' own, for tests that expect the same of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.sandbox.claimcontroller import ClaimController
from dra_driver.sandbox.controlplane import PROGRAMS, real_control_plane
from dra_driver.sandbox.loop import ControlLoop
from dra_driver.sandbox.scheduler import Scheduler

from .apiserver.binaries import binary


@contextmanager
def stand_ins(client: ApiClient) -> Iterator[None]:
    """The sandbox's own."""
    loop = ControlLoop(client, [ClaimController(client), Scheduler(client)])
    loop.start()
    try:
        yield
    finally:
        loop.stop()


@contextmanager
def kubernetes(folder: Path) -> Iterator[Path]:
    """Kubernetes' own control plane, with all of its controllers; gives the administrator's kubeconfig.

    Skips the test where its programs are not there.
    """
    found = binary("kube-apiserver")
    if found is None or not all(map(binary, PROGRAMS)):
        pytest.skip(f"no {', '.join(PROGRAMS)} in KUBEBUILDER_ASSETS")
    kubeconfig = folder / "kubeconfig"
    with real_control_plane(Path(found).parent, folder / "control-plane", kubeconfig, {}) as start_controllers:
        start_controllers()
        yield kubeconfig
