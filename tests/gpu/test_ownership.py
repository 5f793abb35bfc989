# SPDX-License-Identifier: Apache-2.0
"""Marks of the MIG instances that were made for claims."""

from pathlib import Path

from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.ownership import MigMarks, MigPlace

GPU = "GPU-0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e00"
PLACE = MigPlace(GPU, 19, Placement(0, 1))
OTHERS = [
    MigPlace(GPU.replace("0f3c", "1f3c"), 19, Placement(0, 1)),
    MigPlace(GPU, 9, Placement(0, 1)),
    MigPlace(GPU, 19, Placement(1, 1)),
    MigPlace(GPU, 19, Placement(0, 2)),
]


def test_a_mark_is_of_one_place_until_it_is_cleared(tmp_path: Path) -> None:
    marks = MigMarks(tmp_path / "mig")
    assert not marks.has(PLACE)
    marks.set(PLACE)
    assert [one for one in (PLACE, *OTHERS) if marks.has(one)] == [PLACE] == list(marks.all())
    marks.clear(PLACE)
    assert not marks.has(PLACE)
