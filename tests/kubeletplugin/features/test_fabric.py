# SPDX-License-Identifier: Apache-2.0
"""Claims on a board with NVSwitches: the partition of their GPUs is active as long as they are prepared."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.fabric import NO_SWITCHES, FabricError, Partition, SwitchFacts
from dra_driver.gpu.fabric_marks import FabricMark, FabricMarks
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.threads import CallLimits
from dra_driver.kube.resource.codec import DecodeError
from kubeletplugin.claims.boundary import EXPECTED_ERRORS
from kubeletplugin.claims.engine import ClaimTimes
from kubeletplugin.claims.model import ClaimRef, Plan, Record, State
from kubeletplugin.claims.records import decode, encode
from kubeletplugin.commands.cleanup import find
from kubeletplugin.commands.status import read_node
from kubeletplugin.drivers import gpu_driver
from kubeletplugin.errors import PrepareError
from kubeletplugin.features.fabric.partitions import FabricPartitions
from kubeletplugin.features.fabric.plan import fabric_steps
from kubeletplugin.features.fabric.step import FabricStep
from tests.kubeletplugin.inside import QUICK, ApiServer, Plugin
from tests.support.fuse import usable
from tests.support.kernel import NVIDIA, VFIO, Kernel
from tests.support.nodes import make_node
from tests.support.waiting import wait_for

NODE = str(Path(__file__).parents[2] / "support/nvswitch.yaml")
SETTINGS = ClaimTimes(retry=0.1)
PAIR, OTHER_PAIR, FOUR, FIRST = 4, 5, 2, 8
PAIR_GPUS = ["gpu-0", "gpu-2"]  # modules 1 and 3


@pytest.fixture
def plugin(tmp_path: Path, api: ApiServer) -> Plugin:
    return Plugin(tmp_path, api, hardware=NODE, settings=SETTINGS)


def again(plugin: Plugin) -> Plugin:
    """The next process."""
    plugin.stop()
    return Plugin(plugin.root, plugin.api, hardware=NODE, settings=SETTINGS)


def active(plugin: Plugin) -> list[int]:
    """The partitions that are active."""
    return sorted(plugin.node.fabric.state.active)


def marked(plugin: Plugin) -> list[tuple[int, bool]]:
    """The partitions with marks, and whether they were active before."""
    return [(one.partition, one.found) for one in FabricMarks(plugin.root / "fabric").all()]


def attempt(plugin: Plugin, verb: str, claim: ClaimRef) -> str:
    """Make a call. Returns its error."""
    try:
        getattr(plugin.engine, verb)(claim)
    except EXPECTED_ERRORS as error:
        return str(error)
    return ""


def settle(plugin: Plugin, verb: str, claim: ClaimRef) -> None:
    """kubelet repeats a call until it succeeds."""
    wait_for(lambda: not attempt(plugin, verb, claim), f"{verb} to succeed")


# Claims and partitions


@pytest.mark.parametrize(
    ("devices", "partition"),
    [
        (PAIR_GPUS, PAIR),
        (["gpu-2", "gpu-0"], PAIR),
        (["gpu-1"], FIRST + 1),
        (["gpu-3", "gpu-1", "gpu-0", "gpu-2"], FOUR),
        ([f"gpu-{number}" for number in range(8)], 1),
    ],
)
def test_the_partition_with_exactly_the_gpus_is_active_for_the_claim(
    plugin: Plugin, api: ApiServer, devices: list[str], partition: int
) -> None:
    claim = api.add(devices)
    plan = plugin.engine.prepare(claim).plan
    assert isinstance(plan.steps[0], FabricStep)
    assert (active(plugin), marked(plugin)) == ([partition], [(partition, False)])
    plugin.engine.prepare(claim)
    plugin = again(plugin)
    assert (plugin.record(claim).state, active(plugin)) == (State.PREPARED, [partition])
    plugin.engine.unprepare(claim)
    assert (active(plugin), marked(plugin)) == ([], [])
    assert plugin.steps[-1] == f"undo {plan.steps[0]}"


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (
            ["gpu-0", "gpu-1"],
            "the claim's GPUs (modules 1, 2) are not exactly one partition of the NVSwitches: partitions of 2 are"
            " 4 (GPU modules 1, 3); 5 (GPU modules 2, 4); 6 (GPU modules 5, 7); 7 (GPU modules 6, 8); request N of"
            " 1, 2, 4, 8 GPUs in one claim, with the constraint matchAttribute: gpu.nvidia.com/partition<N>",
        ),
        (["gpu-0", "gpu-1", "gpu-2"], "there are none of 3 GPUs; request N of 1, 2, 4, 8 GPUs"),
    ],
)
def test_gpus_that_are_no_partition_are_refused_with_those_that_fit(
    plugin: Plugin, api: ApiServer, devices: list[str], text: str
) -> None:
    with pytest.raises(PrepareError) as raised:
        plugin.engine.prepare(api.add(devices))
    assert text in str(raised.value)
    assert plugin.left()["records"] == []


def test_an_administrator_who_looks_at_gpus_needs_no_partition(plugin: Plugin, api: ApiServer) -> None:
    plugin.engine.prepare(api.add(["gpu-0", "gpu-1"], adminAccess=True))
    assert active(plugin) == []


def test_claims_that_share_a_gpu_share_its_partition(plugin: Plugin, api: ApiServer) -> None:
    first, second = api.share("gpu-0", "01"), api.share("gpu-0", "02")
    for claim in (first, second):
        plugin.engine.prepare(claim)
    plugin.engine.unprepare(first)
    assert active(plugin) == [FIRST]
    plugin.engine.unprepare(second)
    assert active(plugin) == []


def test_a_partition_that_was_active_before_stays_active(plugin: Plugin, api: ApiServer) -> None:
    plugin.node.fabric.activate(PAIR)
    claim = api.add(PAIR_GPUS)
    plugin.engine.prepare(claim)
    assert marked(plugin) == [(PAIR, True)]
    again(plugin).engine.unprepare(claim)
    assert (active(plugin), marked(plugin)) == ([PAIR], [])


def test_partition_that_fabric_manager_no_longer_has_is_an_error(plugin: Plugin) -> None:
    partitions = plugin.place.of(FabricPartitions)
    with pytest.raises(PrepareError, match=f"no longer has a partition {PAIR} with the GPU modules 5, 7"):
        partitions.is_active(FabricMark(PAIR, (5, 7), ()))


def test_activated_partition_is_noted_for_a_restart_of_fabric_manager(plugin: Plugin, api: ApiServer) -> None:
    plugin.engine.prepare(api.add(PAIR_GPUS))
    seen = FabricMarks(plugin.root / "fabric").seen()
    assert seen is not None
    assert seen.active == (PAIR,)


def test_a_partition_in_the_way_is_named(plugin: Plugin, api: ApiServer) -> None:
    plugin.node.fabric.activate(FOUR)
    claim = api.add(PAIR_GPUS)
    with pytest.raises(PrepareError, match=r"these partitions are active: 2 \(GPU modules 1, 2, 3, 4\); kubelet tries"):
        plugin.engine.prepare(claim)
    assert (active(plugin), marked(plugin), plugin.left()["records"]) == ([FOUR], [], [])
    plugin.node.fabric.deactivate(FOUR)
    plugin.engine.prepare(claim)
    assert active(plugin) == [PAIR]


def test_a_node_in_another_mode_has_no_partitions(tmp_path: Path, api: ApiServer) -> None:
    with make_node(tmp_path / "node", NODE).node.fabric.changing() as state:
        state.mode = 0
    plugin = Plugin(tmp_path, api, hardware=NODE, settings=SETTINGS)
    assert [type(one) for one in plugin.engine.prepare(api.add(["gpu-0", "gpu-1"])).plan.steps] != [FabricStep]


def test_a_partition_without_a_claim_is_deactivated(plugin: Plugin, api: ApiServer) -> None:
    claim = api.add(PAIR_GPUS)
    plugin.engine.prepare(claim)
    plugin.records.remove(claim.uid)
    plugin = again(plugin)
    assert (active(plugin), marked(plugin)) == ([], [])


def test_marks_of_an_earlier_boot_are_forgotten(plugin: Plugin, api: ApiServer) -> None:
    plugin.engine.prepare(api.add(PAIR_GPUS))
    plugin.stop()
    plugin.node.fabric.start(resilient=False)  # as after a boot
    after = Plugin(plugin.root, api, hardware=NODE, settings=SETTINGS, boot_id="boot-2")
    assert (active(after), marked(after), after.left()["records"]) == ([], [], [])


def test_a_mark_that_cannot_be_read_is_removed_and_its_partition_stays(plugin: Plugin, api: ApiServer) -> None:
    claim = api.add(PAIR_GPUS)
    plugin.engine.prepare(claim)
    (plugin.root / f"fabric/{PAIR}.json").write_text("{")
    plugin.engine.unprepare(claim)
    assert active(plugin) == [PAIR]
    assert not (plugin.root / f"fabric/{PAIR}.json").exists()


def test_status_and_cleanup_name_the_partition(plugin: Plugin, api: ApiServer) -> None:
    claim = api.add(PAIR_GPUS)
    plugin.engine.prepare(claim)
    step = "NVSwitch partition 4 (GPU modules 1, 3)"
    for done in (True, None):
        state = read_node(plugin.place.folders, "boot-1")
        (record,) = state.records
        assert next((str(one), found) for one, found in state.steps(record)) == (step, done)
        plugin.node.fabric.stop()
    assert find(plugin.place).made == ("the NVSwitch partition 4",)


@pytest.mark.parametrize("broken", [{"modules": []}, {"modules": [1]}, {"modules": ["1", "3"]}])
def test_a_record_has_the_partition(broken: dict[str, object]) -> None:
    step = FabricStep(PAIR, (1, 3), ("GPU-1", "GPU-3"))
    record = Record(State.PREPARED, "boot", Plan(ClaimRef("team", "claim", "uid"), "node-a", (), (step,)))
    assert decode(gpu_driver(), encode(record)) == record
    value = json.loads(encode(record))
    value["steps"][0] |= broken
    with pytest.raises(DecodeError, match="must have an integer for each of gpus"):
        decode(gpu_driver(), json.dumps(value).encode())


@pytest.mark.parametrize(
    ("module", "switches", "text"),
    [
        (None, SwitchFacts((Partition(1, (1,)),), True), "NVML reports no module ID of gpu-0"),
        (1, SwitchFacts(problem="it fails"), "the NVSwitch partitions of the GPUs are unknown: it fails"),
    ],
)
def test_a_claim_whose_partition_is_unknown_is_refused(module: int | None, switches: SwitchFacts, text: str) -> None:
    with pytest.raises(PrepareError, match=text):
        fabric_steps([("gpu-0", "GPU-0", module)], switches)
    assert fabric_steps([], switches) == fabric_steps([("gpu-0", "GPU-0", module)], NO_SWITCHES) == ()


# Fabric Manager fails, hangs and restarts


def test_an_nvlink_error_fails_the_claim_and_is_reported(plugin: Plugin, api: ApiServer) -> None:
    with plugin.node.fabric.changing() as state:
        state.broken = [PAIR]
    claim, marks = api.add(PAIR_GPUS), FabricMarks(plugin.root / "fabric")
    with pytest.raises(FabricError, match=r"\(NVLINK_ERROR, -10\): an NVLink could not be trained; read its log"):
        plugin.engine.prepare(claim)
    (trouble,) = marks.troubles.all()
    assert trouble.gpus == tuple(plugin.gpu(index).uuid for index in (0, 2))
    assert (marked(plugin), plugin.left()["records"]) == ([], [])
    with plugin.node.fabric.changing() as state:
        state.broken = []
    plugin.engine.prepare(claim)
    assert marks.troubles.all() == ()


def test_a_claim_is_told_why_it_waits_for_fabric_manager(plugin: Plugin, api: ApiServer) -> None:
    claim, fabric = api.add(PAIR_GPUS), plugin.node.fabric
    for change, text in (
        (fabric.stop, "it cannot be reached; see that nvidia-fabricmanager.service runs"),
        (lambda: fabric.start(starting=True), "NOT_CONFIGURED, -8): it is still starting; kubelet tries again"),
    ):
        change()
        assert text in attempt(plugin, "prepare", claim)
    fabric.start()
    settle(plugin, "prepare", claim)
    with fabric.changing() as state:
        state.mode = 0
    other = api.add(["gpu-1"])
    plugin.engine.prepare(other)  # there are no partitions in this mode
    assert active(plugin) == [PAIR]


def test_a_claim_can_be_unprepared_while_fabric_manager_is_away(plugin: Plugin, api: ApiServer) -> None:
    claim, next_one = api.add(PAIR_GPUS), api.add(PAIR_GPUS)
    plugin.engine.prepare(claim)
    plugin.node.fabric.stop()
    plugin.engine.unprepare(claim)
    assert plugin.record(claim).state is State.UNPREPARING
    assert "is still being removed from claim" in attempt(plugin, "prepare", next_one)
    plugin.node.fabric.start()
    wait_for(lambda: (active(plugin), plugin.left()["records"]) == ([], []), "the partition to be deactivated")
    settle(plugin, "prepare", next_one)


@pytest.mark.parametrize("resilient", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_a_fabric_manager_that_was_restarted_gets_its_partitions_back(
    plugin: Plugin, api: ApiServer, resilient: bool, running: bool
) -> None:
    plugin.node.fabric.activate(OTHER_PAIR)  # an administrator's
    claim = api.add(PAIR_GPUS)
    plugin.engine.prepare(claim)
    if not running:
        plugin.stop()
    plugin.node.fabric.start(resilient=resilient)
    if not running:
        plugin = again(plugin)
    else:
        plugin.place.access.wake()
    wait_for(lambda: PAIR in active(plugin) and plugin.node.fabric.state.told, "the partition")
    assert active(plugin) == ([PAIR, OTHER_PAIR] if resilient else [PAIR])
    plugin.engine.unprepare(claim)
    assert PAIR not in active(plugin)


def test_a_fabric_manager_that_waits_for_its_first_list_gets_an_empty_one(tmp_path: Path, api: ApiServer) -> None:
    fabric = make_node(tmp_path / "node", NODE).node.fabric
    fabric.start()
    plugin = Plugin(tmp_path, api, hardware=NODE, settings=SETTINGS)
    wait_for(lambda: fabric.state.told, "the list")
    claim = api.add(PAIR_GPUS)
    plugin.engine.prepare(claim)
    assert active(plugin) == [PAIR]


def test_a_look_does_not_wait_for_a_process_that_changes_partitions(
    tmp_path: Path, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Plugin(tmp_path, api, hardware=NODE, times=replace(QUICK, look=0.1), settings=SETTINGS)
    claim, marks = api.add(PAIR_GPUS), FabricMarks(plugin.root / "fabric")
    with marks.locked(lambda: None):
        plugin.node.fabric.start()
        plugin.place.access.wake()
        wait_for(lambda: "another process of this plugin is changing a partition" in caplog.text, "the look to end")
    plugin.place.access.wake()
    wait_for(lambda: plugin.node.fabric.state.told, "the list")
    settle(plugin, "prepare", claim)


@pytest.mark.parametrize("call", ["fmGetSupportedFabricPartitions", "fmActivateFabricPartition"])
def test_a_call_that_hangs_fails_the_claim_and_other_claims_go_on(tmp_path: Path, api: ApiServer, call: str) -> None:
    times = replace(QUICK, calls=CallLimits(look=1.0, partition=1.0))
    plugin = Plugin(tmp_path, api, hardware=NODE, times=times, settings=SETTINGS)
    claim = api.add(PAIR_GPUS)
    plugin.node.inject(Fault(call, seconds=1000.0))
    error = attempt(plugin, "prepare", claim)
    assert f"{call} failed (TIMEOUT, -5): {call} for Fabric Manager has not returned" in error
    plugin.engine.prepare(api.add(["gpu-1"], adminAccess=True))
    plugin.node.clear_faults()
    settle(plugin, "prepare", claim)
    assert active(plugin) == [PAIR]
    settle(plugin, "unprepare", claim)
    assert (active(plugin), marked(plugin)) == ([], [])


# Virtual machines


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    if not usable():
        pytest.skip("needs root and /dev/fuse")
    make_node(tmp_path / "node", NODE)
    kernel = Kernel(tmp_path / "node")
    with kernel.running():
        yield kernel


@pytest.mark.node
def test_a_machine_gets_its_gpus_after_the_activation_and_they_are_back_before_the_deactivation(
    tmp_path: Path, kernel: Kernel, api: ApiServer
) -> None:
    plugin = Plugin(tmp_path, api, hardware=NODE, settings=SETTINGS)
    states: list[tuple[list[int], list[str | None]]] = []

    def watch(_: int, path: str, __: str) -> None:
        if path.endswith(("/bind", "/unbind")):
            states.append((active(plugin), [kernel.driver(kernel.gpus[index]) for index in (0, 2)]))

    kernel.strike = watch
    claim = api.add(["gpu-vfio-0", "gpu-vfio-2"])
    plan = plugin.engine.prepare(claim).plan
    assert isinstance(plan.steps[0], FabricStep)
    assert [kernel.driver(kernel.gpus[index]) for index in (0, 2)] == [VFIO, VFIO]
    plugin = again(plugin)
    plugin.engine.prepare(claim)
    plugin.engine.unprepare(claim)
    assert [kernel.driver(kernel.gpus[index]) for index in (0, 2)] == [NVIDIA, NVIDIA]
    assert {tuple(found) for found, _ in states} == {(PAIR,)}
    assert (active(plugin), marked(plugin)) == ([], [])
