# SPDX-License-Identifier: Apache-2.0
"""What was tried with a slice, and when it may be tried again."""

import itertools
from dataclasses import replace

import pytest

from controller.node.reconcile import Tried
from controller.node.writer import Attempts, SliceProblem, Why
from dra_driver.kube.resource import Device, DeviceTaint, ObjectMeta, ResourcePool, ResourceSlice
from tests.support.clock import Clock

REFUSED = SliceProblem(Why.REFUSED, "403")
FIRST, LONGEST = 1.0, 300.0


def a_slice(name: str = "a", *, device: str = "gpu-0", generation: int = 1, count: int = 1) -> ResourceSlice:
    return ResourceSlice(
        ObjectMeta(name), "gpu.nvidia.com", ResourcePool("node", generation, count), devices=(Device(device),)
    )


WANTED = a_slice(generation=0)
SENT = a_slice()
ALTERED = {"a": a_slice(device="altered")}


def test_slice_that_is_stored_as_sent_is_a_success() -> None:
    attempts = Attempts(FIRST, LONGEST)
    attempts.note("a", SENT, None)
    assert attempts.in_vain([WANTED], {"a": SENT}) == Tried()


def test_untried_slice_may_be_written() -> None:
    assert Attempts(FIRST, LONGEST).in_vain([WANTED], ALTERED) == Tried()


def test_the_same_difference_is_retried_with_pauses_that_double_to_minutes() -> None:
    clock = Clock()
    attempts = Attempts(FIRST, LONGEST, clock)
    writes = [clock.now]
    attempts.note("a", SENT, REFUSED)
    while clock.now < 1000 + 3600:
        clock.now += 0.25  # whatever happens meanwhile
        if attempts.in_vain([WANTED], ALTERED).due:
            writes.append(clock.now)
            attempts.note("a", SENT, REFUSED)
    pauses = [after - before for before, after in itertools.pairwise(writes)]
    for number, pause in enumerate(pauses):
        most = min(FIRST * 2**number, LONGEST)
        assert most / 2 <= pause <= most + 0.25
    assert len(writes) < 40


def test_a_slice_that_should_be_something_else_is_sent_at_once_and_begins_anew() -> None:
    attempts = Attempts(FIRST, LONGEST, Clock())
    for _ in range(5):
        attempts.note("a", SENT, REFUSED)
    for other in (a_slice(device="gpu-1", generation=0), a_slice(generation=0, count=2)):
        assert attempts.in_vain([other], ALTERED) == Tried()
    assert attempts.note("a", SENT, REFUSED) <= FIRST


def test_the_time_of_a_taint_and_the_generation_do_not_make_it_another_slice() -> None:
    def tainted(time: str, generation: int) -> ResourceSlice:
        taint = DeviceTaint("a.b/c", "NoSchedule", "", time)
        return replace(a_slice(generation=generation), devices=(Device("gpu-0", taints=(taint,)),))

    attempts = Attempts(FIRST, LONGEST, Clock())
    attempts.note("a", tainted("2026-01-01T00:00:00Z", 3), REFUSED)
    assert attempts.in_vain([tainted("2026-01-01T00:00:01Z", 0)], ALTERED).waiting == {"a"}


def test_slice_without_attempts_for_long_begins_with_a_short_pause() -> None:
    clock = Clock()
    attempts = Attempts(FIRST, LONGEST, clock)
    for _ in range(20):
        attempts.note("a", SENT, None)
    clock.now += 2 * LONGEST + 1
    assert attempts.in_vain([WANTED], ALTERED) == Tried(), "somebody deleted it, long after"
    assert attempts.note("a", SENT, None) <= FIRST


def test_a_deletion_is_an_attempt_as_long_as_the_slice_is_there() -> None:
    attempts = Attempts(FIRST, LONGEST, Clock())
    attempts.note("a", None, REFUSED)
    assert attempts.in_vain([], ALTERED).waiting == {"a"}
    assert attempts.in_vain([WANTED], ALTERED) == Tried(), "it is wanted after all"
    attempts.note("a", None, None)
    assert attempts.in_vain([], {}) == Tried()
    assert attempts.problem("a") is None


def test_seconds_until_the_next_attempt_are_known() -> None:
    clock = Clock()
    attempts = Attempts(FIRST, LONGEST, clock)
    pause = attempts.note("a", SENT, REFUSED)
    assert attempts.problem("a") == REFUSED
    assert attempts.seconds_until(["a", "unknown"]) == pytest.approx(pause)
    clock.now += 2 * pause
    assert attempts.seconds_until(["a"]) == 0.0
    assert attempts.seconds_until(["unknown"]) is None
