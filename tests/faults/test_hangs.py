# SPDX-License-Identifier: Apache-2.0
"""Every call of NVML hangs once, for longer than the plugin waits.

kubelet hears of it and repeats its call, or makes the opposite one, until it goes well, which it does when the driver
answers again; other GPUs are served meanwhile.
"""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from .scenarios import SCENARIOS
from .struck import OPPOSITE, QUICK, StruckClaim

SHORT = replace(QUICK, step=0.15)


@pytest.mark.parametrize("name", ["a bit of everything", "a whole GPU in MIG mode"])
@pytest.mark.parametrize("verb", OPPOSITE)
def test_a_call_hangs(tmp_path: Path, verb: str, name: str) -> None:
    claim = StruckClaim(tmp_path, SCENARIOS[name], SHORT)
    points = [index for index, one in enumerate(claim.points_of(verb)) if one.startswith("before")]
    for turn, index in enumerate(points):
        claim.ready_for(verb)
        answers = threading.Event()
        error = claim.strike(verb, index, lambda _, answers=answers: answers.wait(60))  # type: ignore[misc]
        assert "has not returned within 0.15 s" in error, index
        answers.set()
        claim.bring(OPPOSITE[verb] if turn % 2 else verb, (index, error))
    print(f"{len(points)} points")
    claim.end()
