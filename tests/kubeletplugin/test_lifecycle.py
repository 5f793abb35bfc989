# SPDX-License-Identifier: Apache-2.0
"""A claim's life, on a simulated node."""

import gc
import os
import re
import threading
import weakref
from pathlib import Path

import pytest

from dra_driver.gpu.devices import device_targets
from dra_driver.gpu.inventory import Gpu, Inventory, read_inventory
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.kube.api import ApiError
from kubeletplugin.claims.model import ClaimRef, State
from kubeletplugin.errors import NoDriverError, PrepareError
from kubeletplugin.node.gpus import Found
from tests.support.waiting import wait_for

from .inside import FOUR, FOUR_MADE, NOTHING, SMALL, ApiServer, Plugin

SLOT = "1g.10gb at 0:1 of GPU GPU-[0-9a-f-]+"


@pytest.fixture
def plugin(tmp_path: Path, api: ApiServer) -> Plugin:
    return Plugin(tmp_path, api)


def test_four_slices_are_made_where_they_were_allocated(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plan = plugin.engine.prepare(ref).plan
    assert [device.name for device in plan.devices] == FOUR
    assert plugin.instances() == FOUR_MADE
    nodes = plugin.nodes_of(ref)
    assert list(nodes) == FOUR
    for device in FOUR:
        gpu, instance, compute = nodes[device]
        assert gpu == "/dev/nvidia4"
        assert instance.startswith("/dev/nvidia-caps/nvidia-cap")
        assert compute.startswith("/dev/nvidia-caps/nvidia-cap")
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_a_whole_gpu_needs_a_spec_only(plugin: Plugin) -> None:
    ref = plugin.api.add(["gpu-2"])
    plugin.engine.prepare(ref)
    assert plugin.nodes_of(ref) == {"gpu-2": ["/dev/nvidia2"]}
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_repeated_calls_change_nothing(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    first = plugin.engine.prepare(ref)
    before = plugin.left()
    assert plugin.engine.prepare(ref) == first
    assert plugin.left() == before
    plugin.engine.unprepare(ref)
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_preparing_again_needs_neither_api_server_nor_driver(plugin: Plugin) -> None:
    ref = plugin.api.add([SMALL])
    prepared = plugin.engine.prepare(ref)
    plugin.api.down = True
    plugin.place.access.report(NvmlError(Return.DRIVER_NOT_LOADED, "test"))
    assert plugin.engine.prepare(ref) == prepared


def test_a_spec_that_somebody_removed_is_written_again(plugin: Plugin) -> None:
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    before = plugin.left()
    for file in plugin.cdi.iterdir():
        file.unlink()
    plugin.engine.prepare(ref)
    assert plugin.left() == before


def test_unpreparing_an_unknown_claim_is_fine(plugin: Plugin) -> None:
    plugin.engine.unprepare(ClaimRef("team", "never-seen", "0c7c1f0e-0000-0000-0000-000000000000"))


def test_a_claim_without_devices_of_ours_leaves_no_spec(plugin: Plugin) -> None:
    ref = plugin.api.add(["gpu-0"], driver="nic.example.com")
    assert plugin.engine.prepare(ref).plan.devices == ()
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_device_is_not_prepared_for_two_claims(plugin: Plugin) -> None:
    first, second = plugin.api.add([SMALL]), plugin.api.add([SMALL])
    plugin.engine.prepare(first)
    before = plugin.left()
    with pytest.raises(PrepareError, match="in use by claim team/claim-0"):
        plugin.engine.prepare(second)
    assert plugin.left() == before
    plugin.engine.unprepare(first)
    plugin.engine.prepare(second)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", Return.INSUFFICIENT_RESOURCES),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", Return.UNKNOWN),
        ("nvmlGpuInstanceGetInfo", Return.UNKNOWN),
        ("nvmlGpuInstanceGetComputeInstanceProfileInfo", Return.NOT_SUPPORTED),
        ("nvmlGpuInstanceCreateComputeInstance", Return.INSUFFICIENT_RESOURCES),
        ("nvmlComputeInstanceGetInfo", Return.UNKNOWN),
        ("nvmlDeviceGetUUID", Return.GPU_IS_LOST),
        ("nvmlDeviceGetGpuInstances", Return.NO_PERMISSION),
    ],
)
def test_a_prepare_that_fails_leaves_nothing_and_can_be_repeated(plugin: Plugin, call: str, code: Return) -> None:
    ref = plugin.api.add(FOUR)
    plugin.node.inject(Fault(call, 4, code, times=1))
    with pytest.raises((NvmlError, PrepareError)):
        plugin.engine.prepare(ref)
    assert plugin.left() == NOTHING
    plugin.engine.prepare(ref)
    assert plugin.instances() == FOUR_MADE


