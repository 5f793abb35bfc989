# SPDX-License-Identifier: Apache-2.0
"""Devices because of which the API server would refuse a slice are left out, and all others are published."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from controller.node.rules import slices_within_rules
from dra_driver.gpu.devices import Description, GpuDevices, LeftOut, Reason
from dra_driver.gpu.layout import node_slices
from dra_driver.kube.resource import CounterConsumption, CounterSet, Device, Quantity, ResourceSlice
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.kube.resource.limits import CONSUMED_COUNTERS_PER_SLICE_1_34
from dra_driver.kube.resource.validation import slice_problems
from dra_driver.names import DRIVER_NAME

EVERYTHING = SliceFeatures()
OLDER = SliceFeatures(counters_beside_devices=True)
MIG = {"type": "mig"}


def gpu(index: int, *devices: Device, counters: int = 0) -> GpuDevices:
    """A GPU with these devices, and a counter set with so many counters."""
    amounts = {f"slice-{number}": Quantity.parse("1") for number in range(counters)}
    counter_set = CounterSet(f"gpu-{index}", amounts) if counters else None
    return GpuDevices(f"GPU-{index}", devices, counter_set, overlapping=counters > 0)


def whole(name: str, **attributes: str) -> Device:
    """A device that excludes no other."""
    return Device(name, attributes={"type": "gpu", **attributes})


def consumer(name: str, of: int, counters: int = 1) -> Device:
    """A device that consumes counters of GPU `of`."""
    amounts = {f"slice-{number}": Quantity.parse("1") for number in range(counters)}
    return Device(name, attributes=MIG, consumes_counters=(CounterConsumption(f"gpu-{of}", amounts),))


def published(
    gpus: Sequence[GpuDevices], features: SliceFeatures = EVERYTHING, node: str = "node-a"
) -> tuple[tuple[ResourceSlice, ...], Description]:
    """The slices, and the devices that are in them."""
    lay_out = partial(node_slices, node, "uid", features=features, driver=DRIVER_NAME)
    return slices_within_rules(Description(tuple(gpus)), lay_out, features)


def names(slices: Sequence[ResourceSlice]) -> list[str]:
    """The devices in slices."""
    return [device.name for one in slices for device in one.devices]


def test_valid_devices_are_all_published() -> None:
    gpus = (gpu(0, whole("gpu-0")), gpu(1, consumer("gpu-1-mig-0", 1), counters=1))
    slices, description = published(gpus)
    assert description == Description(gpus)
    assert names(slices) == ["gpu-0", "gpu-1-mig-0"]


def test_a_device_that_breaks_a_rule_is_left_out_and_reported() -> None:
    slices, description = published(
        [gpu(0, whole("gpu-0"), whole("gpu-vfio-0", model="x" * 65)), gpu(1, whole("gpu-1"))]
    )
    assert names(slices) == ["gpu-0", "gpu-1"]
    (left_out,) = description.left_out
    assert (left_out.subject, left_out.reason) == ("GPU-0", Reason.INVALID)
    assert left_out.text.startswith("device gpu-vfio-0: the API server would refuse it: spec.devices[")
    assert "attributes[model]: is longer than 64 bytes" in left_out.text
    assert [device.name for one in description.gpus for device in one.devices] == ["gpu-0", "gpu-1"]


def test_earlier_reasons_are_kept() -> None:
    earlier = LeftOut("GPU-2", Reason.POLICY, "the GPU")
    lay_out = partial(node_slices, "node-a", "uid")
    description = Description((gpu(0, whole("gpu-0")), gpu(1, whole("gpu-0"))), (earlier,))
    _, found = slices_within_rules(description, lay_out, EVERYTHING)
    assert [one.reason for one in found.left_out] == [Reason.POLICY, Reason.INVALID]


@pytest.mark.parametrize("is_first", [True, False], ids=["counters first", "counters last"])
def test_device_with_counters_is_published_if_two_devices_have_the_same_name(is_first: bool) -> None:
    """A vfio device with counters excludes the whole GPU. The other one would not."""
    counted = gpu(0, consumer("gpu-vfio-0", 0), consumer("gpu-0", 0), counters=1)
    plain = replace(gpu(1, whole("gpu-vfio-0")), key="0000:1b:00.0")
    slices, description = published([counted, plain] if is_first else [plain, counted])
    assert sorted(names(slices)) == ["gpu-0", "gpu-vfio-0"]
    assert description.gpus == (counted,)
    (left_out,) = description.left_out
    assert left_out.subject == "0000:1b:00.0"
    assert "the pool has another device of this name" in left_out.text


def test_a_name_that_is_in_two_slices_is_published_once() -> None:
    """The API server stores both slices, and then the scheduler uses no device of the pool."""
    gpus = [gpu(0, *(whole(f"gpu-{number}") for number in range(64))), gpu(1, whole("gpu-0"))]
    lay_out = partial(node_slices, "node-a", "uid")
    assert not [problem for one in lay_out(gpus) for problem in slice_problems(one)]
    slices, description = published(gpus)
    assert names(slices).count("gpu-0") == 1
    assert len(description.left_out) == 1


def test_devices_of_an_invalid_counter_set_are_left_out_with_it() -> None:
    bad = gpu(0, consumer("gpu-0-mig-0", 0), whole("gpu-vfio-0"), counters=1)
    bad = replace(bad, counter_set=CounterSet("gpu-0", {}))
    slices, description = published([bad, gpu(1, consumer("gpu-1-mig-0", 1), counters=1)])
    assert names(slices) == ["gpu-vfio-0", "gpu-1-mig-0"]
    assert [counters.name for one in slices for counters in one.shared_counters] == ["gpu-1"]
    assert [one.reason for one in description.left_out] == [Reason.INVALID]


def test_a_slice_that_is_too_much_for_an_older_server_is_left_out_as_a_whole() -> None:
    many = CONSUMED_COUNTERS_PER_SLICE_1_34 // 16 + 1
    gpus = [
        gpu(0, *(consumer(f"gpu-0-mig-{number}", 0, 16) for number in range(many)), counters=16),
        gpu(1, consumer("gpu-1-mig-0", 1), counters=1),
    ]
    slices, description = published(gpus, OLDER)
    assert names(slices) == ["gpu-1-mig-0"]
    assert len(description.left_out) == many
    assert not [problem for one in slices for problem in slice_problems(one, OLDER)]


def test_a_problem_of_no_device_stays_in_the_slices() -> None:
    slices, _ = published([gpu(0, whole("gpu-0"))], node="Not A Node")
    assert [problem for one in slices for problem in slice_problems(one)]
