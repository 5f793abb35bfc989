# SPDX-License-Identifier: Apache-2.0
"""After a random day more large profiles still fit than with the official driver's order (tests/bench/packing.py)."""

import itertools

from dra_driver.gpu.simulated.board import boards
from tests.bench.packing import LOADS, MIXES, Day, Result, run

MODEL = "H100-SXM5-80GB"


def test_our_order_keeps_more_room_for_large_profiles() -> None:
    total = Result()
    for mix in MIXES:
        days = Result()
        for load, seed in itertools.product(LOADS, range(1)):
            days.add(run(Day(boards()[MODEL], mix, load, seed, gpus=2, arrivals=100, checkpoint=20)))
        assert days.ours.total() >= days.official.total(), mix
        total.add(days)
    assert total.ours.total() > 1.05 * total.official.total()


def test_a_board_of_two_equal_halves_is_packed_as_well_as_by_the_official_order() -> None:
    result = run(Day(boards()["A30-PCIE-24GB"], "even", load=0.6, seed=0, gpus=4, arrivals=100))
    assert result.ours == result.official
