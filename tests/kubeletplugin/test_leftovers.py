# SPDX-License-Identifier: Apache-2.0
"""What claims leave on the node without being unprepared, and records that were damaged."""

import contextlib
import fcntl
import itertools
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.nvml import Return
from dra_driver.gpu.simulated.faults import Fault
from kubeletplugin.claims.engine import ClaimTimes
from kubeletplugin.claims.files import RecordFiles
from kubeletplugin.claims.locks import FileRanges, KeyedLocks
from kubeletplugin.claims.model import ClaimRef, Record, State
from kubeletplugin.claims.records import VERSION
from kubeletplugin.errors import PrepareError
from tests.kubeletplugin.inside import FOUR, FOUR_MADE, NOTHING, SMALL, ApiServer, Plugin
from tests.support.waiting import wait_for

AT_ONCE = ClaimTimes(grace=0.0, sweep=0.05, retry=0.05)
NEVER = ClaimTimes(sweep=3600.0, retry=3600.0)


@pytest.fixture
def plugin(tmp_path: Path, api: ApiServer) -> Plugin:
    """A plugin that does not look for leftovers by itself meanwhile."""
    return Plugin(tmp_path, api, settings=NEVER)


def restarted(plugin: Plugin, settings: ClaimTimes = NEVER, boot_id: str = "boot-1") -> Plugin:
    """The next process."""
    plugin.stop()
    return Plugin(plugin.root, plugin.api, settings=settings, boot_id=boot_id)


# Claims that are gone


@pytest.mark.parametrize("gone", [ApiServer.delete, ApiServer.renew])
def test_instances_of_a_deleted_claim_are_removed(plugin: Plugin, gone: Callable[[ApiServer, ClaimRef], None]) -> None:
    mig, whole, living = plugin.api.add(FOUR), plugin.api.add(["gpu-0"]), plugin.api.add(["gpu-1"])
    for ref in (mig, whole, living):
        plugin.engine.prepare(ref)
    gone(plugin.api, mig)
    gone(plugin.api, whole)
    after = restarted(plugin, AT_ONCE)
    wait_for(lambda: after.left()["records"] == [f"{living.uid}.json"], "the leftovers to go")
    wait_for(lambda: after.reasons() == ["LeftoverRemoved"] * 2, "the events")
    assert after.instances() == []
    assert after.left()["marks"] == []
    assert len(after.left()["specs"]) == 1


def test_a_gpu_of_a_claim_that_was_deleted_while_no_plugin_ran_goes_to_the_next_claim(plugin: Plugin) -> None:
    before = plugin.api.add(["gpu-0"])
    plugin.engine.prepare(before)
    plugin.stop()
    plugin.api.delete(before)
    after = Plugin(plugin.root, plugin.api, settings=AT_ONCE)
    following = plugin.api.add(["gpu-0"])

    def prepared() -> bool:
        with contextlib.suppress(PrepareError):  # kubelet tries again
            after.engine.prepare(following)
            return True
        return False

    wait_for(prepared, "the next claim to be prepared")
    assert after.left()["records"] == [f"{following.uid}.json"]


def test_a_server_that_does_not_answer_says_nothing_about_claims(plugin: Plugin) -> None:
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    before = plugin.left()
    plugin.api.down = True
    asked = plugin.api.asked
    after = restarted(plugin, AT_ONCE)
    wait_for(lambda: plugin.api.asked > asked + 3, "some sweeps")
    assert after.left() == before


def test_a_claim_that_is_gone_is_given_time(plugin: Plugin) -> None:
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    before = plugin.left()
    plugin.api.delete(ref)
    asked = plugin.api.asked
    after = restarted(plugin, ClaimTimes(grace=3600.0, sweep=0.05))
    wait_for(lambda: plugin.api.asked > asked + 3, "some sweeps")
    assert after.left() == before


def test_an_instance_that_is_still_used_stays_until_it_is_free(plugin: Plugin) -> None:
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    plugin.node.occupy(plugin.mig_uuid(), os.getpid())
    plugin.api.delete(ref)
    after = restarted(plugin, AT_ONCE)
    wait_for(lambda: after.record(ref).state is State.UNPREPARING, "the first attempt")
    assert after.instances() == ["0:1"]
    plugin.node.vacate(os.getpid())
    wait_for(lambda: after.left() == NOTHING, "the instance to go")


