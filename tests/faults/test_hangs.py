# SPDX-License-Identifier: Apache-2.0
"""Every call of NVML hangs once, for longer than the plugin waits.

kubelet hears of it and repeats its call, or makes the opposite one, until it goes well, which it does when the driver
answers again; other GPUs are served meanwhile.
"""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kubeletplugin.inside import QUICK

from .faultyclaim import OPPOSITE, FaultyClaim
from .scenarios import SCENARIOS

SECONDS = {"a bit of everything": 0.3, "a whole GPU in MIG mode": 0.3, "time-slicing": 2.0}
"""How long the plugin waits for a step, which may run a program."""


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("verb", OPPOSITE)
def test_claim_recovers_from_a_call_that_hangs_at_every_point(tmp_path: Path, verb: str, name: str) -> None:
    claim = FaultyClaim(tmp_path, SCENARIOS[name])
    points = [index for index, one in enumerate(claim.points_of(verb)) if one.startswith("before")]
    assert points
    for turn, index in enumerate(points):
        claim.restore_state_before(verb)
        answers = threading.Event()
        # Only this call is impatient: a busy machine may take longer for the others.
        claim.plugin.place.times = replace(QUICK, step=SECONDS[name])
        error = claim.call_with_fault(verb, index, lambda _, answers=answers: answers.wait(60))  # type: ignore[misc]
        claim.plugin.place.times = QUICK
        assert f"has not returned within {SECONDS[name]:g} s" in error, index
        answers.set()
        claim.repeat(OPPOSITE[verb] if turn % 2 else verb, (index, error))
    print(f"{len(points)} points")
    claim.end()