def test_no_room_names_what_is_in_the_way(plugin: Plugin) -> None:
    plugin.make_by_hand("gpu-4-mig-3g40gb-9-0")
    with pytest.raises(
        PrepareError, match=rf"not enough free memory slices for {SLOT}: the GPU instances are 1 \(profile 9 at 0:4\)"
    ):
        plugin.engine.prepare(plugin.api.add([SMALL]))
    assert plugin.left() == {**NOTHING, "instances": ["0:4"]}


def test_an_unreachable_api_server_leaves_nothing(plugin: Plugin) -> None:
    plugin.api.down = True
    with pytest.raises(ApiError):
        plugin.engine.prepare(ClaimRef("team", "unknown", "0c7c1f0e-0000-0000-0000-000000000001"))
    assert plugin.left() == NOTHING


def test_a_holder_that_is_no_compute_process_is_named(plugin: Plugin) -> None:
    """A monitor has the capability of the instance open. Here a terminal stands for it, whose number is unique."""
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    plugin.node.occupy(plugin.mig_uuid(), os.getpid())
    proc = plugin.node.driver_root / "proc"
    controlling, terminal = os.openpty()
    number = os.fstat(terminal).st_rdev
    majors = (proc / "devices").read_text(encoding="ascii")
    (proc / "devices").write_text(
        re.sub(r"\d+ nvidia-caps\b", f"{os.major(number)} nvidia-caps", majors), encoding="ascii"
    )
    (capability,) = (proc / "driver/nvidia/capabilities").glob("gpu4/mig/gi*/ci*/access")
    capability.chmod(0o644)
    capability.write_text(f"DeviceFileMinor: {os.minor(number)}\nDeviceFileMode: 292\n", encoding="ascii")
    me = re.escape(Path("/proc/self/comm").read_text(encoding="utf-8").strip())
    with pytest.raises(NvmlError, match=rf"{SLOT} is used by {me} \(PID {os.getpid()}\); it is destroyed as soon"):
        plugin.engine.unprepare(ref)
    os.close(controlling)
    os.close(terminal)


def test_a_busy_instance_is_unprepared_once_its_process_ends(plugin: Plugin) -> None:
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    plugin.node.occupy(plugin.mig_uuid(), os.getpid())
    with pytest.raises(NvmlError, match=rf"IN_USE .*{SLOT} is used by process {os.getpid()}; it is destroyed as soon"):
        plugin.engine.unprepare(ref)
    assert plugin.instances() == ["0:1"]
    assert plugin.left()["specs"] == []
    with pytest.raises(PrepareError, match="still being removed from claim team/claim-0"):
        plugin.engine.prepare(plugin.api.add([SMALL]))
    plugin.node.vacate(os.getpid())
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_an_instance_of_the_administrator_is_used_and_left(plugin: Plugin) -> None:
    uuid = plugin.make_by_hand(SMALL)
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    assert plugin.record(ref).found[SMALL]["uuid"] == uuid
    plugin.engine.unprepare(ref)
    assert plugin.left() == {**NOTHING, "instances": ["0:1"]}
    assert plugin.mig_uuid() == uuid


def test_half_an_instance_of_the_administrator_is_not_completed(plugin: Plugin) -> None:
    plugin.make_by_hand(SMALL, compute=False)
    with pytest.raises(PrepareError, match="was created by hand and has no compute instance of its full size"):
        plugin.engine.prepare(plugin.api.add([SMALL]))
    assert plugin.instances() == ["(0:1)"]


def test_admins_look_at_an_instance_and_never_make_one(plugin: Plugin) -> None:
    admin = plugin.api.add([SMALL], adminAccess=True)
    with pytest.raises(PrepareError, match="does not exist at the moment"):
        plugin.engine.prepare(admin)
    user = plugin.api.add([SMALL])
    plugin.engine.prepare(user)
    plugin.engine.prepare(admin)
    assert plugin.nodes_of(admin) == plugin.nodes_of(user)
    plugin.engine.unprepare(admin)
    assert plugin.instances() == ["0:1"]
    plugin.engine.unprepare(user)
    assert plugin.left() == NOTHING


def test_without_a_driver_unprepare_still_answers(plugin: Plugin) -> None:
    whole, mig = plugin.api.add(["gpu-0"]), plugin.api.add([SMALL])
    plugin.engine.prepare(whole)
    plugin.engine.prepare(mig)
    restarted = Plugin(plugin.root, plugin.api, start=False)
    restarted.engine.unprepare(whole)
    restarted.engine.unprepare(mig)
    assert restarted.left()["specs"] == []
    assert restarted.instances() == ["0:1"]  # nobody could destroy it yet
    restarted.start()
    assert restarted.left() == NOTHING


