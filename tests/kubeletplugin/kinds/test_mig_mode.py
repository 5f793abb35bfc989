# SPDX-License-Identifier: Apache-2.0
"""MIG mode, switched for claims where the policy of a GPU is dynamic."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.simulated.faults import Fault
from kubeletplugin.claims.model import State
from kubeletplugin.errors import PrepareError
from tests.kubeletplugin.inside import DYNAMIC, NO_POLICY, NOTHING, ApiServer, Plugin

SLICE, NEXT = "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-1"
SET_MODE = "nvmlDeviceSetMigMode"
ON, OFF = (True, True), (False, False)


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """A plugin on a node whose GPUs may all be switched; 0 to 3 are whole, 4 to 7 in MIG mode."""
    return Plugin(tmp_path, ApiServer(), policy=DYNAMIC)


def test_a_slice_switches_the_mode_on_and_the_last_one_takes_it_back(plugin: Plugin) -> None:
    first, second = plugin.api.add([SLICE]), plugin.api.add([NEXT])
    plugin.engine.prepare(first)
    plugin.engine.prepare(second)
    assert (plugin.mode(0), plugin.instances(0)) == (ON, ["0:1", "1:1"])
    plugin.engine.unprepare(first)  # the one that switched it
    assert (plugin.mode(0), plugin.instances(0)) == (ON, ["1:1"])
    plugin.engine.unprepare(second)
    assert plugin.mode(0) == OFF
    assert plugin.left() == NOTHING


def test_a_mode_that_an_ending_claim_still_uses_is_left_to_it(plugin: Plugin) -> None:
    first, second = plugin.api.add([SLICE]), plugin.api.add([NEXT])
    plugin.engine.prepare(first)
    plugin.engine.prepare(second)
    plugin.records.save(replace(plugin.record(second), state=State.UNPREPARING))
    plugin.engine.unprepare(first)
    assert (plugin.mode(0), plugin.instances(0)) == (ON, ["1:1"])
    assert plugin.reasons() == []
    assert plugin.engine.unrestored.count() == 0
    plugin.engine.unprepare(second)
    assert plugin.mode(0) == OFF
    assert plugin.left() == NOTHING


def test_a_mode_that_was_on_stays_on(plugin: Plugin) -> None:
    ref = plugin.api.add(["gpu-4-mig-1g10gb-19-0"])
    plugin.engine.prepare(ref)
    plugin.engine.unprepare(ref)
    assert plugin.mode(4) == ON
    assert plugin.left() == NOTHING


def test_a_whole_gpu_switches_the_mode_off_and_leaves_it_as_it_was(plugin: Plugin) -> None:
    ref = plugin.api.add(["gpu-4"])
    plugin.engine.prepare(ref)
    assert plugin.mode(4) == OFF
    assert plugin.nodes_of(ref) == {"gpu-4": ["/dev/nvidia4"]}
    plugin.engine.unprepare(ref)
    assert plugin.mode(4) == ON
    assert plugin.left() == NOTHING


def test_a_whole_gpu_after_a_slice_and_the_other_way_round(plugin: Plugin) -> None:
    for devices in (["gpu-0"], [SLICE], ["gpu-0"], [NEXT, SLICE]):
        ref = plugin.api.add(devices)
        plugin.engine.prepare(ref)
        assert plugin.mode(0) == (OFF if devices == ["gpu-0"] else ON)
        plugin.engine.unprepare(ref)
    assert plugin.mode(0) == OFF
    assert plugin.left() == NOTHING


@pytest.mark.parametrize(("device", "index", "before"), [(SLICE, 0, OFF), ("gpu-4", 4, ON)])
def test_a_gpu_that_is_busy_is_said_and_no_mode_is_left_pending(
    plugin: Plugin, device: str, index: int, before: tuple[bool, bool]
) -> None:
    plugin.node.occupy(plugin.gpu(index).uuid, os.getpid())
    ref = plugin.api.add([device])
    with pytest.raises(PrepareError, match=rf"cannot be switched o.* now: IN_USE: it is used by process {os.getpid()}"):
        plugin.engine.prepare(ref)
    assert plugin.mode(index) == before
    assert plugin.left() == NOTHING
    plugin.node.vacate(os.getpid())
    plugin.engine.prepare(ref)
    assert plugin.mode(index) != before


def test_instances_of_an_administrator_keep_a_whole_gpu_from_its_claim(plugin: Plugin) -> None:
    plugin.make_by_hand("gpu-4-mig-1g10gb-19-0")
    with pytest.raises(PrepareError, match=r"cannot be switched off now: IN_USE: it has GPU instances \(\d+ at 0:1\)"):
        plugin.engine.prepare(plugin.api.add(["gpu-4"]))
    assert (plugin.mode(4), plugin.instances(4)) == (ON, ["0:1"])


def test_an_instance_that_fails_takes_the_mode_back(plugin: Plugin) -> None:
    plugin.node.inject(Fault("nvmlGpuInstanceCreateComputeInstance", 0, Return.UNKNOWN, times=1))
    with pytest.raises(NvmlError):
        plugin.engine.prepare(plugin.api.add([SLICE]))
    assert plugin.mode(0) == OFF
    assert plugin.left() == NOTHING
    assert plugin.steps[-2:] == ["undo MIG device 1g.10gb at 0:1", "undo MIG mode on"]


def test_a_mode_that_cannot_be_taken_back_holds_up_nobody_and_goes_later(plugin: Plugin) -> None:
    ref = plugin.api.add([SLICE])
    plugin.engine.prepare(ref)
    plugin.node.inject(Fault(SET_MODE, 0, Return.IN_USE, times=1))
    plugin.engine.unprepare(ref)
    assert plugin.mode(0) == ON
    assert plugin.left() == {**NOTHING, "marks": [f"{plugin.gpu(0).uuid}_off"]}
    plugin.engine.recover()
    assert plugin.mode(0) == OFF
    assert plugin.left() == NOTHING


def test_a_driver_that_lost_the_mode_gets_it_again_with_the_instances(plugin: Plugin) -> None:
    ref = plugin.api.add([SLICE])
    plugin.engine.prepare(ref)
    plugin.node.reset_gpu(0)
    plugin.set_mode(0, False)
    plugin.engine.recover()
    assert (plugin.mode(0), plugin.instances(0)) == (ON, ["0:1"])
    assert plugin.reasons() == ["DevicesRestored"]
    plugin.engine.unprepare(ref)
    assert plugin.mode(0) == OFF


def by_hand(plugin: Plugin) -> None:
    """Switched before the first claim: somebody wants it so."""
    plugin.set_mode(0, True)


def before_a_restart(plugin: Plugin) -> None:
    """Switched by a claim of a process that was killed since."""
    ref = plugin.api.add([SLICE])
    plugin.engine.prepare(ref)
    plugin.engine.unprepare(ref)


@pytest.mark.parametrize(("how", "after"), [(by_hand, ON), (before_a_restart, OFF)])
def test_whose_the_mode_is_outlives_the_process(
    plugin: Plugin, how: Callable[[Plugin], None], after: tuple[bool, bool]
) -> None:
    how(plugin)
    ref = plugin.api.add([NEXT])
    plugin.engine.prepare(ref)
    Plugin(plugin.root, plugin.api, policy=DYNAMIC).engine.unprepare(ref)
    assert plugin.mode(0) == after


class TestWhereTheModeStays:
    """Other policies, and GPUs that have to be reset for it."""

    @pytest.mark.parametrize("device", [SLICE, "gpu-4"])
    @pytest.mark.parametrize(("hardware", "dynamic"), [("h100x8-mixed", False), ("a100-40x8-mixed", True)])
    def test_a_device_of_the_other_mode_does_not_exist(
        self, tmp_path: Path, device: str, hardware: str, dynamic: bool
    ) -> None:
        device = device.replace("1g10gb", "1g5gb") if hardware.startswith("a100") else device
        plugin = Plugin(tmp_path, ApiServer(), hardware=hardware, policy=DYNAMIC if dynamic else NO_POLICY)
        with pytest.raises(PrepareError, match=f"there is no device {device} on node node-a: .* its MIG mode was"):
            plugin.engine.prepare(plugin.api.add([device]))
        assert (plugin.mode(0), plugin.mode(4)) == (OFF, ON)
        assert plugin.left() == NOTHING

    def test_a_gpu_that_was_split_by_hand_since_is_not_taken_for_whole(self, tmp_path: Path) -> None:
        plugin = Plugin(tmp_path, ApiServer())
        plugin.set_mode(0, True)
        with pytest.raises(PrepareError, match=r"MIG mode of GPU GPU-.* is on \(nvidia-smi -i GPU-.* -mig 0\)"):
            plugin.engine.prepare(plugin.api.add(["gpu-0"]))
        assert plugin.left() == NOTHING

    def test_a_gpu_that_was_split_and_made_whole_again_is_seen_so(self, tmp_path: Path) -> None:
        plugin = Plugin(tmp_path, ApiServer())
        plugin.set_mode(4, False)
        plugin.engine.prepare(plugin.api.add(["gpu-4"]))
        plugin.set_mode(5, False)
        with pytest.raises(PrepareError, match=r"MIG mode of GPU GPU-.* is off"):
            plugin.engine.prepare(plugin.api.add(["gpu-5-mig-1g10gb-19-0"]))