def test_node_without_leftovers_is_swept_without_errors(plugin: Plugin) -> None:
    asked = plugin.api.asked
    plugin.engine.prepare(plugin.api.add([SMALL]))
    after = restarted(plugin, AT_ONCE)
    wait_for(lambda: plugin.api.asked > asked + 3, "some sweeps")
    after.stop()
    assert after.unexpected == []


# Things without a claim


def test_an_instance_with_a_mark_and_no_record_goes(plugin: Plugin) -> None:
    plugin.make_by_hand("gpu-5-mig-1g10gb-19-3")
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    plugin.records.remove(ref.uid)
    assert restarted(plugin).left() == {**NOTHING, "instances": ["3:1"]}


def test_an_instance_without_a_record_that_is_in_use_goes_soon_after(plugin: Plugin) -> None:
    """Long before the next search for leftovers."""
    claim = plugin.api.add([SMALL])
    plugin.engine.prepare(claim)
    plugin.node.occupy(plugin.mig_uuid(), os.getpid())
    (plugin.root / "claims" / f"{claim.uid}.json").unlink()
    after = restarted(plugin, replace(NEVER, restore=0.05))
    assert after.instances() == ["0:1"]
    assert after.engine.unrestored.count() == 1
    after.node.vacate(os.getpid())
    wait_for(lambda: after.instances() == [], "the instance to go")
    wait_for(lambda: after.engine.unrestored.count() == 0, "nothing left")


class LockAttempts:
    """Counts how often this thread tries to take each lock between processes, by Python's audit events (PEP 578)."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()
        self._thread = threading.get_ident()
        self._ended = False
        sys.addaudithook(self._audit)

    def end(self) -> Sequence[int]:
        """Count no more. Returns the number of attempts for each lock. The hook stays, as hooks do."""
        self._ended = True
        return list(self._counts.values())

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._ended or event != "fcntl.fcntl" or threading.get_ident() != self._thread:
            return
        _, command, flock = arguments
        if command == fcntl.F_OFD_SETLK and int.from_bytes(flock[:2], sys.byteorder) == fcntl.F_WRLCK:
            self._counts[flock] += 1


def test_recovery_waits_once_for_all_gpus_that_others_use(plugin: Plugin, caplog: pytest.LogCaptureFixture) -> None:
    """Kubelet's calls may hold GPUs while they wait for the driver, which is ready only after the recovery."""
    gpus = (4, 5, 6, 7)
    for gpu in gpus:
        plugin.engine.prepare(plugin.api.add([f"gpu-{gpu}-mig-1g10gb-19-0"]))
    others = KeyedLocks(FileRanges(plugin.root / "locks"), "gpu ")  # of another process
    with others.hold(*(gpu.uuid for gpu in plugin.gpus())):
        attempts = LockAttempts()
        plugin.engine.recover()
        found = attempts.end()
    assert len(found) >= 2 * len(gpus), "each claim and each GPU has a lock"
    assert sum(count > 1 for count in found) <= 1, "only the first GPU is waited for"
    assert "leftovers cannot be removed yet" not in caplog.text


def test_a_mark_without_an_instance_goes(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    plugin.records.remove(ref.uid)
    plugin.node.reset_gpu(4)
    plugin.make_by_hand(FOUR[0].replace("19-0", "19-5"))
    assert restarted(plugin).left() == {**NOTHING, "instances": ["5:1"]}


def test_after_a_reboot_nothing_is_ours(plugin: Plugin) -> None:
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    plugin.node.reset_gpu(4)
    uuid = plugin.make_by_hand(SMALL)  # as an administrator's unit does at every boot
    after = restarted(plugin, boot_id="boot-2")
    assert after.left() == {**NOTHING, "instances": ["0:1"]}
    assert after.mig_uuid() == uuid


def test_an_old_record_is_forgotten_without_a_driver(plugin: Plugin) -> None:
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    plugin.stop()
    rebooted = Plugin(plugin.root, plugin.api, boot_id="boot-2", start=False)
    rebooted.engine.unprepare(ref)
    assert rebooted.left()["records"] == []


# Records of another version


def test_a_claim_whose_record_has_an_older_version_is_planned_again(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    before, record = plugin.left(), plugin.record(ref)
    file = plugin.root / "claims" / f"{ref.uid}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": VERSION - 1}))
    after = restarted(plugin)
    assert after.reasons() == ["RecordDamaged", "RecordRebuilt"]
    assert after.record(ref) == record
    assert {**after.left(), "records": []} == {**before, "records": []}
    assert not [step for step in after.steps if step.startswith("undo")]


