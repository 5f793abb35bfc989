# SPDX-License-Identifier: Apache-2.0
"""From findings to taints on devices and back."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.gpu.devices import GpuDevices
from dra_driver.gpu.health import Finding, concerns, keep_times, taint
from dra_driver.gpu.health.meanings import ECC, GPU_LOST, ROW_REMAP, UNMONITORED, XID, meaning
from dra_driver.gpu.health.taints import published_findings
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.policy import GpuRule, HealthPolicy, MigPolicy, NodePolicy
from dra_driver.kube.resource import Device, DeviceTaint, ResourceSlice
from dra_driver.kube.resource.device import SliceFeatures
from tests.gpu.calls import make_instance
from tests.support.nodes import make_node

POLICY = HealthPolicy()
DYNAMIC = NodePolicy(rules=(GpuRule(mig=MigPolicy.DYNAMIC),))
STATIC = NodePolicy(rules=(GpuRule(mig=MigPolicy.STATIC),))
OLD = SliceFeatures(counters_beside_devices=True)


def finding(
    gpu: GpuDevices, key: str, value: str, since: float = 1_700_000_000.9, at: Placement | None = None
) -> Finding:
    """A finding as the monitor would have it."""
    means = meaning(key, value, POLICY)
    assert means is not None
    return Finding(gpu.key, key, value, means.effect(POLICY), since, means.text, at)


def published(gpus: Sequence[GpuDevices]) -> tuple[ResourceSlice, ...]:
    """The slices with these devices."""
    return node_slices("node-a", "uid", gpus)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[GpuDevices, ...]:
    """Eight whole H100."""
    return make_node(tmp_path_factory.mktemp("whole"), "h100x8").describe()


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> tuple[GpuDevices, ...]:
    """Eight H100, each whole and as every MIG device it can be."""
    return make_node(tmp_path_factory.mktemp("dynamic"), "h100x8").describe(DYNAMIC)


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> tuple[GpuDevices, ...]:
    """Eight H100 in MIG mode; the first has two MIG devices."""
    node = make_node(tmp_path_factory.mktemp("static"), "h100x8-mig")
    for constant, start in ((2, 0), (1, 4)):  # 3g.40gb, 2g.20gb
        make_instance(node.nvml, node.nvml.device_by_index(0), constant, start)
    return node.describe(STATIC)


def test_a_finding_taints_every_device_of_its_gpu_and_no_other(dynamic: tuple[GpuDevices, ...]) -> None:
    tainted = taint(dynamic, [finding(dynamic[2], XID, "79")])
    expected = (DeviceTaint(XID, "NoSchedule", "79", "2023-11-14T22:13:20Z"),)
    assert {device.taints for device in tainted[2].devices} == {expected}
    assert [gpu for at, gpu in enumerate(tainted) if at != 2] == [gpu for at, gpu in enumerate(dynamic) if at != 2]


def test_a_finding_about_an_instance_taints_what_overlaps_it_and_the_whole_gpu(dynamic: tuple[GpuDevices, ...]) -> None:
    gpu = dynamic[0]
    (tainted,) = taint([gpu], [finding(gpu, XID, "94", at=Placement(2, 2))])
    hit = {device.name for device in tainted.devices if device.taints}
    expected = {name for name, place in gpu.placements.items() if place.start < 4 and place.start + place.size > 2} | {
        "gpu-0"
    }
    assert hit == expected
    assert "gpu-0-mig-1g10gb-19-2" in hit
    assert "gpu-0-mig-1g10gb-19-4" not in hit


def test_a_device_that_is_untouched_stays_the_same_object(dynamic: tuple[GpuDevices, ...]) -> None:
    tainted = taint(dynamic, [finding(dynamic[0], XID, "94", at=Placement(0, 1))])
    assert tainted[1].devices[0] is dynamic[1].devices[0]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["79", "13"], "79"),
        (["13", "79"], "79"),
        (["31", "13"], "31"),
        (["95", "94"], "95"),
    ],
)
def test_worst_finding_of_a_key_is_shown_and_the_oldest_of_equal_findings(
    whole: tuple[GpuDevices, ...], values: list[str], shown: str
) -> None:
    found = [finding(whole[0], XID, value, since) for since, value in enumerate(values)]
    for order in (found, found[::-1]):
        (device,) = taint(whole[:1], order)[0].devices
        assert [one.value for one in device.taints] == [shown]


def test_taints_stand_in_the_order_of_their_keys(whole: tuple[GpuDevices, ...]) -> None:
    found = [finding(whole[0], *one) for one in ((XID, "79"), (GPU_LOST, ""), (ECC, "double-bit"), (UNMONITORED, ""))]
    (device,) = taint(whole[:1], found)[0].devices
    assert [one.key for one in device.taints] == [ECC, GPU_LOST, UNMONITORED, XID]


def test_an_old_server_gets_the_worst_four_and_none_without_an_effect(whole: tuple[GpuDevices, ...]) -> None:
    contents = [(XID, "79"), (GPU_LOST, ""), (ECC, "double-bit"), (UNMONITORED, ""), (ROW_REMAP, "failed")]
    found = [finding(whole[0], key, value, since) for since, (key, value) in enumerate(contents)]
    found.append(finding(whole[0], "gpu.nvidia.com/recovery-action", "gpu-reset", 9.0))
    (device,) = taint(whole[:1], found, OLD)[0].devices
    assert [one.key for one in device.taints] == [ECC, GPU_LOST, ROW_REMAP, XID]


def test_a_server_without_taints_does_not_make_devices_look_healthy(whole: tuple[GpuDevices, ...]) -> None:
    (device,) = taint(whole[:1], [finding(whole[0], XID, "79")], SliceFeatures(device_taints=False))[0].devices
    assert [one.effect for one in device.taints] == ["NoSchedule"]


def test_a_finding_can_be_asked_whether_it_concerns_a_device(static: tuple[GpuDevices, ...]) -> None:
    gpu = static[0]
    first, second = sorted(gpu.placements, key=lambda name: gpu.placements[name].start)
    confined, general = finding(gpu, XID, "94", at=Placement(4, 2)), finding(gpu, XID, "79")
    assert [concerns(confined, gpu, name) for name in (first, second)] == [False, True]
    assert [concerns(general, gpu, name) for name in (first, second)] == [True, True]
    assert not concerns(replace(general, gpu_uuid="GPU-other"), gpu, first)


# Times


def test_a_taint_that_is_published_already_keeps_its_time(whole: tuple[GpuDevices, ...]) -> None:
    stored = published(taint(whole, [finding(whole[0], XID, "79", 1000.0)]))
    later = taint(whole, [finding(whole[0], XID, "79", 5000.0), finding(whole[1], XID, "79", 5000.0)])
    (kept,) = keep_times(published(later), stored)
    times = {one.name: [each.time_added for each in one.taints] for one in kept.devices if one.taints}
    assert times == {"gpu-0": ["1970-01-01T00:16:40Z"], "gpu-1": ["1970-01-01T01:23:20Z"]}


@pytest.mark.parametrize("other", [(XID, "48"), (XID, "13"), (ECC, "double-bit")])
def test_a_taint_that_changed_has_a_new_time(whole: tuple[GpuDevices, ...], other: tuple[str, str]) -> None:
    stored = published(taint(whole, [finding(whole[0], XID, "79", 1000.0)]))
    desired = published(taint(whole, [finding(whole[0], *other, 5000.0)]))
    assert keep_times(desired, stored) == desired


def test_taint_without_a_published_one_keeps_its_time(whole: tuple[GpuDevices, ...]) -> None:
    desired = published(taint(whole, [finding(whole[0], XID, "79")]))
    assert keep_times(desired, []) == desired
    assert keep_times(desired, published(whole)) == desired


# Back from what was published


def test_published_findings_of_whole_gpus_are_read_back(whole: tuple[GpuDevices, ...]) -> None:
    found = [finding(whole[0], XID, "79", 2000.0), finding(whole[3], GPU_LOST, "", 3000.0)]
    assert (
        sorted(published_findings(published(taint(whole, found)), POLICY, 1000.0), key=lambda one: one.since) == found
    )


@pytest.mark.parametrize("at", [Placement(0, 1), Placement(3, 1), Placement(2, 2), Placement(4, 4), Placement(0, 4)])
def test_published_finding_of_an_instance_is_read_back(dynamic: tuple[GpuDevices, ...], at: Placement) -> None:
    found = finding(dynamic[0], XID, "94", 2000.0, at)
    assert published_findings(published(taint(dynamic, [found])), POLICY, 0.0) == (found,)


def test_two_errors_on_two_instances_are_read_back(dynamic: tuple[GpuDevices, ...]) -> None:
    found = {
        finding(dynamic[0], XID, "48", 2000.0, Placement(0, 2)),
        finding(dynamic[0], XID, "94", 3000.0, Placement(4, 2)),
    }
    slices = published(taint(dynamic, found))
    assert set(published_findings(slices, POLICY, 0.0)) == found


def test_published_finding_of_static_devices_is_read_back(static: tuple[GpuDevices, ...]) -> None:
    found = finding(static[0], XID, "94", 2000.0, Placement(4, 2))
    assert published_findings(published(taint(static, [found])), POLICY, 0.0) == (found,)


def test_a_finding_about_the_whole_gpu_stays_one(dynamic: tuple[GpuDevices, ...]) -> None:
    found = finding(dynamic[0], XID, "79", 2000.0)
    assert published_findings(published(taint(dynamic, [found])), POLICY, 0.0) == (found,)


def test_an_older_and_weaker_error_of_the_whole_gpu_is_read_back_beside_a_worse_one_of_an_instance(
    dynamic: tuple[GpuDevices, ...],
) -> None:
    general = finding(dynamic[0], XID, "13", 2000.0)
    confined = finding(dynamic[0], XID, "48", 3000.0, Placement(0, 1))
    again = published_findings(published(taint(dynamic, [general, confined])), POLICY, 0.0)
    assert general in again
    assert {one.value for one in again} == {"13", "48"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["13", "31", "48", "79", "94"]),
            st.none()
            | st.sampled_from([Placement(start, 1) for start in range(7)] + [Placement(4, 4), Placement(0, 2)]),
        ),
        max_size=5,
        unique_by=lambda one: one[0],
    )
)
def test_findings_that_are_read_back_give_the_same_taints(
    dynamic: tuple[GpuDevices, ...], wrong: list[tuple[str, Placement | None]]
) -> None:
    found = [finding(dynamic[0], XID, value, 1000.0 + at, place) for at, (value, place) in enumerate(wrong)]
    tainted = taint(dynamic[:1], found)
    again = taint(dynamic[:1], published_findings(published(tainted), POLICY, 0.0))
    assert [contents(device) for device in again[0].devices] == [contents(device) for device in tainted[0].devices]


def contents(device: Device) -> list[tuple[str, str, str]]:
    """The taints of a device, times aside: those of unchanged taints are kept when slices are written."""
    return [(one.key, one.value, one.effect) for one in device.taints]


def test_foreign_taints_and_taints_older_than_the_boot_are_not_read_back(whole: tuple[GpuDevices, ...]) -> None:
    tainted = taint(whole, [finding(whole[0], XID, "79", 2000.0)])
    foreign = replace(whole[1].devices[0], taints=(DeviceTaint("example.com/broken", "NoSchedule", "", "x"),))
    timeless = replace(whole[2].devices[0], taints=(DeviceTaint(XID, "NoSchedule", "79"),))
    gpus = (tainted[0], replace(whole[1], devices=(foreign,)), replace(whole[2], devices=(timeless,)))
    assert published_findings(published(gpus), POLICY, 2001.0) == ()
    assert len(published_findings(published(gpus), POLICY, 2000.0)) == 1


def test_only_devices_of_the_driver_are_read(tmp_path: Path) -> None:
    gpus = make_node(tmp_path, "h100x8").describe()
    bare = replace(
        gpus[0].devices[0],
        attributes={"type": "vfio"},
        taints=(DeviceTaint(XID, "NoSchedule", "79", "2026-01-01T00:00:00Z"),),
    )
    assert published_findings(published([replace(gpus[0], devices=(bare,))]), POLICY, 0.0) == ()
