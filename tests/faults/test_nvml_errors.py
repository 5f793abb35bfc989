# SPDX-License-Identifier: Apache-2.0
"""Every call of NVML fails once with every code that it may fail with, before or after it has done its work.

kubelet repeats its call until it goes well, or makes the opposite one, as after a deletion of the pod; in turns. Codes
that say something about the hardware (NOT_FOUND, NOT_SUPPORTED) are answers and no failures: they are not given here.
Without FAULTS_EVERY=1 a share of these errors is tried.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import Return
from kubeletplugin.claims.engine import ClaimTimes
from tests.support.waiting import wait_for

from .faultyclaim import OPPOSITE, FaultyClaim
from .points import nvml_fails
from .scenarios import SCENARIOS
from .share import share

ANYWHERE = [Return.UNKNOWN, Return.GPU_IS_LOST, Return.NO_PERMISSION, Return.MEMORY, Return.UNINITIALIZED]
LOST_ANSWER = [Return.UNKNOWN, Return.TIMEOUT]
"""What a call may fail with after it has done its work."""

MORE = {
    "create_gpu_instance": [Return.INSUFFICIENT_RESOURCES, Return.INVALID_ARGUMENT, Return.IN_USE],
    "create_compute_instance": [Return.INSUFFICIENT_RESOURCES, Return.INVALID_ARGUMENT, Return.IN_USE],
    "destroy_gpu_instance": [Return.IN_USE],
    "destroy_compute_instance": [Return.IN_USE],
    "set_mig_mode": [Return.IN_USE, Return.RESET_REQUIRED],
}
EVERY_CODE = {"three slices", "a bit of everything", "a whole GPU in MIG mode"}


def codes(point: str, every: bool) -> Sequence[Return]:
    """What a call may fail with at this point."""
    when, name = point.split()
    if not every:
        return [Return.UNKNOWN]
    return LOST_ANSWER if when == "after" else [*ANYWHERE, *MORE.get(name, ())]


@pytest.mark.parametrize(("number", "name"), list(enumerate(SCENARIOS)), ids=SCENARIOS)
@pytest.mark.parametrize("verb", OPPOSITE)
def test_claim_recovers_from_an_nvml_error_at_every_point(tmp_path: Path, verb: str, number: int, name: str) -> None:
    claim = FaultyClaim(tmp_path, SCENARIOS[name])
    turns = itertools.cycle([verb, OPPOSITE[verb], OPPOSITE[verb], verb])
    faults = [
        (index, point, code)
        for index, point in enumerate(claim.points_of(verb))
        if point.startswith(("before", "after"))
        for code in codes(point, name in EVERY_CODE)
    ]
    usually = 30 if SCENARIOS[name].needs_mps else 15 if name in EVERY_CODE else 6  # with MPS each one runs programs
    for index, point, code in share(faults, number, usually):
        claim.restore_state_before(verb)
        error = claim.call_with_fault(verb, index, nvml_fails(code))
        claim.repeat(next(turns), (point, index, code, error))
    claim.end()


def test_instance_of_a_lost_gpu_is_destroyed_soon_after_the_gpu_is_back(tmp_path: Path) -> None:
    claim = FaultyClaim(tmp_path, SCENARIOS["three slices"], ClaimTimes(retry=0.1))
    point = claim.points_of("unprepare").index("before destroy_compute_instance")
    claim.restore_state_before("unprepare")
    assert claim.call_with_fault("unprepare", point, nvml_fails(Return.GPU_IS_LOST), lasting=True) == ""
    wait_for(lambda: claim.node_state() == claim.states["unprepare"], "the next try")
    claim.end()


def test_failed_prepare_is_undone_soon(tmp_path: Path) -> None:
    claim = FaultyClaim(tmp_path, SCENARIOS["three slices"], ClaimTimes(retry=0.1))
    point = claim.points_of("prepare").index("before create_compute_instance")
    claim.restore_state_before("prepare")
    assert claim.call_with_fault("prepare", point, nvml_fails(Return.UNKNOWN), lasting=True)
    wait_for(lambda: claim.node_state() == claim.states["unprepare"], "the next try")
    claim.end()