# Recovery that does not succeed at once


def test_a_prepared_claim_that_could_not_be_recovered_is_tried_again(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    plugin.node.reset_gpu(4)
    obstacle = "gpu-4-mig-1g10gb-19-3"
    plugin.make_by_hand(obstacle)  # where the claim's 2g.20gb was
    after = restarted(plugin, AT_ONCE)
    wait_for(lambda: after.reasons() == ["RecoveryFailed"], "the event")
    assert "not enough free memory slices for 2g.20gb" in after.events[0][2]
    destroy(after, obstacle)
    wait_for(lambda: after.instances() == FOUR_MADE, "the instances to be made again")
    # A try while the obstacle is half gone fails for another reason, and says so.
    wait_for(lambda: after.reasons()[-1] == "DevicesRestored", "the event")


def test_a_driver_that_leaves_during_recovery_is_not_a_failure_of_the_claim(plugin: Plugin) -> None:
    """NVML is initialized again while a virtual machine gets or returns a GPU, also during recovery."""
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    plugin.node.reset_gpu(4)
    plugin.node.inject(Fault("nvmlDeviceCreateGpuInstanceWithPlacement", code=Return.UNINITIALIZED, times=1))
    after = restarted(plugin)
    wait_for(lambda: after.instances() == FOUR_MADE, "the instances to be made again")
    wait_for(after.reasons, "an event")
    assert after.reasons() == ["DevicesRestored"]


def test_repeated_prepare_gets_the_error_or_the_devices(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plan = plugin.engine.prepare(ref).plan
    plugin.node.reset_gpu(4)
    obstacle = "gpu-4-mig-1g10gb-19-3"
    plugin.make_by_hand(obstacle)
    after = restarted(plugin)
    with pytest.raises(PrepareError, match=r"not enough free memory slices for 2g\.20gb"):
        after.engine.prepare(ref)
    destroy(after, obstacle)
    assert after.engine.prepare(ref).plan == plan
    assert after.instances() == FOUR_MADE


def destroy(plugin: Plugin, device: str) -> None:
    """An administrator destroys the MIG device."""
    start = int(device.rpartition("-")[2])
    nvml = plugin.nvml
    gpu = nvml.device_by_index(4)
    for instance in nvml.gpu_instances(gpu, 19):
        if nvml.gpu_instance_info(instance).placement.start == start:
            for constant in range(9):
                with contextlib.suppress(Exception):
                    profile = nvml.compute_instance_profile(instance, constant)
                    for compute in nvml.compute_instances(instance, profile.id):
                        nvml.destroy_compute_instance(compute)
            nvml.destroy_gpu_instance(instance)


# Damaged records


def damage(plugin: Plugin, ref: ClaimRef, keep: float = 0.6) -> None:
    """Cut a claim's record short."""
    file = plugin.root / "claims" / f"{ref.uid}.json"
    text = file.read_text()
    file.write_text(text[: int(len(text) * keep)])


@pytest.mark.parametrize("devices", [["gpu-0"], FOUR])
def test_a_damaged_record_is_made_anew_from_the_claim_and_the_node(plugin: Plugin, devices: list[str]) -> None:
    ref = plugin.api.add(devices)
    plan = plugin.engine.prepare(ref).plan
    before, record = plugin.left(), plugin.record(ref)
    plugin.stop()
    damage(plugin, ref)
    after = restarted(plugin)
    assert after.reasons() == ["RecordDamaged", "RecordRebuilt"]
    assert after.record(ref) == record
    assert after.left() == {**before, "records": [f"{ref.uid}.damaged", f"{ref.uid}.json"]}
    asked = plugin.api.asked
    assert after.engine.prepare(ref).plan == plan
    assert plugin.api.asked == asked
    after.engine.unprepare(ref)
    assert after.left() == NOTHING
    plugin.api.delete(ref)
    assert restarted(after).left() == NOTHING


def test_a_damaged_record_of_a_claim_that_was_not_prepared_is_undone(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    (plugin.cdi / f"k8s.gpu.nvidia.com-claim_{ref.uid}.json").unlink()
    plugin.stop()
    damage(plugin, ref)
    assert restarted(plugin).left() == NOTHING


def test_while_the_server_does_not_answer_nothing_that_might_be_its_is_touched(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plan = plugin.engine.prepare(ref).plan
    before = plugin.left()
    plugin.stop()
    damage(plugin, ref)
    plugin.api.down = True
    after = restarted(plugin, AT_ONCE)
    assert after.left() == {**before, "records": [f"{ref.uid}.damaged"]}
    plugin.api.down = False
    wait_for(lambda: "RecordRebuilt" in after.reasons(), "the record")
    assert after.engine.prepare(ref).plan == plan


@pytest.mark.parametrize("look", range(6))
def test_a_record_damaged_during_the_search_for_leftovers_is_made_anew(plugin: Plugin, look: int) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    before = plugin.left()
    plugin.stop()

    class DamagedMeanwhile(RecordFiles[Record]):
        def damaged(self) -> dict[str, ClaimRef]:
            found = super().damaged()
            if searching.is_set() and next(looks) == look:
                damage(plugin, ref)
            return found

    searching, looks = threading.Event(), itertools.count()
    after = Plugin(plugin.root, plugin.api, settings=AT_ONCE, records=DamagedMeanwhile)
    searching.set()
    wait_for(lambda: after.reasons() == ["RecordDamaged", "RecordRebuilt"], "the record")
    assert after.left() == {**before, "records": [f"{ref.uid}.damaged", f"{ref.uid}.json"]}
    assert not [step for step in after.steps if step.startswith("undo")]


@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
def test_a_record_that_tells_nothing_is_settled_by_kubelets_next_call(plugin: Plugin, verb: str) -> None:
    ref, other = plugin.api.add(FOUR), plugin.api.add(["gpu-0"])
    plan = plugin.engine.prepare(ref).plan
    plugin.engine.prepare(other)
    before = plugin.left()
    plugin.stop()
    damage(plugin, ref, keep=0)
    after = restarted(plugin)
    assert after.left()["instances"] == before["instances"]
    assert after.events == [(ref.uid, "RecordDamaged", after.events[0][2])]
    if verb == "prepare":
        assert after.engine.prepare(ref).plan == plan
        assert after.left()["instances"] == before["instances"]
    else:
        after.engine.unprepare(ref)
        assert after.left()["instances"] == []
        assert len(after.left()["specs"]) == 1
    assert after.record(other).state is State.PREPARED


def test_a_record_damaged_while_the_plugin_runs_blocks_nothing(plugin: Plugin) -> None:
    ref, other = plugin.api.add(FOUR), plugin.api.add(["gpu-0"])
    plan = plugin.engine.prepare(ref).plan
    damage(plugin, ref)
    plugin.engine.prepare(other)
    assert plugin.engine.prepare(ref).plan == plan
    plugin.engine.unprepare(ref)
    assert plugin.instances() == []
    assert plugin.reasons() == ["RecordDamaged"]


# GPUs out of reach


def test_a_lost_gpu_keeps_no_pod_from_ending(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    plugin.node.lose_gpu(4)
    plugin.engine.unprepare(ref)
    assert plugin.left()["specs"] == []
    assert plugin.record(ref).state is State.UNPREPARING
    plugin.node.reset_gpu(4)
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_instances_on_a_lost_gpu_are_removed_after_the_gpu_is_back(tmp_path: Path, api: ApiServer) -> None:
    plugin = Plugin(tmp_path, api, settings=AT_ONCE)
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    plugin.node.inject(Fault("nvmlDeviceGetGpuInstances", 4, times=2))
    plugin.node.lose_gpu(4)
    plugin.engine.unprepare(ref)
    plugin.node.reset_gpu(4)
    wait_for(lambda: plugin.left() == NOTHING, "the rest")
