# SPDX-License-Identifier: Apache-2.0
"""Claims that configure time-slicing: the interval and the compute mode, before, meanwhile and after."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.nvml import ComputeMode, Nvml, Return
from dra_driver.gpu.simulated.faults import Fault
from kubeletplugin.claims.engine import ClaimTimes
from kubeletplugin.claims.model import State
from kubeletplugin.claims.unrestored import LONGEST_PAUSE, Unrestored
from kubeletplugin.errors import PrepareError
from kubeletplugin.features.time_slicing import time_slicing_finding
from kubeletplugin.kinds.settings.hardware import TimeSlices
from kubeletplugin.kinds.settings.steps import ComputeModeStep, TimeSliceStep
from kubeletplugin.node.folders import NodeFolders
from kubeletplugin.node.node import Node
from tests.kubeletplugin.inside import NOTHING, QUICK, ApiServer, Plugin
from tests.support.claims import time_slicing
from tests.support.clock import Clock
from tests.support.nodes import hardware_of
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

GPU = "gpu-5"
SHARES = [f"0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e0{number}" for number in range(3)]
SMI = "usr/bin/nvidia-smi"


@pytest.fixture
def plugin(tmp_path: Path, api: ApiServer) -> Plugin:
    return Plugin(tmp_path, api, hardware="l40sx4")


def level(plugin: Plugin, index: int = 0) -> int:
    """The time-slice level of a GPU."""
    return plugin.node.nvidia_smi.level(plugin.gpu(index).uuid)


def compute_mode(plugin: Plugin, index: int = 0) -> int:
    """The compute mode of a GPU."""
    nvml = plugin.nvml
    return nvml.compute_mode(nvml.device_by_index(index))


def set_compute_mode(plugin: Plugin, mode: int, index: int = 0) -> None:
    """An administrator sets it."""
    nvml = plugin.nvml
    nvml.set_compute_mode(nvml.device_by_index(index), mode)


def sets(plugin: Plugin) -> list[str]:
    """The levels that nvidia-smi was told to set, in order."""
    return [one.rpartition(" ")[2] for one in plugin.node.nvidia_smi.calls() if "--set-timeslice" in one]


@pytest.mark.parametrize(("interval", "wanted"), [("Default", 0), ("Short", 1), ("Medium", 2), ("Long", 3)])
@pytest.mark.parametrize("before", [0, 2])
def test_the_interval_is_set_and_what_was_found_is_put_back(
    plugin: Plugin, api: ApiServer, interval: str, wanted: int, before: int
) -> None:
    plugin.node.nvidia_smi.set_level(plugin.gpu(0).uuid, before)
    set_compute_mode(plugin, ComputeMode.EXCLUSIVE_PROCESS)
    claim = api.add(["gpu-0"], sharing=time_slicing(interval))
    for _ in range(2):
        plugin.engine.prepare(claim)
        assert (level(plugin), compute_mode(plugin)) == (wanted, ComputeMode.DEFAULT)
    for _ in range(2):
        plugin.engine.unprepare(claim)
        assert (level(plugin), compute_mode(plugin)) == (before, ComputeMode.EXCLUSIVE_PROCESS)
    assert plugin.left() == NOTHING
    assert sets(plugin) == ([] if before == wanted else [str(wanted), str(before)])


def test_the_strategy_alone_means_the_default_interval(plugin: Plugin, api: ApiServer) -> None:
    plugin.node.nvidia_smi.set_level(plugin.gpu(0).uuid, 3)
    plugin.engine.prepare(api.add(["gpu-0"], sharing={"strategy": "TimeSlicing"}))
    assert level(plugin) == 0


@pytest.mark.parametrize("asked", [{}, {"sharing": time_slicing("Long"), "adminAccess": True}])
def test_nothing_is_run_where_nothing_was_asked_for(plugin: Plugin, api: ApiServer, asked: dict[str, Any]) -> None:
    set_compute_mode(plugin, ComputeMode.EXCLUSIVE_PROCESS)
    claim = api.add(["gpu-0"], **asked)
    plugin.engine.prepare(claim)
    assert compute_mode(plugin) == ComputeMode.EXCLUSIVE_PROCESS
    plugin.engine.unprepare(claim)
    assert plugin.node.nvidia_smi.calls() == []


def test_both_gpus_of_a_claim_are_time_sliced(plugin: Plugin, api: ApiServer) -> None:
    claim = api.add(["gpu-0", "gpu-2"], sharing=time_slicing("Medium"))
    plugin.engine.prepare(claim)
    assert [level(plugin, index) for index in range(4)] == [2, 0, 2, 0]
    plugin.engine.unprepare(claim)
    assert [level(plugin, index) for index in range(4)] == [0, 0, 0, 0]


def test_shares_with_one_interval_and_without(plugin: Plugin, api: ApiServer) -> None:
    long = time_slicing("Long")
    first, second = (api.add(["gpu-0"], sharing=long, shareID=share) for share in SHARES[:2])
    third = api.add(["gpu-0"], shareID=SHARES[2])
    for claim in (first, second, third):
        plugin.engine.prepare(claim)
    plugin.engine.unprepare(first)
    assert level(plugin) == 3
    plugin.engine.unprepare(second)
    assert level(plugin) == 0
    assert sets(plugin) == ["3", "0"]


@pytest.mark.parametrize("other", ["Short", "Default"])
def test_shares_with_different_intervals_are_refused_by_name(plugin: Plugin, api: ApiServer, other: str) -> None:
    first = api.add(["gpu-0"], "one", sharing=time_slicing("Long"), shareID=SHARES[0])
    second = api.add(["gpu-0"], "two", sharing=time_slicing(other), shareID=SHARES[1])
    plugin.engine.prepare(first)
    text = (
        rf"^claim team/two asks for time-slice interval {other} of GPU GPU-.*, and claim team/one, which has a share of"
        " it, for Long: a GPU has one interval"
    )
    with pytest.raises(PrepareError, match=text):
        plugin.engine.prepare(second)
    assert level(plugin) == 3
    plugin.engine.unprepare(first)
    plugin.engine.prepare(second)
    assert level(plugin) == ["Default", "Short"].index(other)


def test_a_setting_that_an_administrator_changed_since_stays(plugin: Plugin, api: ApiServer) -> None:
    claim = api.add(["gpu-0"], sharing=time_slicing("Long"))
    plugin.engine.prepare(claim)
    plugin.node.nvidia_smi.set_level(plugin.gpu(0).uuid, 1)
    plugin.engine.unprepare(claim)
    assert level(plugin) == 1
    assert plugin.left() == NOTHING


def test_the_next_process_sets_anew_what_the_driver_forgot(plugin: Plugin, api: ApiServer, tmp_path: Path) -> None:
    claim = api.add(["gpu-0"], sharing=time_slicing("Long"))
    plugin.engine.prepare(claim)
    plugin.stop()
    plugin.node.load_driver()
    assert level(plugin) == 0
    later = Plugin(tmp_path, api, hardware="l40sx4")
    assert level(later) == 3
    later.engine.unprepare(claim)
    assert level(later) == 0
    assert later.left() == NOTHING


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        ("missing", "there is no nvidia-smi below .*: install it with the driver"),
        ("fails", "nvidia-smi compute-policy --list for GPU GPU-.* ended with code 255: Unknown Error"),
        ("hangs", r"nvidia-smi did not end within 0\.5 s and was killed"),
    ],
)
def test_trouble_with_the_program_is_told_and_leaves_nothing(
    tmp_path: Path, api: ApiServer, trouble: str, text: str
) -> None:
    times = replace(QUICK, program=0.5) if trouble == "hangs" else QUICK
    plugin = Plugin(tmp_path, api, hardware="l40sx4", times=times)
    smi = plugin.node.driver_root / SMI
    set_compute_mode(plugin, ComputeMode.PROHIBITED)
    claim = api.add(["gpu-0"], sharing=time_slicing("Long"))
    match trouble:
        case "missing":
            smi.rename(smi.with_suffix(".away"))
        case "fails":
            plugin.node.nvidia_smi.fail(255, "Unknown Error")
        case "hangs":
            plugin.node.nvidia_smi.hang()
    with pytest.raises(PrepareError, match=f"^time-slice interval Long of GPU GPU-.* cannot be set: .*{text}"):
        plugin.engine.prepare(claim)
    assert plugin.left() == NOTHING
    assert (level(plugin), compute_mode(plugin)) == (0, ComputeMode.PROHIBITED)


def test_failed_restore_is_tried_again_and_keeps_no_pod(tmp_path: Path, api: ApiServer) -> None:
    plugin = Plugin(tmp_path, api, hardware="l40sx4")
    claim = api.add(["gpu-0"], sharing=time_slicing("Long"))
    plugin.engine.prepare(claim)
    plugin.node.nvidia_smi.fail(255, "Unknown Error")
    plugin.engine.unprepare(claim)
    assert (level(plugin), plugin.left()) == (3, {**NOTHING, "marks": [f"{plugin.gpu(0).uuid}_0_3"]})
    plugin.node.nvidia_smi.mend()
    plugin.stop()
    later = Plugin(tmp_path, api, hardware="l40sx4")
    wait_for(lambda: later.left() == NOTHING, "what is left over")
    assert level(later) == 0


class Obstacle:
    """Because of it, a setting of the first GPU cannot be changed: `interval` or `compute mode`."""

    def __init__(self, plugin: Plugin, kind: str) -> None:
        self._plugin = plugin
        self._kind = kind

    def appear(self) -> None:
        """From now on, the setting cannot be changed."""
        if self._kind == "interval":
            self._plugin.node.nvidia_smi.fail(255, "Unknown Error")
        else:
            self._plugin.node.inject(Fault("nvmlDeviceSetComputeMode", code=Return.NO_PERMISSION))

    def vanish(self) -> None:
        """The setting can be changed again."""
        if self._kind == "interval":
            self._plugin.node.nvidia_smi.mend()
        else:
            self._plugin.node.clear_faults()


SETTINGS = pytest.mark.parametrize(
    ("kind", "left"), [("interval", "time-slice interval Long"), ("compute mode", "compute mode 0")]
)
"""What cannot be restored."""
SELDOM = ClaimTimes(restore=3600)
"""Nothing is tried again by itself during a test."""


def leave_setting(plugin: Plugin, api: ApiServer, kind: str) -> Obstacle:
    """Prepare and unprepare a claim with settings of the first GPU, one of which cannot be restored."""
    set_compute_mode(plugin, ComputeMode.PROHIBITED)
    claim, obstacle = api.add(["gpu-0"], sharing=time_slicing("Long")), Obstacle(plugin, kind)
    plugin.engine.prepare(claim)
    obstacle.appear()
    plugin.engine.unprepare(claim)
    assert plugin.left()["records"] == []
    return obstacle


@SETTINGS
def test_a_setting_that_cannot_be_restored_is_reported_and_restored_soon(
    tmp_path: Path, api: ApiServer, kind: str, left: str
) -> None:
    """Long before the next sweep."""
    plugin = Plugin(tmp_path, api, hardware="l40sx4", settings=ClaimTimes(restore=0.05))
    obstacle = leave_setting(plugin, api, kind)
    assert plugin.engine.unrestored.count() == 1
    ((_, reason, text),) = plugin.events
    assert reason == "NotRestored"
    assert text.startswith(f"{left} of GPU {plugin.gpu(0).uuid} could not be undone after the claim: ")
    obstacle.vanish()
    wait_for(lambda: plugin.left() == NOTHING, "the restored setting")
    assert (level(plugin), compute_mode(plugin)) == (0, ComputeMode.PROHIBITED)
    wait_for(lambda: plugin.engine.unrestored.count() == 0, "nothing left")


@SETTINGS
def test_a_claim_that_expects_the_default_waits_for_a_setting_that_is_not_restored(
    tmp_path: Path, api: ApiServer, kind: str, left: str
) -> None:
    plugin = Plugin(tmp_path, api, hardware="l40sx4", settings=SELDOM)
    obstacle = leave_setting(plugin, api, kind)
    claim = api.add(["gpu-0"])
    text = rf"^GPU {plugin.gpu(0).uuid} still has the {left} of an earlier claim, which cannot be restored: .*; kubelet"
    for _ in range(2):
        with pytest.raises(PrepareError, match=text):
            plugin.engine.prepare(claim)
        assert plugin.left()["records"] == []
    plugin.engine.prepare(api.add(["gpu-1"]))
    obstacle.vanish()
    plugin.engine.prepare(claim)
    assert (level(plugin), compute_mode(plugin)) == (0, ComputeMode.PROHIBITED)
    assert plugin.engine.unrestored.count() == 0


def test_a_claim_with_settings_of_its_own_does_not_wait(tmp_path: Path, api: ApiServer) -> None:
    plugin = Plugin(tmp_path, api, hardware="l40sx4", settings=SELDOM)
    leave_setting(plugin, api, "compute mode")
    claim = api.add(["gpu-0"], sharing=time_slicing("Short"))
    plugin.engine.prepare(claim)
    assert level(plugin) == 1


def test_a_setting_that_another_claim_needs_is_not_left(tmp_path: Path, api: ApiServer) -> None:
    plugin = Plugin(tmp_path, api, hardware="l40sx4", settings=SELDOM)
    first, second = (api.add(["gpu-0"], sharing=time_slicing("Long"), shareID=share) for share in SHARES[:2])
    for claim in (first, second):
        plugin.engine.prepare(claim)
    plugin.node.nvidia_smi.fail(255, "Unknown Error")
    plugin.engine.unprepare(first)
    assert plugin.engine.unrestored.count() == 0
    plugin.engine.prepare(api.add(["gpu-0"], shareID=SHARES[2]))


def test_the_next_process_reports_a_setting_that_was_not_restored(tmp_path: Path, api: ApiServer) -> None:
    plugin = Plugin(tmp_path, api, hardware="l40sx4", settings=SELDOM)
    obstacle = leave_setting(plugin, api, "interval")
    plugin.stop()
    later = Plugin(tmp_path, api, hardware="l40sx4", settings=ClaimTimes(restore=0.05))
    assert later.engine.unrestored.count() == 1
    obstacle.vanish()
    wait_for(lambda: later.left() == NOTHING, "the restored setting")
    later.stop()


def test_pauses_between_attempts_to_restore_grow_to_minutes() -> None:
    clock, woken = Clock(), list[None]()
    unrestored = Unrestored(lambda: woken.append(None), 5.0, clock)
    unrestored.add("GPU-1", "interval", "the program fails")
    assert len(woken) == 1
    pauses: list[float] = []
    for _ in range(12):
        due = unrestored.next_due()
        assert due is not None
        pauses.append(due - clock.now)
        clock.now = due
        assert unrestored.due() == ["GPU-1"]
        unrestored.tried("GPU-1", {"interval": "the program fails"})
        assert unrestored.due() == []
    assert 2.5 <= pauses[0] <= 5.0
    assert all(LONGEST_PAUSE / 2 <= pause <= LONGEST_PAUSE for pause in pauses[7:])
    unrestored.tried("GPU-1", {})
    assert (unrestored.count(), unrestored.next_due()) == (0, None)


def test_a_level_that_cannot_be_read_is_set_and_taken_to_have_been_the_default(plugin: Plugin, api: ApiServer) -> None:
    smi = plugin.node.driver_root / SMI
    smi.write_text(smi.read_text().replace("Timeslice: $(name", "Zeitscheibe: $(name"))
    claim = api.add(["gpu-0"], sharing=time_slicing("Long"))
    plugin.engine.prepare(claim)
    plugin.engine.prepare(claim)
    assert level(plugin) == 3
    plugin.engine.unprepare(claim)
    assert level(plugin) == 0
    assert plugin.left() == NOTHING


def test_the_program_is_told_which_nvml_library_to_load(plugin: Plugin, tmp_path: Path) -> None:
    smi, seen = plugin.node.driver_root / SMI, tmp_path / "seen"
    smi.write_text(smi.read_text().replace("#!/bin/sh\n", f'#!/bin/sh\necho "$LD_PRELOAD" > {seen}\n'))
    library = tmp_path / "libnvidia-ml.so.1"
    folders = plugin.place.folders
    folders = replace(folders, hardware=replace(folders.hardware, nvml_library=lambda: library))
    slices = TimeSlices(Node("node-a", "boot-1", folders))
    plugin.node.nvidia_smi.set_level(plugin.gpu(0).uuid, 2)
    assert slices.get(plugin.gpu(0).uuid) == 2  # whatever the loader has to say of a library that is none
    assert seen.read_text().strip() == str(library)


@pytest.mark.parametrize(
    ("listed", "level"),
    [
        ("GPU 0: Timeslice: Default", 0),
        ("| GPU  0 | Time-slice | LONG |", 3),
        ("GPU 00000000:1B:00.0\n    Time slice : Medium", 2),
        ("GPU 0: Timeslice: N/A", None),
        ("GPU 0: Timeslice: Long\nGPU 1: Timeslice: Short", None),
        ("Default", None),
        ("", None),
    ],
)
def test_the_level_is_read_from_any_listing_that_names_it(tmp_path: Path, listed: str, level: int | None) -> None:
    smi = tmp_path / SMI
    smi.parent.mkdir(parents=True)
    smi.write_text(f"#!/bin/sh\nprintf '%s' '{listed}'\n")
    smi.chmod(0o755)
    node = Node("node-a", "boot-1", NodeFolders(tmp_path, tmp_path, tmp_path, tmp_path, hardware_of(tmp_path, no_nvml)))
    assert TimeSlices(node).get("GPU-0") == level


def no_nvml() -> Nvml:
    """nvidia-smi is run without NVML."""
    raise AssertionError


@pytest.mark.parametrize("lists", [True, False])
def test_a_gpu_without_the_setting_takes_the_default_only(plugin: Plugin, api: ApiServer, lists: bool) -> None:
    gpus = plugin.node.root / "state/nvidia-smi/gpus"
    gpus.write_text(gpus.read_text().replace("True", "False"))
    if not lists:
        smi = plugin.node.driver_root / SMI
        smi.write_text(smi.read_text().replace('Timeslice: Not Supported"', 'Not Supported"; exit 3'))
    default, long = (api.add(["gpu-0"], sharing=time_slicing(interval)) for interval in ("Default", "Long"))
    plugin.engine.prepare(default)
    plugin.engine.unprepare(default)
    with pytest.raises(PrepareError, match=r"cannot be set: GPU GPU-.* has no time-slice setting .*Not Supported"):
        plugin.engine.prepare(long)
    assert plugin.left() == NOTHING


def test_a_mig_device_has_nothing_to_set(tmp_path: Path, api: ApiServer) -> None:
    plugin = Plugin(tmp_path, api)
    claim = api.add(["gpu-4-mig-1g10gb-19-0"], sharing=time_slicing("Long"))  # of whole GPUs, which it is not
    plugin.engine.prepare(claim)
    assert plugin.node.nvidia_smi.calls() == []


def test_record_has_the_settings_and_no_unknown_interval(plugin: Plugin, api: ApiServer, tmp_path: Path) -> None:
    claim = api.add(["gpu-0"], sharing=time_slicing("Long"))
    plugin.engine.prepare(claim)
    record = plugin.record(claim)
    assert record.state is State.PREPARED
    assert [type(step) for step in record.plan.steps] == [ComputeModeStep, TimeSliceStep]
    path = tmp_path / "claims" / f"{claim.uid}.json"
    path.write_text(path.read_text().replace('"value": 3', '"value": 4'))
    with pytest.raises(ValueError, match=r"steps\[1\]\.value: 4 is unknown"):
        plugin.record(claim)


@pytest.mark.parametrize(
    ("found", "claims", "level"),
    [
        (("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"), 0, "pass"),
        (("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"), 2, "pass"),
        (None, 0, "warn"),
        (None, 2, "fail"),
    ],
)
def test_time_slicing_without_its_program_is_a_failure_where_claims_need_it(
    found: tuple[str, str] | None, claims: int, level: str
) -> None:
    finding = time_slicing_finding(found, claims, "/")
    assert (finding.check, str(finding.level)) == ("time-slicing", level)
    assert ("claims on this node need it" in finding.text) == (level == "fail")
