# SPDX-License-Identifier: Apache-2.0
"""Steps: each can be done, undone and asked whether it is done, from wherever an earlier attempt broke off."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import ComputeMode, NvmlError, Return
from dra_driver.gpu.simulated.faults import Fault
from kubeletplugin.claims.call import OWN_WORK, Call
from kubeletplugin.claims.model import Device, Step
from kubeletplugin.drivers import gpu_driver
from kubeletplugin.errors import PrepareError, UnsupportedError
from kubeletplugin.kinds.mig.device import MigKind, encode_instance
from kubeletplugin.kinds.mig.instance import InstanceStep, LookStep
from kubeletplugin.kinds.mig.instances import MigInstances
from kubeletplugin.kinds.mig.marks import ModeMark, mode_marks
from kubeletplugin.kinds.mig.mode import MigModeStep, whole_gpu_steps
from kubeletplugin.kinds.settings.hardware import ComputeModes
from kubeletplugin.kinds.settings.steps import ComputeModeStep, TimeSliceStep
from kubeletplugin.node.gpus import Gpus
from kubeletplugin.node.node import Node
from tests.kubeletplugin.inside import DYNAMIC, NO_POLICY, ApiServer, Plugin

MIG = "gpu-4-mig-2g20gb-14-2"
CREATE, CREATE_COMPUTE = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """A node; the plugin on it does nothing."""
    return Plugin(tmp_path, ApiServer(), start=False)


@pytest.fixture
def node(plugin: Plugin) -> Node:
    """The node as a step sees it."""
    return plugin.place.with_gpus(Gpus(plugin.place.session))


@pytest.fixture
def device(node: Node) -> MigDevice:
    found = node.gpus().find(MIG)
    assert isinstance(found, MigDevice)
    return found


def steps(plugin: Plugin, device: MigDevice) -> dict[str, Step]:
    """A step of each kind that changes something."""
    return {
        "instance": InstanceStep(MIG, device),
        "mode on": MigModeStep(plugin.gpu(0).uuid, True, may_switch=True),
        "mode off": MigModeStep(plugin.gpu(5).uuid, False, may_switch=True),
        "compute mode": ComputeModeStep(plugin.gpu(0).uuid, ComputeMode.EXCLUSIVE_PROCESS),
        "time-slice": TimeSliceStep(plugin.gpu(0).uuid, 3),
    }


@pytest.mark.node
@pytest.mark.parametrize("kind", ["instance", "mode on", "mode off", "compute mode", "time-slice"])
def test_a_step_can_be_repeated_and_undone_again_and_again(
    plugin: Plugin, node: Node, device: MigDevice, kind: str
) -> None:
    step = steps(plugin, device)[kind]
    before = plugin.gpus()
    assert not step.is_done(node)
    assert not step.is_marked(node)
    for _ in range(2):
        first = step.do(node, OWN_WORK)
        assert step.do(node, OWN_WORK) == first
        assert step.is_done(node)
        assert step.is_marked(node)
        step.undo(node, OWN_WORK)
        step.undo(node, OWN_WORK)
        assert not step.is_done(node)
        assert not step.is_marked(node)
    assert plugin.gpus() == before


@pytest.mark.parametrize("call", [CREATE, CREATE_COMPUTE, "nvmlGpuInstanceGetInfo", "nvmlComputeInstanceGetInfo"])
@pytest.mark.parametrize("go_on", [True, False])
def test_an_instance_that_was_broken_off_is_completed_or_undone(
    plugin: Plugin, node: Node, device: MigDevice, call: str, go_on: bool
) -> None:
    step = InstanceStep(MIG, device)
    plugin.node.inject(Fault(call, 4, Return.UNKNOWN, times=1))
    with pytest.raises(NvmlError):
        step.do(node, OWN_WORK)
    assert step.is_marked(node)
    if go_on:
        found = step.do(node, OWN_WORK)
        made = node.gpus().of(MigInstances).find(device)
        assert made is not None
        assert found == {MIG: encode_instance(made)}
    else:
        step.undo(node, OWN_WORK)
        assert plugin.instances() == []
        assert not step.is_marked(node)


def test_an_instance_that_certainly_was_not_made_leaves_no_mark(plugin: Plugin, node: Node, device: MigDevice) -> None:
    step = InstanceStep(MIG, device)
    plugin.node.inject(Fault(CREATE, 4, Return.INSUFFICIENT_RESOURCES, times=1))
    with pytest.raises(PrepareError, match="not enough free memory slices"):
        step.do(node, OWN_WORK)
    assert not step.is_marked(node)


def test_an_instance_of_somebody_else_is_used_and_kept(plugin: Plugin, node: Node, device: MigDevice) -> None:
    uuid = plugin.make_by_hand(MIG)
    step = InstanceStep(MIG, device)
    assert step.is_done(node)
    assert step.do(node, OWN_WORK)[MIG]["uuid"] == uuid
    assert not step.is_marked(node)
    step.undo(node, OWN_WORK)
    assert plugin.mig_uuid() == uuid


def test_an_instance_is_waited_for_as_long_as_somebody_waits(plugin: Plugin, node: Node, device: MigDevice) -> None:
    step = InstanceStep(MIG, device)
    step.do(node, OWN_WORK)
    plugin.node.occupy(plugin.mig_uuid(), os.getpid())
    tries: list[int] = []

    def going_on() -> None:
        tries.append(1)
        if len(tries) == 3:
            plugin.node.vacate(os.getpid())

    node.times = replace(node.times, busy=30)
    step.undo(node, Call(going_on))
    assert len(tries) == 3
    assert plugin.instances() == []


def test_a_look_changes_nothing(plugin: Plugin, node: Node, device: MigDevice) -> None:
    look = LookStep(MIG, device)
    assert not look.is_done(node)
    with pytest.raises(PrepareError, match="there is nothing to look at"):
        look.do(node, OWN_WORK)
    InstanceStep(MIG, device).do(node, OWN_WORK)
    assert look.is_done(node)
    look.do(node, OWN_WORK)
    look.undo(node, OWN_WORK)
    assert plugin.instances() == ["2:2"]
    assert not look.is_marked(node)


@pytest.mark.parametrize(
    ("code", "error"), [(Return.NOT_SUPPORTED, UnsupportedError), (Return.NO_PERMISSION, NvmlError)]
)
def test_compute_mode_that_a_gpu_does_not_have_is_told_from_other_errors(
    plugin: Plugin, node: Node, code: Return, error: type[Exception]
) -> None:
    plugin.node.inject(Fault("nvmlDeviceSetComputeMode", code=code))
    with pytest.raises(error, match=code.name):
        node.gpus().of(ComputeModes).set(plugin.gpu(0).uuid, ComputeMode.EXCLUSIVE_PROCESS)


def test_a_mode_is_not_switched_where_that_is_not_allowed(plugin: Plugin, node: Node) -> None:
    step = MigModeStep(plugin.gpu(0).uuid, True)
    with pytest.raises(PrepareError, match="the driver does not switch it for claims"):
        step.do(node, OWN_WORK)
    assert plugin.mode(0) == (False, False)


def test_a_mode_that_an_administrator_wants_after_a_reset_is_still_wanted(plugin: Plugin, node: Node) -> None:
    gpu = plugin.gpu(0)
    plugin.node.occupy(gpu.uuid, os.getpid())
    nvml = plugin.nvml
    assert nvml.set_mig_mode(nvml.device_by_index(0), True) is Return.IN_USE
    with pytest.raises(PrepareError, match="cannot be switched on now"):
        MigModeStep(gpu.uuid, True, may_switch=True).do(node, OWN_WORK)
    assert plugin.mode(0) == (False, True)
    assert node.of(mode_marks).all() == ()


def test_marks_of_an_earlier_boot_mean_nothing(plugin: Plugin, device: MigDevice) -> None:
    plugin.start()
    rebooted = Plugin(plugin.root, plugin.api, boot_id="boot-2", start=False)
    for later in (plugin, rebooted):
        later.place.instances.set(device)
        later.place.of(mode_marks).set(ModeMark("GPU-0", original=True))
    rebooted.start()
    assert not rebooted.place.instances.has(device)
    assert not rebooted.place.of(mode_marks).has("GPU-0")


def test_a_whole_gpu_needs_its_mode_off_if_it_has_one(plugin: Plugin) -> None:
    gpu = plugin.gpu(0)
    assert [step.may_switch for step in whole_gpu_steps(gpu, NO_POLICY)] == [False]
    assert [step.may_switch for step in whole_gpu_steps(gpu, DYNAMIC)] == [True]
    assert whole_gpu_steps(gpu, DYNAMIC) == (MigModeStep(gpu.uuid, False),)
    assert whole_gpu_steps(replace(gpu, mig_mode=None), DYNAMIC) == ()


def test_steps_are_done_phase_by_phase_gpu_by_gpu_and_each_once(device: MigDevice) -> None:
    def on(gpu: str, start: int) -> MigDevice:
        return MigDevice(gpu, 19, type(device.placement)(start, 1), 0, "1g", 1)

    slices = [on("GPU-0", 0), on("GPU-1", 0), on("GPU-0", 1), on("GPU-0", 1)]
    devices = [Device(f"{one.gpu_uuid}-{one.placement.start}", "r", MigKind(one)) for one in slices]
    steps: list[Step] = [TimeSliceStep("GPU-0", 1)]
    for name, one in zip((one.name for one in devices), slices, strict=True):
        steps += [MigModeStep(one.gpu_uuid, True), InstanceStep(name, one)]
    assert gpu_driver().ordered(steps, devices) == (
        MigModeStep("GPU-0", True),
        InstanceStep("GPU-0-0", slices[0]),
        InstanceStep("GPU-0-1", slices[2]),
        TimeSliceStep("GPU-0", 1),
        MigModeStep("GPU-1", True),
        InstanceStep("GPU-1-0", slices[1]),
    )
