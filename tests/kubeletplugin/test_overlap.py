# SPDX-License-Identifier: Apache-2.0
"""Which devices exclude each other."""

from pathlib import Path

import pytest

from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import Placement
from kubeletplugin.claims.model import ClaimRef, Device, Plan
from kubeletplugin.claims.records import require_alone
from kubeletplugin.errors import PrepareError
from kubeletplugin.kinds.gpu import GpuKind
from kubeletplugin.kinds.mig.device import MigKind
from tests.kubeletplugin.inside import DYNAMIC, ApiServer, Plugin


def whole(gpu: int = 0, share: str | None = None, admin: bool = False) -> Device:
    target = GpuKind(f"GPU-{gpu}", gpu, f"0000:1{gpu}:00.0")
    return Device(f"gpu-{gpu}", "r", target, admin, share)


def part(start: int, size: int = 1, gpu: int = 0, share: str | None = None, admin: bool = False) -> Device:
    slot = MigKind(MigDevice(f"GPU-{gpu}", size, Placement(start, size), gpu, f"{size}g", size))
    return Device(f"gpu-{gpu}-mig-{size}g-{start}", "r", slot, admin, share)


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
def test_devices_exclude_each_other(first: Device, second: Device, excluded: bool) -> None:
    assert first.excludes(second) is excluded
    assert second.excludes(first) is excluded


def plan(*devices: Device, name: str = "claim") -> Plan:
    return Plan(ClaimRef("team", name, name), "node-a", devices)


def test_a_claim_cannot_have_a_gpu_and_its_slice() -> None:
    require_alone(plan(whole(), part(0, gpu=1)))
    with pytest.raises(PrepareError, match="devices gpu-0 and gpu-0-mig-1g-3 of one claim are the same part of GPU"):
        require_alone(plan(whole(), part(3)))


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
    plugin.engine.prepare(holder)
    before = plugin.left(), plugin.mode(0)
    said = f"device {second} cannot be had beside {first}, which is in use by claim team/claim-0"
    with pytest.raises(PrepareError, match=said):
        plugin.engine.prepare(plugin.api.add([second]))
    assert (plugin.left(), plugin.mode(0)) == before
    plugin.engine.unprepare(holder)
    plugin.engine.prepare(plugin.api.add([second]))
