# SPDX-License-Identifier: Apache-2.0
"""A node for every test: a short directory (socket paths are limited), a cluster in memory, a quick kubelet."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.sandbox.kubelet import BackoffRange, Kubelet, KubeletOptions, Periods

from .memory_cluster import NODE, MemoryCluster

QUICK = Periods(
    scan=0.01,
    call=5.0,
    register_retry=BackoffRange(0.05, 0.1),
    reconnect=BackoffRange(0.05, 0.1),
    health_retry=0.02,
    wipe_delay=0.3,
    wipe_retry=BackoffRange(0.02, 0.05),
    pod_resync=0.1,
    container_retry=0.05,
    unprepare_retry=0.05,
    claim_reconcile=0.05,
    watch_retry=BackoffRange(0.02, 0.05),
)


@pytest.fixture
def root() -> Iterator[Path]:
    """The node's kubelet root, with a directory `cdi` in it."""
    path = Path(tempfile.mkdtemp(prefix="kubelet-"))
    (path / "cdi").mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def cluster() -> MemoryCluster:
    """A cluster without pods and claims."""
    return MemoryCluster()


@pytest.fixture
def options(root: Path) -> KubeletOptions:
    """How the node's kubelet is told to be."""
    return KubeletOptions(NODE, root, root / "cdi", periods=QUICK)


@pytest.fixture
def kubelet(options: KubeletOptions, cluster: MemoryCluster) -> Iterator[Kubelet]:
    """A running kubelet."""
    with Kubelet(options, cluster) as running:
        yield running


@pytest.fixture
def patient(options: KubeletOptions) -> KubeletOptions:
    """Options with which a pod that failed is only looked at again when it changes."""
    return replace(options, periods=replace(QUICK, pod_resync=3600.0))


WriteCdi = Callable[[str], None]


@pytest.fixture
def cdi(root: Path) -> WriteCdi:
    """Writes the CDI spec of a claim (by uid), as a plugin would: one device, one variable."""

    def write(uid: str) -> None:
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "example.com/claim",
            "devices": [{"name": uid, "containerEdits": {"env": [f"CLAIM={uid}"]}}],
        }
        (root / "cdi" / f"{uid}.json").write_text(json.dumps(spec))

    return write
