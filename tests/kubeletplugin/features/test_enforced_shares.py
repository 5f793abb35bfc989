# SPDX-License-Identifier: Apache-2.0
"""Shares whose limits are enforced: by MPS with both protocols, or by memory limits of the NVIDIA driver."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.nvml import ComputeMode
from dra_driver.gpu.policy import Enforcement, GpuRule, NodePolicy, ShareMode
from dra_driver.kube.resource import Quantity
from dra_driver.names import DRIVER_NAME
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.errors import PrepareError
from kubeletplugin.features.memory_limits.files import LimitFiles
from kubeletplugin.features.memory_limits.limiter import Limit
from kubeletplugin.features.memory_limits.service import recorded_limits
from kubeletplugin.reports.devicestatus import device_data, shares_of
from tests.kubeletplugin.features.mps.test_mps import MIG, NEW_DRIVER, SHARES, client, compute_mode, daemons, edits
from tests.kubeletplugin.inside import NOTHING, ApiServer, Plugin
from tests.support.claims import mps, time_slicing
from tests.support.mps import MpsProcess, mps_of
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

JSON = dict[str, Any]
GIB = 1 << 30


def policy(enforce: Enforcement, shares: ShareMode | int = 4) -> NodePolicy:
    return NodePolicy((GpuRule(shares=shares, enforce=enforce),), mps=True, memory_limits=True)


@pytest.fixture
def plugin(short_path: Path, api: ApiServer) -> Iterator[Plugin]:
    made = Plugin(short_path, api, policy=policy(Enforcement.MPS))
    yield made
    made.stop()


@pytest.fixture
def supervisor(plugin: Plugin, short_path: Path) -> Iterator[MpsProcess]:
    with mps_of(short_path, plugin.node, short_path / "mps.log") as running:
        yield running


def share(
    api: ApiServer, device: str, number: int, gibibytes: int, shares: int = 1, sharing: JSON | None = None
) -> ClaimRef:
    """A claim with a share, as the scheduler counted it."""
    ref = api.add([device], f"claim-{number}", shareID=SHARES[number], sharing=sharing)
    claim = api.claims[ref.uid]
    assert claim.allocation is not None
    consumed = {"memory": Quantity.of(gibibytes * GIB), "shares": Quantity.of(shares)} if gibibytes else {}
    results = tuple(replace(one, consumed_capacity=consumed) for one in claim.allocation.results)
    api.claims[ref.uid] = replace(claim, allocation=replace(claim.allocation, results=results))
    return ref


def variables(plugin: Plugin, claim: ClaimRef, device: str) -> dict[str, str]:
    """The variables for CUDA that a container gets, without the path of the daemon."""
    found = dict(one.split("=", 1) for one in edits(plugin, claim, device).get("env", []))
    return {name: value for name, value in found.items() if name.startswith("CUDA") and "DIRECTORY" not in name}


def status(plugin: Plugin, claim: ClaimRef) -> JSON:
    """The data of the claim's only device in its status, without what every device has."""
    (data,) = device_data(plugin.records.read(claim.uid)).values()
    return {
        name: value for name, value in data.items() if name in ("enforcedBy", "memoryLimit", "activeThreadPercentage")
    }


@pytest.mark.parametrize("device", ["gpu-0", MIG])
def test_shares_of_one_daemon_have_limits_of_their_own(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess, device: str
) -> None:
    small, large = share(api, device, 0, 1), share(api, device, 1, 4, shares=2)
    for claim in (small, large):
        plugin.engine.prepare(claim)
    assert len(daemons(plugin)) == 1
    limit, percentage = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    assert variables(plugin, small, device) == {limit: "0=1024M", percentage: "25"}
    assert variables(plugin, large, device) == {limit: "0=4096M", percentage: "50"}
    assert client(plugin, small, device)["server"] == client(plugin, large, device, uid=1000)["server"], "any user"
    assert status(plugin, large) == {"enforcedBy": "mps", "memoryLimit": "4096Mi", "activeThreadPercentage": 50}
    if device == "gpu-0":
        assert compute_mode(plugin) == ComputeMode.EXCLUSIVE_PROCESS
    (metric,) = shares_of(plugin.records.read(large.uid).plan)
    who = {"driver": DRIVER_NAME, "device": device, "share_id": SHARES[1], "namespace": "team", "claim": "claim-1"}
    assert metric == {**who, "enforced_by": "mps", "limit": str(4 * GIB)}
    for claim in (small, large):
        plugin.engine.unprepare(claim)
    assert (plugin.left(), supervisor.left()) == (NOTHING, [])


