# SPDX-License-Identifier: Apache-2.0
"""A claim's life, on a simulated node."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cdi import DriverRoot
from dra_driver.cluster import ApiError, UnreachableError
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.simulation.faults import Fault
from dra_driver.resource import ResourceClaim
from kubeletplugin.claimspecs import ClaimSpecs
from kubeletplugin.gpus import GpuAccess, Gpus, NoDriverError
from kubeletplugin.lifecycle import Lifecycle
from kubeletplugin.plan import ClaimRef, PrepareError
from kubeletplugin.records import Records, State
from tests.support.claims import allocated_claim
from tests.support.nodes import TestNode, make_node

SMALL = "gpu-4-mig-1g10gb-19-0"
FOUR = ["gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1", "gpu-4-mig-2g20gb-14-2", "gpu-4-mig-3g40gb-9-4"]


class Plugin:
    """The plugin's inside on a node of `root`, without kubelet and API server. A new one is a restarted process."""

    def __init__(
        self, root: Path, claims: dict[str, ResourceClaim], *, boot_id: str = "boot-1", start: bool = True
    ) -> None:
        self.node: TestNode = make_node(root / "node", "h100x8-mixed")
        self.claims = claims
        self.records = Records(root / "claims")
        self.cdi = root / "cdi"
        self.ready = threading.Event()
        specs = ClaimSpecs(self.cdi, DriverRoot.of_node(self.node.node.driver_root, "/"), None)
        self.access = GpuAccess(self.node.node.nvml, self.node.sys_root, self._on_ready)
        self.lifecycle = Lifecycle(
            pool="node-a", boot_id=boot_id, fetch=self.fetch, records=self.records, specs=specs, access=self.access
        )
        if start:
            self.start()

    def _on_ready(self, gpus: Gpus) -> None:
        self.lifecycle.recover(gpus)
        self.ready.set()

    def start(self) -> None:
        """Find the driver, recover."""
        self.access.start()
        assert self.ready.wait(10)
        eventually(lambda: self.has_driver())

    def has_driver(self) -> bool:
        """Whether claims can be prepared."""
        try:
            self.access.current()
        except NoDriverError:
            return False
        return True

    def fetch(self, ref: ClaimRef) -> ResourceClaim:
        """What the API server would say."""
        if ref.uid not in self.claims:
            raise UnreachableError("connection refused")
        return self.claims[ref.uid]

    def add(self, devices: list[str], **result: Any) -> ClaimRef:
        """An allocated claim appears in the API server."""
        claim = allocated_claim(f"claim-{len(self.claims)}", devices, **result)
        self.claims[claim.metadata.uid] = claim
        return ref_of(claim)

    def instances(self, gpu: int = 4) -> list[str]:
        """The MIG instances of a GPU, as start:size."""
        inventory = read_inventory(self.node.nvml, self.node.sys_root)
        return sorted(str(one.placement) for one in inventory.gpus[gpu].mig_instances)

    def left(self) -> dict[str, list[str]]:
        """Everything that claims have on the node."""
        inventory = read_inventory(self.node.nvml, self.node.sys_root)
        return {
            "instances": [str(one.placement) for gpu in inventory.gpus for one in gpu.mig_instances],
            "specs": [path.name for path in sorted(self.cdi.glob("*-claim_*"))],
            "records": [path.name for path in sorted((self.cdi.parent / "claims").iterdir())],
        }


NOTHING: dict[str, list[str]] = {"instances": [], "specs": [], "records": []}


