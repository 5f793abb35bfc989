# SPDX-License-Identifier: Apache-2.0
"""What MIG profiles are called, and what fills their instances."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import GpuInstanceProfile, NvmlError, Placement, Return
from dra_driver.gpu.profiles import device_suffix, profile_name, supported_profiles, whole_compute_profile
from dra_driver.gpu.simulation import shipped_nodes
from dra_driver.gpu.simulation.board import ProfileModel, boards
from tests.support.nodes import make_node

EVERY_PROFILE = [(board.memory_mib << 20, profile) for board in boards().values() for profile in board.profiles]
IDS = [f"{board.model}-{profile.info.name}" for board in boards().values() for profile in board.profiles]
ONE_G = GpuInstanceProfile(
    constant=0, id=19, name="", slice_count=1, instance_count=7, memory_mib=9984, multiprocessors=16,
    copy_engines=1, decoders=1, encoders=0, jpeg_engines=1, ofa_engines=0,
)  # fmt: skip
VARIANTS = {0: "", 5: "", 7: "+me", 8: "+me", 9: "", 10: "+gfx", 11: "+gfx", 12: "+gfx", 13: "-me", 14: "-me"}
VARIANTS |= {15: "+me.all", 16: "+me.all", 17: "+gfx", 99: ""}
H100 = 81559 << 20


@pytest.mark.parametrize(("memory", "profile"), EVERY_PROFILE, ids=IDS)
def test_where_the_driver_gives_no_name_the_computed_one_is_the_same(memory: int, profile: ProfileModel) -> None:
    assert profile_name(replace(profile.info, name=""), memory) == profile.info.name


@pytest.mark.parametrize(("constant", "variant"), VARIANTS.items())
def test_the_constant_tells_the_variant(constant: int, variant: str) -> None:
    assert profile_name(replace(ONE_G, constant=constant), H100) == f"1g.10gb{variant}"


def test_the_drivers_own_name_counts() -> None:
    assert profile_name(replace(ONE_G, name="1g.12gb+new"), 0) == "1g.12gb+new"


def test_without_the_gpus_memory_there_is_no_name_to_compute() -> None:
    with pytest.raises(NvmlError, match="needed to name MIG profiles") as raised:
        profile_name(ONE_G, 0)
    assert raised.value.code is Return.NO_DATA


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("1g.5gb", "1g5gb"),
        ("1g.5gb+me", "1g5gb-me"),
        ("1g.24gb-me", "1g24gb-me"),
        ("1g.24gb+me.all", "1g24gb-meall"),
        ("1g.24gb+GFX", "1g24gb-gfx"),
    ],
)
def test_a_name_becomes_part_of_a_device_name(name: str, suffix: str) -> None:
    assert device_suffix(name) == suffix


@pytest.mark.parametrize("name", shipped_nodes())
def test_every_profile_has_a_compute_instance_that_fills_it(tmp_path: Path, name: str) -> None:
    nvml = make_node(tmp_path, f"{name}-mig").nvml
    gpu = nvml.device_by_index(0)
    for profile in supported_profiles(nvml, gpu):
        placement = nvml.gpu_instance_placements(gpu, profile.id)[0]
        instance = nvml.create_gpu_instance(gpu, profile.id, placement)
        compute = whole_compute_profile(nvml, instance, profile.slice_count)
        nvml.destroy_compute_instance(nvml.create_compute_instance(instance, compute))
        nvml.destroy_gpu_instance(instance)


def test_a_size_that_no_compute_instance_has_is_an_error(tmp_path: Path) -> None:
    nvml = make_node(tmp_path, "h100x8-mig").nvml
    gpu = nvml.device_by_index(0)
    instance = nvml.create_gpu_instance(gpu, 9, Placement(0, 4))
    with pytest.raises(NvmlError, match="no compute instance profile has 5 slices"):
        whole_compute_profile(nvml, instance, 5)
