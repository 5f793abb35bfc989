# SPDX-License-Identifier: Apache-2.0
"""Claims that configure MPS: daemons, limits, what containers get, and what is left afterwards."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.nvml import ComputeMode
from kubeletplugin.claims.boundary import ClaimBoundary
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.errors import PrepareError
from kubeletplugin.features.mps.client import SupervisorClient
from kubeletplugin.features.mps.services import MpsServices
from kubeletplugin.features.mps.step import MpsStep, mps_steps_of
from kubeletplugin.features.mps.watch import MpsWatch
from kubeletplugin.kinds.mig.instance import InstanceStep
from kubeletplugin.kinds.mig.mode import MigModeStep
from kubeletplugin.kinds.settings.steps import ComputeModeStep
from tests.kubeletplugin.inside import NOTHING, ApiServer, Plugin
from tests.support.claims import mps, time_slicing
from tests.support.listing import paths_in
from tests.support.mps import MpsProcess, RefusedClientError, connect, mps_of
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

JSON = dict[str, Any]
MIG, OTHER_MIG = "gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1"
SHARES = [f"0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e0{number}" for number in range(3)]
NEW_DRIVER = "615.71.09"


@pytest.fixture
def root(short_path: Path) -> Path:
    return short_path


@pytest.fixture
def plugin(root: Path, api: ApiServer) -> Iterator[Plugin]:
    made = Plugin(root, api)
    yield made
    made.stop()


@pytest.fixture
def supervisor(plugin: Plugin, root: Path) -> Iterator[MpsProcess]:
    with mps_of(root, plugin.node, root / "mps.log") as running:
        yield running


@pytest.fixture
def new_driver(plugin: Plugin) -> None:
    """A driver that knows protocol 3."""
    plugin.node.load_driver(NEW_DRIVER)
    wait_for(lambda: plugin.has_driver() and plugin.place.gpus().inventory.driver_version == NEW_DRIVER, "it")


def edits(plugin: Plugin, claim: ClaimRef, device: str) -> JSON:
    """What a container gets with a device of the claim."""
    spec = json.loads((plugin.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json").read_text())
    (found,) = [one["containerEdits"] for one in spec["devices"] if one["name"].startswith(f"{claim.uid}-{device}")]
    return dict(found)


def client(plugin: Plugin, claim: ClaimRef, device: str, uid: int = 0) -> JSON:
    """A CUDA program in a container with the device: the limits that it gets."""
    found = edits(plugin, claim, device)
    (inside,) = [one.partition("=")[2] for one in found["env"] if one.startswith("CUDA_MPS_PIPE_DIRECTORY=")]
    (host,) = [one["hostPath"] for one in found["mounts"] if one["containerPath"] == inside]
    return connect(Path(host), uid)


def compute_mode(plugin: Plugin, index: int = 0) -> int:
    nvml = plugin.nvml
    return nvml.compute_mode(nvml.device_by_index(index))


def daemons(plugin: Plugin) -> list[int]:
    """The processes of daemons, by their PID files."""
    return [int(path.read_text()) for path in paths_in(plugin.root, "mps/*/pipe/*.pid")]


def test_a_whole_gpu_is_served_with_limits_and_nothing_is_left(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess
) -> None:
    uuid = plugin.gpu(0).uuid
    limits = mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="10Gi")
    claim = api.add(["gpu-0"], sharing=limits)
    for _ in range(2):
        plugin.engine.prepare(claim)
    assert compute_mode(plugin) == ComputeMode.EXCLUSIVE_PROCESS
    found = client(plugin, claim, "gpu-0")
    assert (found["percentage"], found["memory"]) == (50.0, {uuid: "10240M"})
    assert len(daemons(plugin)) == 1
    for _ in range(2):
        plugin.engine.unprepare(claim)
    assert compute_mode(plugin) == ComputeMode.DEFAULT
    assert (plugin.left(), supervisor.left()) == (NOTHING, [])
    assert plugin.steps == [
        *("do MIG mode off", "do compute mode 3", "do MPS of gpu-0"),
        *("undo MPS of gpu-0", "undo compute mode 3"),
    ]


def test_the_pipe_directory_is_the_claims_own_and_shared_memory_the_daemons(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess
) -> None:
    first, second = (api.add([device], sharing=mps()) for device in ("gpu-0", "gpu-1"))
    found = []
    for claim, device in ((first, "gpu-0"), (second, "gpu-1")):
        plugin.engine.prepare(claim)
        found.append(edits(plugin, claim, device))
    mounts = [{one["containerPath"]: one["hostPath"] for one in each["mounts"]} for each in found]
    assert [sorted(each)[0] for each in mounts] == ["/dev/shm", "/dev/shm"]
    pipes = [{path: host for path, host in each.items() if path != "/dev/shm"} for each in mounts]
    assert len({path for each in pipes for path in each}) == 2  # one container can have both
    for each, one in zip(pipes, found, strict=True):
        ((inside, host),) = each.items()
        assert one["env"] == [f"CUDA_MPS_PIPE_DIRECTORY={inside}"]
        assert sorted(path.name for path in Path(host).iterdir()) == [
            *("control", "control_lock", "nvidia-cuda-mps-control.pid")
        ]
        assert Path(host).stat().st_mode & 0o777 == 0o755
    assert mounts[0]["/dev/shm"] != mounts[1]["/dev/shm"]


def test_shared_memory_can_be_left_to_the_pod(root: Path, api: ApiServer) -> None:
    plugin = Plugin(root, api, mps_shared_memory=False)
    with mps_of(root, plugin.node, root / "mps.log") as supervisor:
        claim = api.add(["gpu-0"], sharing=mps())
        plugin.engine.prepare(claim)
        assert len(edits(plugin, claim, "gpu-0")["mounts"]) == 1
        assert not list(supervisor.shared_memory.glob("*"))
    plugin.stop()


def test_dra_mps_that_shares_memory_elsewhere_is_refused(plugin: Plugin, api: ApiServer, root: Path) -> None:
    with mps_of(root, plugin.node, root / "mps.log", root / "elsewhere") as supervisor:
        claim = api.add(["gpu-0"], sharing=mps())
        text = f"dra-mps of this node made no shared memory in {root}/shm/dra-mps-s[0-9a-f]*, .*: delete its pod"
        with pytest.raises(PrepareError, match=text):
            plugin.engine.prepare(claim)
        plugin.engine.unprepare(claim)
        assert (plugin.left(), supervisor.left()) == (NOTHING, [])


def test_limits_by_uuid_and_by_index_of_a_group(plugin: Plugin, api: ApiServer, supervisor: MpsProcess) -> None:
    uuids = sorted(plugin.gpu(index).uuid for index in range(3))
    limits = {"0": "1Gi", uuids[1]: "1500Ki", "1": "7Gi"}
    sharing = mps(defaultPinnedDeviceMemoryLimit="3Gi", defaultPerDevicePinnedMemoryLimit=limits)
    claim = api.add(["gpu-0", "gpu-1", "gpu-2"], sharing=sharing)
    plugin.engine.prepare(claim)
    assert [compute_mode(plugin, index) for index in range(4)] == [3, 3, 3, 0]
    assert client(plugin, claim, "gpu-1")["memory"] == {uuids[0]: "1024M", uuids[1]: "1M", uuids[2]: "3072M"}
    assert len(daemons(plugin)) == 1
    plugin.engine.unprepare(claim)
    assert (plugin.left(), supervisor.left()) == (NOTHING, [])


def test_a_daemon_for_each_mig_device_after_its_instance(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess
) -> None:
    sharing = mps(defaultPinnedDeviceMemoryLimit="4Gi", defaultPerDevicePinnedMemoryLimit={"1": "2Gi"})
    claim = api.add([MIG, OTHER_MIG], sharing=sharing)
    plugin.engine.prepare(claim)
    assert [type(step) for step in plugin.record(claim).plan.steps] == [
        *(MigModeStep, InstanceStep, InstanceStep, MpsStep, MpsStep)
    ]
    uuids = {name: one["uuid"] for name, one in plugin.record(claim).found.items()}
    second = sorted(uuids.values())[1]
    assert len(daemons(plugin)) == 2
    for device, uuid in uuids.items():
        limit = "2048M" if uuid == second else "4096M"
        assert client(plugin, claim, device)["memory"] == {uuid: limit, "0": limit}
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={limit}" in edits(plugin, claim, device)["env"]
    for pid, uuid in zip(daemons(plugin), uuids.values(), strict=True):
        plugin.node.occupy(uuid, pid)  # an instance that its daemon holds cannot be destroyed
    plugin.engine.unprepare(claim)
    assert (plugin.left(), supervisor.left()) == (NOTHING, [])


def test_clients_of_several_users_only_with_multi_user(plugin: Plugin, api: ApiServer, supervisor: MpsProcess) -> None:
    one, several = api.add(["gpu-0"], sharing=mps()), api.add(["gpu-1"], sharing=mps(multiUser=True))
    for claim, device in ((one, "gpu-0"), (several, "gpu-1")):
        plugin.engine.prepare(claim)
        client(plugin, claim, device, uid=1000)
    client(plugin, several, "gpu-1", uid=2000)
    with pytest.raises(RefusedClientError, match="NOT_READY"):
        client(plugin, one, "gpu-0", uid=2000)


def test_shares_with_the_same_limits_have_one_daemon(plugin: Plugin, api: ApiServer, supervisor: MpsProcess) -> None:
    sharing = mps(defaultActiveThreadPercentage=25)
    first, second = (api.add(["gpu-0"], sharing=sharing, shareID=share) for share in SHARES[:2])
    for claim in (first, second):
        plugin.engine.prepare(claim)
    assert len(daemons(plugin)) == 1
    assert client(plugin, first, "gpu-0")["server"] == client(plugin, second, "gpu-0")["server"]
    plugin.engine.unprepare(first)
    assert (compute_mode(plugin), client(plugin, second, "gpu-0")["percentage"]) == (3, 25.0)
    plugin.engine.unprepare(second)
    assert (plugin.left(), supervisor.left()) == (NOTHING, [])


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (mps(defaultActiveThreadPercentage=50), "with other MPS limits or devices"),
        (time_slicing("Long"), "without MPS"),
        (None, "without MPS"),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_sharers_that_exclude_each_other_are_told_by_name(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess, other: JSON | None, text: str, reverse: bool
) -> None:
    configured = [mps(), other][:: -1 if reverse else 1]
    first, second = (
        api.add(["gpu-0"], name, sharing=sharing, shareID=share)
        for name, sharing, share in zip(("one", "two"), configured, SHARES, strict=False)
    )
    plugin.engine.prepare(first)
    with pytest.raises(
        PrepareError, match=r"claim team/(one|two) uses device gpu-0 .*, and claim team/(one|two) "
    ) as error:
        plugin.engine.prepare(second)
    assert text in str(error.value)
    plugin.engine.unprepare(first)
    plugin.engine.prepare(second)


@pytest.mark.usefixtures("new_driver")
def test_with_a_new_driver_a_server_for_the_gpu_and_a_namespace_for_each_share(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess
) -> None:
    first, second = (
        api.add(
            ["gpu-0"],
            sharing=mps(defaultActiveThreadPercentage=percentage, defaultPinnedDeviceMemoryLimit=f"{percentage}Gi"),
            shareID=share,
        )
        for percentage, share in zip((25, 50), SHARES, strict=False)
    )
    third = api.add(["gpu-1"], sharing=mps())
    for claim in (first, second, third):
        plugin.engine.prepare(claim)
    assert len(daemons(plugin)) == 1
    found = [client(plugin, claim, "gpu-0") for claim in (first, second)]
    assert [(one["percentage"], one["memory"]) for one in found] == [(25.0, "25600M"), (50.0, "51200M")]
    assert found[0]["server"] == found[1]["server"] != client(plugin, third, "gpu-1")["server"]
    plugin.engine.unprepare(first)
    assert client(plugin, second, "gpu-0")["percentage"] == 50.0
    for claim in (second, third):
        plugin.engine.unprepare(claim)
    assert (plugin.left(), supervisor.left()) == (NOTHING, [])


@pytest.mark.usefixtures("new_driver")
@pytest.mark.parametrize("device", ["gpu-0", MIG])
def test_limits_that_protocol_3_cannot_express_have_a_daemon_of_their_own(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess, device: str
) -> None:
    claim = api.add([device], sharing=mps(defaultPerDevicePinnedMemoryLimit={"0": "1Gi"}))
    plugin.engine.prepare(claim)
    assert "1024M" in client(plugin, claim, device)["memory"].values()
    assert [step.protocol for step in mps_steps_of(plugin.record(claim).plan)] == [2]


def test_a_daemon_that_dies_is_restarted_where_containers_find_it(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess
) -> None:
    claim = api.add(["gpu-0"], sharing=mps(defaultActiveThreadPercentage=50))
    plugin.engine.prepare(claim)
    server = client(plugin, claim, "gpu-0")["server"]
    (pid,) = daemons(plugin)
    (pipe,) = plugin.root.glob("mps/s*/pipe")
    before = pipe.stat().st_ino
    os.kill(pid, signal.SIGKILL)
    statuses = SupervisorClient(plugin.root / "mps").statuses
    wait_for(lambda: [one.restarts for one in statuses().values()] == [1], "the restart")
    assert pipe.stat().st_ino == before
    assert daemons(plugin) != [pid]
    found = client(plugin, claim, "gpu-0")
    assert found["percentage"] == 50.0
    assert found["server"] != server
    assert len(supervisor.processes()) == 2


def test_claims_outlive_the_plugin_and_are_served_again_after_the_supervisor(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess, root: Path
) -> None:
    claim = api.add([MIG], sharing=mps(defaultActiveThreadPercentage=50))
    plugin.engine.prepare(claim)
    plugin.stop()
    later = Plugin(root, api)
    (pid,) = daemons(later)
    client(later, claim, MIG)
    assert daemons(later) == [pid]
    supervisor.kill()
    assert len(supervisor.processes()) == 2
    supervisor.start()
    statuses = SupervisorClient(later.root / "mps").statuses
    wait_for(lambda: [one.problem for one in statuses().values()] == [""], "the daemon")
    assert daemons(later) != [pid]
    assert client(later, claim, MIG)["percentage"] == 50.0
    later.engine.unprepare(claim)
    assert (later.left(), supervisor.left()) == (NOTHING, [])
    later.stop()


def test_unprepare_does_not_need_the_supervisor(plugin: Plugin, api: ApiServer, supervisor: MpsProcess) -> None:
    claim = api.add(["gpu-0"], sharing=mps())
    plugin.engine.prepare(claim)
    supervisor.stop()
    assert supervisor.processes() == []
    plugin.engine.unprepare(claim)
    assert (plugin.left(), compute_mode(plugin)) == (NOTHING, ComputeMode.DEFAULT)
    with pytest.raises(PrepareError, match=r"MPS cannot be set up: no dra-mps answers at .*mps\.enabled"):
        plugin.engine.prepare(claim)
    assert plugin.left() == NOTHING
    supervisor.start()
    wait_for(lambda: not any(one.is_dir() for one in paths_in(plugin.root, "mps/s*")), "the folder to go")


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        ("start fails", "ended while it started: out of luck"),
        ("command fails", "set_default_active_thread_percentage .*: no such thing"),
        ("missing", "there is no nvidia-cuda-mps-control below "),
    ],
)
def test_trouble_with_the_daemon_is_told_and_leaves_nothing(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess, trouble: str, text: str
) -> None:
    match trouble:
        case "start fails":
            plugin.node.mps.fail_start("out of luck")
        case "command fails":
            plugin.node.mps.fail("set_default_active_thread_percentage", "no such thing")
        case "missing":
            (plugin.node.driver_root / "usr/bin/nvidia-cuda-mps-control").unlink()
    claim = api.add(["gpu-0"], sharing=mps(defaultActiveThreadPercentage=50))
    with pytest.raises(PrepareError, match=f"^MPS cannot be set up: .*{text}"):
        plugin.engine.prepare(claim)
    assert (plugin.left(), supervisor.left()) == (NOTHING, [])
    assert compute_mode(plugin) == ComputeMode.DEFAULT


@pytest.mark.parametrize("version", ["2", "3"])
def test_a_daemon_that_does_not_quit_is_killed_with_its_server(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess, version: str, request: pytest.FixtureRequest
) -> None:
    if version == "3":
        request.getfixturevalue("new_driver")
    claim = api.add(["gpu-0"], sharing=mps())
    plugin.engine.prepare(claim)
    client(plugin, claim, "gpu-0")
    plugin.node.mps.hang("quit")
    plugin.node.mps.hang("server")
    plugin.engine.unprepare(claim)
    assert (plugin.left(), supervisor.left()) == (NOTHING, [])


def test_steps_of_settings_are_those_of_the_strategy(plugin: Plugin, api: ApiServer, supervisor: MpsProcess) -> None:
    claim = api.add(["gpu-0", "gpu-1"], sharing=mps())
    plugin.engine.prepare(claim)
    steps = plugin.record(claim).plan.steps
    assert [type(step) for step in steps] == [*(MigModeStep, ComputeModeStep, MigModeStep, ComputeModeStep, MpsStep)]


def test_claims_are_told_of_a_daemon_that_ended_and_of_its_restart(
    plugin: Plugin, api: ApiServer, supervisor: MpsProcess
) -> None:
    claim, other = (api.add([device], sharing=mps()) for device in ("gpu-0", "gpu-1"))
    for one in (claim, other):
        plugin.engine.prepare(one)
    events: list[tuple[ClaimRef, str]] = []
    told: list[ClaimRef] = []
    boundary = ClaimBoundary(lambda ref, reason, _: events.append((ref, reason)))
    services, changes, restarts = MpsServices(plugin.place), list[bool](), list[int]()
    watch = MpsWatch(
        lambda: [plugin.record(one) for one in (claim, other)],
        services.statuses,
        boundary,
        restarts.append,
    )
    watch.start(told.append, lambda: changes.append(True))
    watch.stop()  # this test calls `look` itself
    watch.look()
    assert (events, watch.sick(), watch.trouble(claim.uid)) == ([], {}, None)
    plugin.node.mps.fail_start("out of luck")
    (server,) = [step.name.server for step in mps_steps_of(plugin.record(claim).plan)]
    os.kill(int((plugin.root / f"mps/{server}/pipe/nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    wait_for(lambda: services.statuses()[server].problem, "the failure")
    for _ in range(2):
        watch.look()
    assert (events, told, len(changes), restarts) == ([(claim, "MpsDaemonDown")], [claim], 1, [])
    assert sorted((one.devices, bool(one.status.problem)) for one in watch.served()) == [
        (("gpu-0",), True),
        (("gpu-1",), False),
    ]
    ((device, (_, problem)),) = watch.sick().items()
    assert device == "gpu-0", problem
    assert "out of luck" in problem
    trouble = watch.trouble(claim.uid)
    assert trouble is not None
    assert (trouble.ready, trouble.reason) == (False, "MpsDaemonDown")
    plugin.node.mps.mend()
    wait_for(lambda: not services.statuses()[server].problem, "the restart")
    for _ in range(2):
        watch.look()
    assert (events[1:], restarts) == ([(claim, "MpsDaemonRestarted")], [1])
    trouble = watch.trouble(claim.uid)
    assert trouble is not None
    assert (watch.sick(), trouble.ready, trouble.reason) == ({}, True, "MpsDaemonRestarted")
    supervisor.stop()
    watch.look()
    assert sorted(watch.sick()) == ["gpu-0", "gpu-1"]
    assert watch.trouble(other.uid) is not None
    supervisor.start()
    wait_for(lambda: [one.problem for one in services.statuses().values()] == ["", ""], "the next dra-mps")
    watch.look()
    assert restarts == [1, 2]
