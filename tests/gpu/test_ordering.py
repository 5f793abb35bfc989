# SPDX-License-Identifier: Apache-2.0
"""Within a GPU the placement that destroys least room for larger profiles comes first."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dra_driver.gpu.devices.forms import by_preference
from dra_driver.gpu.inventory import MigProfile
from dra_driver.gpu.nvml import GpuInstanceProfile, Placement
from dra_driver.gpu.simulated.board import BoardModel, boards
from tests.support.nodes import board_gpu

EIGHTHS = {
    "1": [6, 5, 4, 3, 2, 1, 0],
    "1+me": [6, 5, 4, 3, 2, 1, 0],
    "1 wide": [6, 4, 2, 0],
    "2": [4, 2, 0],
    "3": [4, 0],
    "4": [0],
    "7": [0],
}
QUARTERS = {"1": [3, 2, 1, 0], "1+me": [3, 2, 1, 0], "2": [2, 0], "2+me": [2, 0], "4": [0]}


def preferred(model: BoardModel) -> dict[str, list[int]]:
    """The starts of each profile, in order; profiles in theirs."""
    found: dict[str, list[int]] = {}
    gpu = board_gpu(model, 0, mig=True)
    constants = {profile.info.id: profile.info.constant for profile in gpu.mig_profiles}
    for mig in by_preference(gpu.mig_profiles, gpu.mig_devices()):
        kind = " wide" if constants[mig.profile_id] == 9 else "+me" if mig.profile.endswith("+me") else ""
        found.setdefault(f"{mig.slices}{kind}", []).append(mig.placement.start)
    return found


@pytest.mark.parametrize("model", [one for one in boards().values() if one.profiles], ids=lambda model: model.model)
def test_small_profiles_come_first_and_go_from_the_end_where_the_largest_half_is_not(model: BoardModel) -> None:
    expected = EIGHTHS if model.memory_slices == 8 else QUARTERS
    assert preferred(model) == expected
    assert list(preferred(model)) == list(expected)


@pytest.mark.parametrize(
    ("large", "small", "expected"),
    [
        ([Placement(0, 4)], range(8), [7, 6, 5, 4, 3, 2, 1, 0]),
        ([Placement(4, 4)], range(8), [3, 2, 1, 0, 7, 6, 5, 4]),
        ([Placement(0, 4), Placement(6, 2)], range(8), [5, 4, 7, 6, 3, 2, 1, 0]),
        ([Placement(0, 8), Placement(2, 4)], range(8), [7, 6, 1, 0, 5, 4, 3, 2]),
        ([], range(3), [2, 1, 0]),
    ],
    ids=["left half", "right half", "left half and right quarter", "all and the middle", "nothing larger"],
)
def test_room_is_kept_wherever_larger_placements_are(
    large: Sequence[Placement], small: Sequence[int], expected: list[int]
) -> None:
    info = GpuInstanceProfile(0, 1, "small", 1, 8, 1000, 1, 1, 0, 0, 0, 0)
    profiles = (
        MigProfile("small", info, tuple(Placement(start, 1) for start in small)),
        *(
            MigProfile(f"large-{index}", replace(info, id=index, slice_count=2), (placement,))
            for index, placement in enumerate(large, start=2)
        ),
    )
    gpu = replace(board_gpu(boards()["H100-SXM5-80GB"], 0), mig_profiles=profiles)
    ordered = by_preference(profiles, gpu.mig_devices())
    assert [one.placement.start for one in ordered if one.profile == "small"] == expected
