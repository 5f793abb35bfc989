# SPDX-License-Identifier: Apache-2.0
"""Which devices exclude each other."""

from pathlib import Path

import pytest

from dra_driver.gpu.nvml import Placement
from kubeletplugin.errors import PrepareError
from kubeletplugin.kinds.targets import ClaimRef, MigSlot, WholeGpu
from kubeletplugin.plans.plan import Plan, PlannedDevice
from kubeletplugin.plans.planning import conflicts, exclusive, require_no_overlap
from tests.kubeletplugin.inside import DYNAMIC, ApiServer, Plugin


def whole(gpu: int = 0, share: str | None = None, admin: bool = False) -> PlannedDevice:
    target = WholeGpu(f"GPU-{gpu}", gpu, f"0000:1{gpu}:00.0")
    return PlannedDevice(f"gpu-{gpu}", "r", target, admin, share)


def part(start: int, size: int = 1, gpu: int = 0, share: str | None = None, admin: bool = False) -> PlannedDevice:
    slot = MigSlot(f"GPU-{gpu}", gpu, f"{size}g", size, size, Placement(start, size))
    return PlannedDevice(f"gpu-{gpu}-mig-{size}g-{start}", "r", slot, admin, share)


@pytest.mark.parametrize(
    ("first", "second", "excluded"),
    [
        (whole(), whole(), True),
        (whole(), whole(1), False),
        (whole(), part(0), True),
        (whole(), part(0, gpu=1), False),
        (part(0), part(0), True),
        (part(0), part(1), False),
        (part(0, 4), part(3), True),
        (part(0, 4), part(4, 4), False),
        (part(0, 4), part(0, 4, gpu=1), False),
        # administrators only look
        (whole(admin=True), whole(), False),
        (whole(admin=True), part(0), False),
        (part(0, admin=True), part(0), False),
        # shares are of one device
        (whole(share="a"), whole(share="b"), False),
        (part(0, share="a"), part(0, share="b"), False),
        (part(0, share="a"), part(0), True),
        (whole(share="a"), part(0, share="b"), True),
        (part(0, 2, share="a"), part(0, 1, share="b"), True),
    ],
)
def test_devices_exclude_each_other(first: PlannedDevice, second: PlannedDevice, excluded: bool) -> None:
    assert exclusive(first, second) is excluded
    assert exclusive(second, first) is excluded


def plan(*devices: PlannedDevice, name: str = "claim") -> Plan:
    return Plan(ClaimRef("team", name, name), "node-a", devices)


def test_a_claim_cannot_have_a_gpu_and_its_slice() -> None:
    require_no_overlap(plan(whole(), part(0, gpu=1)))
    with pytest.raises(PrepareError, match="devices gpu-0 and gpu-0-mig-1g-3 of one claim are the same part of GPU"):
        require_no_overlap(plan(whole(), part(3)))


def test_every_conflict_is_named() -> None:
    other, third = plan(part(0), part(1), name="other"), plan(whole(1), name="third")
    assert list(conflicts(plan(part(0, 2), whole(1)), [other, third])) == [
        ("gpu-0-mig-2g-0", "gpu-0-mig-1g-0", other),
        ("gpu-0-mig-2g-0", "gpu-0-mig-1g-1", other),
        ("gpu-1", "gpu-1", third),
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("gpu-0", "gpu-0-mig-1g10gb-19-3"),
        ("gpu-0-mig-1g10gb-19-3", "gpu-0"),
        ("gpu-0-mig-3g40gb-9-0", "gpu-0-mig-1g10gb-19-3"),
    ],
)
def test_the_second_of_two_claims_is_refused_and_nothing_is_touched(tmp_path: Path, first: str, second: str) -> None:
    plugin = Plugin(tmp_path, ApiServer(), policy=DYNAMIC)
    holder = plugin.api.add([first])
    plugin.lifecycle.prepare(holder)
    before = plugin.left(), plugin.mode(0)
    said = f"device {second} cannot be had beside {first}, which is in use by claim team/claim-0"
    with pytest.raises(PrepareError, match=said):
        plugin.lifecycle.prepare(plugin.api.add([second]))
    assert (plugin.left(), plugin.mode(0)) == before
    plugin.lifecycle.unprepare(holder)
    plugin.lifecycle.prepare(plugin.api.add([second]))
