# SPDX-License-Identifier: Apache-2.0
"""What MIG profiles are called, and what fills their instances."""

from pathlib import Path

import pytest

from dra_driver.gpu.nvml import NvmlError, Placement
from dra_driver.gpu.profiles import device_suffix, supported_profiles, whole_compute_profile
from dra_driver.gpu.simulated import shipped_nodes
from tests.support.nodes import make_node


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