def ref_of(claim: ResourceClaim) -> ClaimRef:
    """How kubelet would name the claim."""
    return ClaimRef(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread brings about."""
    waiting = threading.Event()
    for _ in range(1000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it never came true")


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path, {})


def nodes_of(plugin: Plugin, ref: ClaimRef) -> dict[str, list[str]]:
    """Device nodes by CDI device of a claim's spec."""
    spec = json.loads((plugin.cdi / f"k8s.gpu.nvidia.com-claim_{ref.uid}.json").read_text())
    return {
        one["name"].removeprefix(f"{ref.uid}-"): [node["path"] for node in one["containerEdits"]["deviceNodes"]]
        for one in spec["devices"]
    }


def test_four_slices_are_made_where_they_were_allocated(plugin: Plugin) -> None:
    ref = plugin.add(FOUR)
    plan = plugin.lifecycle.prepare(ref)
    assert [device.name for device in plan.devices] == FOUR
    assert plugin.instances() == ["0:1", "1:1", "2:2", "4:4"]
    nodes = nodes_of(plugin, ref)
    assert list(nodes) == FOUR
    for device in FOUR:
        gpu, instance, compute = nodes[device]
        assert gpu == "/dev/nvidia4"
        assert instance.startswith("/dev/nvidia-caps/nvidia-cap")
        assert compute.startswith("/dev/nvidia-caps/nvidia-cap")
    plugin.lifecycle.unprepare(ref)
    assert plugin.left() == NOTHING


def test_a_whole_gpu_needs_a_spec_only(plugin: Plugin) -> None:
    ref = plugin.add(["gpu-2"])
    plugin.lifecycle.prepare(ref)
    assert nodes_of(plugin, ref) == {"gpu-2": ["/dev/nvidia2"]}
    plugin.lifecycle.unprepare(ref)
    assert plugin.left() == NOTHING


def test_doing_it_again_changes_nothing(plugin: Plugin) -> None:
    ref = plugin.add(FOUR)
    first = plugin.lifecycle.prepare(ref)
    before = plugin.left()
    assert plugin.lifecycle.prepare(ref) == first
    assert plugin.left() == before
    plugin.lifecycle.unprepare(ref)
    plugin.lifecycle.unprepare(ref)
    assert plugin.left() == NOTHING


def test_preparing_again_needs_neither_api_server_nor_driver(plugin: Plugin) -> None:
    ref = plugin.add([SMALL])
    plan = plugin.lifecycle.prepare(ref)
    plugin.claims.clear()
    plugin.access.report(NvmlError(Return.DRIVER_NOT_LOADED, "test"))
    assert plugin.lifecycle.prepare(ref) == plan


def test_a_spec_that_somebody_removed_is_written_again(plugin: Plugin) -> None:
    ref = plugin.add([SMALL])
    plugin.lifecycle.prepare(ref)
    before = plugin.left()
    for file in plugin.cdi.iterdir():
        file.unlink()
    plugin.lifecycle.prepare(ref)
    assert plugin.left() == before


def test_unpreparing_an_unknown_claim_is_fine(plugin: Plugin) -> None:
    plugin.lifecycle.unprepare(ClaimRef("team", "never-seen", "0c7c1f0e-0000-0000-0000-000000000000"))


def test_a_claim_without_devices_of_ours_leaves_no_spec(plugin: Plugin) -> None:
    ref = plugin.add(["gpu-0"], driver="nic.example.com")
    assert plugin.lifecycle.prepare(ref).devices == ()
    plugin.lifecycle.unprepare(ref)
    assert plugin.left() == NOTHING


def test_one_device_is_not_prepared_for_two_claims(plugin: Plugin) -> None:
    first, second = plugin.add([SMALL]), plugin.add([SMALL])
    plugin.lifecycle.prepare(first)
    before = plugin.left()
    with pytest.raises(PrepareError, match="in use by claim team/claim-0"):
        plugin.lifecycle.prepare(second)
    assert plugin.left() == before
    plugin.lifecycle.unprepare(first)
    plugin.lifecycle.prepare(second)


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
    ref = plugin.add(FOUR)
    plugin.node.node.inject(Fault(call, 4, code, times=1))
    with pytest.raises((NvmlError, PrepareError)):
        plugin.lifecycle.prepare(ref)
    assert plugin.left() == NOTHING
    plugin.lifecycle.prepare(ref)
    assert plugin.instances() == ["0:1", "1:1", "2:2", "4:4"]


def test_no_room_names_what_is_in_the_way(plugin: Plugin) -> None:
    other = plugin.add(["gpu-4-mig-3g40gb-9-0"])
    plugin.lifecycle.prepare(other)
    with pytest.raises(PrepareError, match=r"no room for 1g.10gb at 0:1 .* GPU instances are 1 \(profile 9 at 0:4\)"):
        plugin.lifecycle.prepare(plugin.add([SMALL]))
    plugin.lifecycle.unprepare(other)
    assert plugin.left() == NOTHING


def test_an_unreachable_api_server_leaves_nothing(plugin: Plugin) -> None:
    with pytest.raises(ApiError):
        plugin.lifecycle.prepare(ClaimRef("team", "unknown", "0c7c1f0e-0000-0000-0000-000000000001"))
    assert plugin.left() == NOTHING


def test_a_busy_instance_is_unprepared_once_its_process_ends(plugin: Plugin) -> None:
    ref = plugin.add([SMALL])
    plugin.lifecycle.prepare(ref)
    inventory = read_inventory(plugin.node.nvml, plugin.node.sys_root)
    ((_, mig_uuid),) = inventory.gpus[4].mig_instances[0].devices
    plugin.node.node.occupy(mig_uuid, os.getpid())
    with pytest.raises(NvmlError, match="IN_USE"):
        plugin.lifecycle.unprepare(ref)
    assert plugin.instances() == ["0:1"]
    assert plugin.left()["specs"] == []
    with pytest.raises(PrepareError, match="still being taken from claim team/claim-0"):
        plugin.lifecycle.prepare(plugin.add([SMALL]))
    plugin.node.node.vacate(os.getpid())
    plugin.lifecycle.unprepare(ref)
    assert plugin.left() == NOTHING


def test_an_instance_of_the_administrator_is_used_and_left(plugin: Plugin) -> None:
    by_hand = plugin.add([SMALL])
    plugin.lifecycle.prepare(by_hand)
    plugin.records.remove(by_hand.uid)  # as if nobody had made it for a claim
    for file in plugin.cdi.glob("*-claim_*"):
        file.unlink()
    restarted = Plugin(plugin.cdi.parent, plugin.claims)
    ref = restarted.add([SMALL])
    restarted.lifecycle.prepare(ref)
    restarted.lifecycle.unprepare(ref)
    assert restarted.left() == {**NOTHING, "instances": ["0:1"]}


def test_admins_look_at_an_instance_and_never_make_one(plugin: Plugin) -> None:
    admin = plugin.add([SMALL], adminAccess=True)
    with pytest.raises(PrepareError, match="does not exist at the moment"):
        plugin.lifecycle.prepare(admin)
    user = plugin.add([SMALL])
    plugin.lifecycle.prepare(user)
    plugin.lifecycle.prepare(admin)
    assert nodes_of(plugin, admin) == nodes_of(plugin, user)
    plugin.lifecycle.unprepare(admin)
    assert plugin.instances() == ["0:1"]
    plugin.lifecycle.unprepare(user)
    assert plugin.left() == NOTHING


def test_without_a_driver_unprepare_still_answers(plugin: Plugin) -> None:
    whole, mig = plugin.add(["gpu-0"]), plugin.add([SMALL])
    plugin.lifecycle.prepare(whole)
    plugin.lifecycle.prepare(mig)
    restarted = Plugin(plugin.cdi.parent, plugin.claims, start=False)
    restarted.lifecycle.unprepare(whole)
    restarted.lifecycle.unprepare(mig)
    assert restarted.left()["specs"] == []
    assert restarted.instances() == ["0:1"]  # nobody could destroy it yet
    restarted.start()
    assert restarted.left() == NOTHING


def test_without_a_driver_prepare_says_so_at_once(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, {}, start=False)
    with pytest.raises(NoDriverError, match="NVIDIA driver is not ready"):
        plugin.lifecycle.prepare(plugin.add([SMALL]))
    assert plugin.left() == NOTHING


def test_a_driver_that_goes_away_is_found_again(plugin: Plugin) -> None:
    ref = plugin.add([SMALL])
    plugin.lifecycle.prepare(ref)
    plugin.node.node.unload_driver()
    with pytest.raises((NvmlError, PrepareError)):
        plugin.lifecycle.prepare(plugin.add(["gpu-4-mig-1g10gb-19-1"]))
    assert not plugin.has_driver()
    plugin.node.node.load_driver()
    eventually(plugin.has_driver)
    assert plugin.instances() == ["0:1"]  # the prepared claim's instance was made again
    plugin.lifecycle.unprepare(ref)
    assert plugin.left() == NOTHING


def test_a_restart_undoes_what_was_broken_off(plugin: Plugin) -> None:
    ref = plugin.add(FOUR)
    plugin.lifecycle.prepare(ref)
    record = plugin.records.load()[ref.uid]
    plugin.records.save(type(record)(State.PREPARING, record.boot_id, record.plan, {}))
    assert Plugin(plugin.cdi.parent, plugin.claims).left() == NOTHING


def test_a_restart_completes_prepared_claims(plugin: Plugin) -> None:
    ref = plugin.add(FOUR)
    plugin.lifecycle.prepare(ref)
    before = plugin.left()
    plugin.node.node.reset_gpu(4)
    for file in plugin.cdi.glob("*-claim_*"):
        file.unlink()
    assert Plugin(plugin.cdi.parent, plugin.claims).left() == before


def test_a_reboot_forgets_everything(plugin: Plugin) -> None:
    ref = plugin.add(FOUR)
    plugin.lifecycle.prepare(ref)
    plugin.node.node.reset_gpu(4)
    rebooted = Plugin(plugin.cdi.parent, plugin.claims, boot_id="boot-2")
    assert rebooted.left() == NOTHING
    rebooted.lifecycle.prepare(ref)
    assert rebooted.instances() == ["0:1", "1:1", "2:2", "4:4"]


def test_the_spec_of_an_unknown_claim_is_swept(plugin: Plugin) -> None:
    ref = plugin.add(["gpu-0"])
    plugin.lifecycle.prepare(ref)
    plugin.records.remove(ref.uid)
    assert Plugin(plugin.cdi.parent, plugin.claims).left() == NOTHING


def test_claims_on_all_gpus_side_by_side(plugin: Plugin) -> None:
    devices = [f"gpu-{gpu}-mig-1g10gb-19-{start}" for gpu in range(4, 8) for start in range(7)]
    refs = [plugin.add([device]) for device in devices]
    failures: list[BaseException] = []

    def cycle(ref: ClaimRef) -> None:
        try:
            for _ in range(3):
                plugin.lifecycle.prepare(ref)
                plugin.lifecycle.unprepare(ref)
            plugin.lifecycle.prepare(ref)
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
        plugin.lifecycle.unprepare(ref)
    assert plugin.left() == NOTHING


def test_two_hundred_cycles_over_all_placements_leave_nothing(plugin: Plugin) -> None:
    names = [device.name for devices in plugin.node.describe() for device in devices.devices]
    for cycle in range(200):
        ref = plugin.add([names[cycle % len(names)]])
        plugin.lifecycle.prepare(ref)
        plugin.lifecycle.unprepare(ref)
    assert plugin.left() == NOTHING


def test_mig_mode_switched_off_by_hand_is_said_and_blocks_no_unprepare(plugin: Plugin) -> None:
    ref = plugin.add([SMALL])
    plugin.lifecycle.prepare(ref)
    plugin.node.node.reset_gpu(4)
    gpu = plugin.node.nvml.device_by_index(4)
    plugin.node.nvml.set_mig_mode(gpu, False)
    plugin.lifecycle.unprepare(ref)
    assert plugin.left() == NOTHING
    with pytest.raises(PrepareError, match=r"MIG mode of GPU GPU-.* is off \(nvidia-smi"):
        plugin.lifecycle.prepare(plugin.add([SMALL]))