def test_with_a_new_driver_each_share_is_a_namespace_with_its_limits(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess
) -> None:
    plugin.node.load_driver(NEW_DRIVER)
    wait_for(lambda: plugin.has_driver() and plugin.place.gpus().inventory.driver_version == NEW_DRIVER, "it")
    claims = share(api, "gpu-0", 0, 10), share(api, "gpu-0", 1, 30, shares=3)
    for claim in claims:
        plugin.engine.prepare(claim)
    found = [client(plugin, claim, "gpu-0") for claim in claims]
    assert [(one["percentage"], one["memory"]) for one in found] == [(25.0, "10240M"), (75.0, "30720M")]
    assert [variables(plugin, claim, "gpu-0") for claim in claims] == [{}, {}]
    for claim in claims:
        plugin.engine.unprepare(claim)
    assert (plugin.left(), supervisor.left()) == (NOTHING, [])


def test_a_configuration_can_only_lower_the_limits(plugin: Plugin, api: ApiServer, supervisor: MpsProcess) -> None:
    lower = share(
        api, "gpu-0", 0, 20, sharing=mps(defaultPinnedDeviceMemoryLimit="5Gi", defaultActiveThreadPercentage=9)
    )
    higher = share(api, "gpu-0", 1, 20, sharing=mps(defaultPerDevicePinnedMemoryLimit={"0": "79Gi"}))
    for claim in (lower, higher):
        plugin.engine.prepare(claim)
    assert variables(plugin, lower, "gpu-0") == {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=5120M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "9",
    }
    assert variables(plugin, higher, "gpu-0")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20480M"


def test_memory_limits_are_set_by_a_hook_of_each_share(short_path: Path, api: ApiServer) -> None:
    plugin = Plugin(short_path, api, policy=policy(Enforcement.MEMORY_LIMITS, ShareMode.MEMORY))
    try:
        plugin.node.load_driver(NEW_DRIVER)
        wait_for(lambda: plugin.has_driver() and plugin.place.gpus().inventory.driver_version == NEW_DRIVER, "it")
        claim = share(api, "gpu-0", 0, 6)
        plan = plugin.engine.prepare(claim).plan
        files, (device,) = LimitFiles(short_path / "memory-limits"), plan.devices
        (hook,) = [one for one in edits(plugin, claim, "gpu-0")["hooks"] if one["path"] == str(files.program)]
        assert hook["hookName"] == "createRuntime"
        assert hook["args"][1:] == [str(files.socket), claim.uid, device.cdi_name]
        assert recorded_limits(plugin.records)(claim.uid, device.cdi_name) == Limit(plugin.gpu(0).uuid, 6144)
        assert status(plugin, claim) == {"enforcedBy": "memory-limits", "memoryLimit": "6144Mi"}
        assert variables(plugin, claim, "gpu-0") == {}
        with pytest.raises(PrepareError, match="limit the memory of MIG devices"):
            plugin.engine.prepare(share(api, MIG, 1, 6))
        plugin.engine.unprepare(claim)
        assert plugin.left() == NOTHING
    finally:
        plugin.stop()


@pytest.mark.parametrize(
    ("gibibytes", "sharing", "text"),
    [
        (0, None, "has no memory that could be enforced: the policy was changed"),
        (
            4,
            time_slicing("Long"),
            "TimeSlicing is not possible for device gpu-0, because the node's policy enforces its shares with MPS",
        ),
    ],
)
def test_a_share_that_cannot_be_enforced_is_not_prepared(
    plugin: Plugin, api: ApiServer, gibibytes: int, sharing: JSON | None, text: str
) -> None:
    with pytest.raises(PrepareError, match=text):
        plugin.engine.prepare(share(api, "gpu-0", 0, gibibytes, sharing=sharing))
    assert plugin.left() == NOTHING


def test_a_whole_gpu_is_not_limited_by_the_policy_for_shares(plugin: Plugin, api: ApiServer) -> None:
    claim = api.add(["gpu-1"])
    plugin.engine.prepare(claim)
    assert variables(plugin, claim, "gpu-1") == status(plugin, claim) == {}


def test_a_plugin_that_starts_later_keeps_the_limits(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess, short_path: Path
) -> None:
    claim = share(api, "gpu-0", 0, 8)
    plugin.engine.prepare(claim)
    plugin.stop()
    again = Plugin(short_path, api, policy=policy(Enforcement.NONE))
    try:
        again.engine.prepare(claim)
        assert variables(again, claim, "gpu-0")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
        again.engine.unprepare(claim)
        assert (again.left(), supervisor.left()) == (NOTHING, [])
    finally:
        again.stop()
