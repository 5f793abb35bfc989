# SPDX-License-Identifier: Apache-2.0
"""Steps: each can be done, undone and asked whether it is done, from wherever an earlier attempt broke off."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import ComputeMode, NvmlError, Return
from dra_driver.gpu.session import Session
from dra_driver.gpu.simulated.faults import Fault
from kubeletplugin.errors import PrepareError
from kubeletplugin.features.fabric.partitions import FabricPartitions
from kubeletplugin.features.mps.services import MpsServices
from kubeletplugin.kinds.gpu_settings import ComputeModes
from kubeletplugin.kinds.mig import MigInstances
from kubeletplugin.kinds.targets import MigSlot, WholeGpu
from kubeletplugin.node.gpus import Gpus
from kubeletplugin.node.marks import Marks, ModeMark
from kubeletplugin.plans.plan import PlannedDevice, steps_for
from kubeletplugin.steps import ComputeModeStep, InstanceStep, LookStep, MigModeStep, Step, TimeSliceStep, Tools
from tests.kubeletplugin.inside import ApiServer, Plugin

MIG = "gpu-4-mig-2g20gb-14-2"
CREATE, CREATE_COMPUTE = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """A node; the plugin on it does nothing."""
    return Plugin(tmp_path, ApiServer(), start=False)


@pytest.fixture
def tools(plugin: Plugin) -> Tools:
    nvml = plugin.nvml
    modes = ComputeModes(nvml, nvml.device_by_uuid)
    marks = Marks(plugin.root)
    mps, fabric = MpsServices(marks.mps), FabricPartitions(plugin.access.fabric, marks.fabric)
    return Tools(MigInstances(nvml), modes, plugin.time_slices, mps, plugin.vfio, fabric, marks, busy_seconds=0.05)


@pytest.fixture
def slot(plugin: Plugin) -> MigSlot:
    found = Gpus(Session(plugin.node.nvml, plugin.sys_root)).find(MIG)
    assert isinstance(found, MigDevice)
    return MigSlot(found.gpu_uuid, 4, found.profile, found.profile_id, found.slices, found.placement)


def steps(plugin: Plugin, slot: MigSlot) -> dict[str, Step]:
    """A step of each kind that changes something."""
    return {
        "instance": InstanceStep(MIG, slot),
        "mode on": MigModeStep(plugin.gpu(0).uuid, True, may_switch=True),
        "mode off": MigModeStep(plugin.gpu(5).uuid, False, may_switch=True),
        "compute mode": ComputeModeStep(plugin.gpu(0).uuid, ComputeMode.EXCLUSIVE_PROCESS),
        "time-slice": TimeSliceStep(plugin.gpu(0).uuid, 3),
    }


@pytest.mark.parametrize("kind", ["instance", "mode on", "mode off", "compute mode", "time-slice"])
def test_a_step_can_be_repeated_and_undone_again_and_again(
    plugin: Plugin, tools: Tools, slot: MigSlot, kind: str
) -> None:
    step = steps(plugin, slot)[kind]
    before = plugin.gpus()
    assert not step.is_done(tools)
    assert not step.left_something(tools.marks)
    for _ in range(2):
        first = step.do(tools)
        assert step.do(tools) == first
        assert step.is_done(tools)
        assert step.left_something(tools.marks)
        step.undo(tools)
        step.undo(tools)
        assert not step.is_done(tools)
        assert not step.left_something(tools.marks)
    assert plugin.gpus() == before


@pytest.mark.parametrize("call", [CREATE, CREATE_COMPUTE, "nvmlGpuInstanceGetInfo", "nvmlComputeInstanceGetInfo"])
@pytest.mark.parametrize("go_on", [True, False])
def test_an_instance_that_was_broken_off_is_completed_or_undone(
    plugin: Plugin, tools: Tools, slot: MigSlot, call: str, go_on: bool
) -> None:
    step = InstanceStep(MIG, slot)
    plugin.node.inject(Fault(call, 4, Return.UNKNOWN, times=1))
    with pytest.raises(NvmlError):
        step.do(tools)
    assert step.left_something(tools.marks)
    if go_on:
        assert step.do(tools) == {MIG: tools.mig.find(slot)}
    else:
        step.undo(tools)
        assert plugin.instances() == []
        assert not step.left_something(tools.marks)


def test_an_instance_that_certainly_was_not_made_leaves_no_mark(plugin: Plugin, tools: Tools, slot: MigSlot) -> None:
    step = InstanceStep(MIG, slot)
    plugin.node.inject(Fault(CREATE, 4, Return.INSUFFICIENT_RESOURCES, times=1))
    with pytest.raises(PrepareError, match="not enough free memory slices"):
        step.do(tools)
    assert not step.left_something(tools.marks)


def test_an_instance_of_somebody_else_is_used_and_never_destroyed(plugin: Plugin, tools: Tools, slot: MigSlot) -> None:
    uuid = plugin.make_by_hand(MIG)
    step = InstanceStep(MIG, slot)
    assert step.is_done(tools)
    ids = step.do(tools)[MIG]
    assert (ids.uuid, ids.made) == (uuid, False)
    step.undo(tools)
    assert plugin.mig_uuid() == uuid


def test_an_instance_is_waited_for_as_long_as_somebody_waits(plugin: Plugin, tools: Tools, slot: MigSlot) -> None:
    step = InstanceStep(MIG, slot)
    step.do(tools)
    plugin.node.occupy(plugin.mig_uuid(), os.getpid())
    tries: list[int] = []

    def going_on() -> None:
        tries.append(1)
        if len(tries) == 3:
            plugin.node.vacate(os.getpid())

    step.undo(replace(tools, busy_seconds=30, going_on=going_on))
    assert len(tries) == 3
    assert plugin.instances() == []


def test_a_look_changes_nothing(plugin: Plugin, tools: Tools, slot: MigSlot) -> None:
    look = LookStep(MIG, slot)
    assert not look.is_done(tools)
    with pytest.raises(PrepareError, match="there is nothing to look at"):
        look.do(tools)
    InstanceStep(MIG, slot).do(tools)
    assert look.is_done(tools)
    look.do(tools)
    look.undo(tools)
    assert plugin.instances() == ["2:2"]
    assert not look.left_something(Marks(plugin.root / "elsewhere"))


def test_a_mode_is_not_switched_where_that_is_not_allowed(plugin: Plugin, tools: Tools) -> None:
    step = MigModeStep(plugin.gpu(0).uuid, True)
    with pytest.raises(PrepareError, match="the driver does not switch it for claims"):
        step.do(tools)
    assert plugin.mode(0) == (False, False)


def test_a_mode_that_an_administrator_wants_after_a_reset_is_still_wanted(plugin: Plugin, tools: Tools) -> None:
    gpu = plugin.gpu(0)
    plugin.node.occupy(gpu.uuid, os.getpid())
    nvml = plugin.nvml
    assert nvml.set_mig_mode(nvml.device_by_index(0), True) is Return.IN_USE
    with pytest.raises(PrepareError, match="cannot be switched on now"):
        MigModeStep(gpu.uuid, True, may_switch=True).do(tools)
    assert plugin.mode(0) == (False, True)
    assert tools.marks.modes.all() == ()


def test_marks_of_an_earlier_boot_mean_nothing(plugin: Plugin, tools: Tools, slot: MigSlot) -> None:
    marks = tools.marks
    marks.forget_other_boots("boot-1")
    marks.instances.set(slot.place)
    marks.modes.set(ModeMark("GPU-0", original=True))
    marks.forget_other_boots("boot-1")
    assert marks.instances.has(slot.place)
    assert marks.modes.has("GPU-0")
    marks.forget_other_boots("boot-2")
    assert not marks.instances.has(slot.place)
    assert not marks.modes.has("GPU-0")


WHOLE = WholeGpu("GPU-0", 0, "")


@pytest.mark.parametrize(
    ("devices", "kinds"),
    [
        ([("gpu-0", WHOLE, False)], [MigModeStep("GPU-0", False)]),
        ([("gpu-0", WHOLE, True)], []),
        ([("gpu-9", WholeGpu("GPU-9", 9, ""), False)], []),  # it cannot be split
    ],
)
def test_steps_of_whole_gpus(devices: list[tuple[str, WholeGpu, bool]], kinds: list[Step]) -> None:
    planned = tuple(PlannedDevice(name, "r", target, admin) for name, target, admin in devices)
    assert list(steps_for(planned, splittable={"GPU-0"}, switchable=set())) == kinds


def test_steps_of_slices_come_gpu_by_gpu_and_each_once(slot: MigSlot) -> None:
    def on(gpu: str, start: int) -> MigSlot:
        placement = type(slot.placement)(start, 1)
        return MigSlot(gpu, 0, "1g", 19, 1, placement)

    slots = [on("GPU-0", 0), on("GPU-1", 0), on("GPU-0", 1), on("GPU-0", 1)]
    planned = tuple(PlannedDevice(f"{one.gpu_uuid}-{one.placement.start}", "r", one) for one in slots)
    assert steps_for(planned, set(), {"GPU-1"}) == (
        MigModeStep("GPU-0", True),
        InstanceStep("GPU-0-0", slots[0]),
        InstanceStep("GPU-0-1", slots[2]),
        MigModeStep("GPU-1", True),
        InstanceStep("GPU-1-0", slots[1]),
    )
