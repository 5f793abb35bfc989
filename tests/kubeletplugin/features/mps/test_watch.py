# SPDX-License-Identifier: Apache-2.0
"""What the plugin counts about the MPS daemons of claims."""

from prometheus_client import CollectorRegistry, generate_latest

from kubeletplugin.claims.boundary import SILENT
from kubeletplugin.claims.model import ClaimRef, Device, Plan, Record, State
from kubeletplugin.features.mps.metrics import publish_daemons
from kubeletplugin.features.mps.step import MpsLimits, MpsStep
from kubeletplugin.features.mps.supervisor import Status
from kubeletplugin.features.mps.watch import MpsWatch, ServedDevices
from kubeletplugin.kinds.gpu import GpuKind
from kubeletplugin.metrics import PluginMetrics

DEVICE = Device("gpu-0", "gpu", GpuKind("GPU-0", 0, "0000:1b:00.0"))
STEP = MpsStep(
    devices=("gpu-0",),
    group=(("gpu-0", GpuKind("GPU-0", 0, "0000:1b:00.0")),),
    share="a",
    protocol=2,
    limits=MpsLimits(50, None, {}),
    multi_user=False,
    shared_memory=False,
)
RECORD = Record(State.PREPARED, "boot", Plan(ClaimRef("team", "claim", "u1"), "node-a", (DEVICE,), (STEP,)))


def test_restarts_between_two_looks_are_counted() -> None:
    statuses = [Status(restarts=3, since=1.0), Status(restarts=5, since=2.0), Status(restarts=0, since=3.0)]
    found = iter(statuses)
    counted: list[int] = []
    watch = MpsWatch(lambda: [RECORD], lambda: {STEP.name.server: next(found)}, SILENT, counted.append)
    for _ in statuses:
        watch.look()
    assert counted == [2, 1], "a dra-mps that was restarted counts from 0 again"


def test_only_running_daemons_have_a_start_time() -> None:
    metrics = PluginMetrics(CollectorRegistry(), "node-a")
    served = [ServedDevices(("gpu-0",), Status(since=5.0)), ServedDevices(("gpu-1",), Status("ended", since=6.0))]
    publish_daemons(metrics, lambda: served)
    lines = generate_latest(metrics.registry).decode().splitlines()
    starts = [line for line in lines if "mps_daemon_start_time_seconds{" in line]
    assert len(starts) == 1
    assert 'devices="gpu-0"' in starts[0]
