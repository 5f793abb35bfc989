# SPDX-License-Identifier: Apache-2.0
"""MIG devices: what identifies them, and what is known of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.facts import Gpu
from dra_driver.gpu.mig import MigDevice, MigInstance, PartialInstance
from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.ownership import MigMarks
from dra_driver.gpu.simulated.board import boards
from tests.support.nodes import board_gpu

GPU = board_gpu(boards()["H100-SXM5-80GB"], 3, mig=True)
PLACE = Placement(2, 2)
UNKNOWN_PROFILE = 99


def with_suffix(suffix: str) -> Gpu:
    """The GPU whose profiles have names with this suffix."""
    return replace(
        GPU, mig_profiles=tuple(replace(profile, name=profile.name + suffix) for profile in GPU.mig_profiles)
    )


def test_device_has_what_follows_from_its_gpu_and_profile() -> None:
    device = GPU.mig_device(14, PLACE)
    assert (device.gpu_uuid, device.minor) == (GPU.uuid, 3)
    assert (device.profile, device.slices) == ("2g.20gb", 2)
    assert str(device) == f"2g.20gb at 2:2 of GPU {GPU.uuid}"


def test_device_of_a_profile_that_nvml_does_not_report_has_no_name() -> None:
    device = GPU.mig_device(UNKNOWN_PROFILE, PLACE)
    assert (device.minor, device.profile, device.slices) == (3, "", 0)
    assert str(device) == f"profile 99 at 2:2 of GPU {GPU.uuid}"


def test_device_that_is_read_from_its_mark_is_equal(tmp_path: Path) -> None:
    device, marks = GPU.mig_device(14, PLACE), MigMarks(tmp_path)
    marks.set(device)
    (read,) = marks.all()
    assert read == device
    assert device in {read}
    assert read.profile == ""


@pytest.mark.parametrize(
    "other",
    [
        replace(GPU.mig_device(14, PLACE), gpu_uuid="GPU-1"),
        GPU.mig_device(15, PLACE),
        GPU.mig_device(14, Placement(4, 2)),
    ],
    ids=["gpu", "profile", "placement"],
)
def test_device_with_another_gpu_profile_or_placement_is_not_equal(other: MigDevice) -> None:
    assert other != GPU.mig_device(14, PLACE)


@pytest.mark.parametrize(
    ("suffix", "known"), [("", False), ("+me", False), ("+me.all", False), ("-me", False), ("+gfx", True)]
)
def test_address_is_that_of_the_gpu_if_the_device_supports_graphics(suffix: str, known: bool) -> None:
    address = with_suffix(suffix).mig_device(14, PLACE).pci_address
    assert address == (GPU.pci_address if known else "")


def test_gpu_instances_are_in_the_order_of_their_ids() -> None:
    whole = MigInstance(GPU.mig_device(14, PLACE), 5, 0, "MIG-5")
    parts = [PartialInstance(GPU.mig_device(19, Placement(start, 1)), number, ()) for start, number in ((0, 7), (1, 2))]
    gpu = replace(GPU, mig_instances=(whole,), partial_instances=tuple(parts))
    assert [one.gpu_instance for one in gpu.gpu_instances] == [2, 5, 7]