def test_without_a_driver_prepare_says_so_at_once(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, ApiServer(), start=False)
    with pytest.raises(NoDriverError, match="NVIDIA driver is not ready"):
        plugin.engine.prepare(plugin.api.add([SMALL]))
    assert plugin.left() == NOTHING


def test_a_driver_that_goes_away_is_found_again(plugin: Plugin) -> None:
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    plugin.node.unload_driver()
    with pytest.raises(NoDriverError):
        plugin.engine.prepare(plugin.api.add(["gpu-4-mig-1g10gb-19-1"]))
    assert not plugin.has_driver()
    plugin.node.load_driver()
    wait_for(plugin.has_driver, "the driver")
    assert plugin.instances() == ["0:1"]  # the prepared claim's instance was made again
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_gpus_of_a_replaced_driver_are_not_kept_in_memory(plugin: Plugin) -> None:
    first = weakref.ref(plugin.place.gpus())
    for number in range(3):
        ref = plugin.api.add([f"gpu-4-mig-1g10gb-19-{number}"])
        plugin.engine.prepare(ref)
        plugin.engine.unprepare(ref)
        plugin.node.unload_driver()
        wait_for(lambda: not plugin.has_driver(), "the loss to be noticed")
        plugin.node.load_driver()
        wait_for(plugin.has_driver, "the driver")
    plugin.engine.prepare(plugin.api.add([SMALL]))

    def is_freed() -> bool:
        gc.collect()
        return first() is None

    wait_for(is_freed, "the GPUs of the first driver to be freed")


def test_a_restart_undoes_what_was_broken_off(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    record = plugin.record(ref)
    plugin.records.save(type(record)(State.PREPARING, record.boot_id, record.plan, {}))
    assert Plugin(plugin.root, plugin.api).left() == NOTHING


def test_a_restart_completes_prepared_claims(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    before = plugin.left()
    plugin.node.reset_gpu(4)
    for file in plugin.cdi.glob("*-claim_*"):
        file.unlink()
    assert Plugin(plugin.root, plugin.api).left() == before


def test_a_reboot_forgets_everything(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    plugin.node.reset_gpu(4)
    rebooted = Plugin(plugin.root, plugin.api, boot_id="boot-2")
    assert rebooted.left() == NOTHING
    rebooted.engine.prepare(ref)
    assert rebooted.instances() == FOUR_MADE


def test_the_spec_of_an_unknown_claim_is_swept(plugin: Plugin) -> None:
    ref = plugin.api.add(["gpu-0"])
    plugin.engine.prepare(ref)
    plugin.records.remove(ref.uid)
    assert Plugin(plugin.root, plugin.api).left() == NOTHING


def test_claims_on_all_gpus_side_by_side(plugin: Plugin) -> None:
    devices = [f"gpu-{gpu}-mig-1g10gb-19-{start}" for gpu in range(4, 8) for start in range(7)]
    refs = [plugin.api.add([device]) for device in devices]
    failures: list[BaseException] = []

    def cycle(ref: ClaimRef) -> None:
        try:
            for _ in range(3):
                plugin.engine.prepare(ref)
                plugin.engine.unprepare(ref)
            plugin.engine.prepare(ref)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=cycle, args=(ref,)) for ref in refs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len(plugin.left()["instances"]) == len(devices)
    for ref in refs:
        plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_two_hundred_cycles_over_all_placements_leave_nothing(plugin: Plugin) -> None:
    inventory = read_inventory(plugin.nvml, plugin.sys_root)
    names = [name for name, target in device_targets(inventory).items() if is_usable(inventory, target)]
    assert len(names) < 200
    for cycle in range(200):
        ref = plugin.api.add([names[cycle % len(names)]])
        plugin.engine.prepare(ref)
        plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_mig_mode_switched_off_by_hand_is_said_and_blocks_no_unprepare(plugin: Plugin) -> None:
    ref = plugin.api.add([SMALL])
    plugin.engine.prepare(ref)
    plugin.node.reset_gpu(4)
    plugin.set_mode(4, False)
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING
    with pytest.raises(PrepareError, match=r"MIG mode of GPU GPU-.* is off \(nvidia-smi"):
        plugin.engine.prepare(plugin.api.add([SMALL]))


def is_usable(inventory: Inventory, target: Found) -> bool:
    """Whether a container can use the device in the current MIG mode of its GPU."""
    if isinstance(target, MigDevice):
        gpu = inventory.gpu(target.gpu_uuid)
        return gpu is not None and gpu.in_mig_mode
    return isinstance(target, Gpu) and not target.in_mig_mode
