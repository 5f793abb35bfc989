# SPDX-License-Identifier: Apache-2.0
"""When a daemon that does not answer is ended."""

import os
import signal
import subprocess

import pytest

from kubeletplugin.features.mps.patience import Activity, Checks, Patience, activity_of
from tests.support.waiting import wait_for

SLEEPS, STOPPED, READY = Activity("S", 5), Activity("T", 5), Activity("R", 5)
WORKED = Activity("S", 6)


def ended_after(activities: list[Activity | None], seconds: float = 12.0) -> int | None:
    """The number of the failed check after which the daemon is ended, where a check and its pause take `seconds`."""
    checks = Checks(Patience(), 0.0)
    for number, activity in enumerate(activities):
        if checks.failed(number * seconds, (number + 1) * seconds, activity):
            return number + 1
    return None


def test_single_failed_check_ends_no_daemon() -> None:
    assert ended_after([SLEEPS], seconds=1000.0) is None


def test_quick_failures_end_no_daemon() -> None:
    assert ended_after([SLEEPS] * 20, seconds=1.0) is None


@pytest.mark.parametrize(
    ("activity", "number"), [(SLEEPS, 4), (STOPPED, 4), (None, 4), (READY, 15), (WORKED, 15)], ids=repr
)
def test_daemon_that_works_gets_more_time(activity: Activity | None, number: int) -> None:
    assert ended_after([SLEEPS, *[activity] * 30]) == number


def test_answer_resets_the_failures() -> None:
    checks = Checks(Patience(), 0.0)
    assert not any(checks.failed(20.0 * number, 20.0 * number + 12.0, SLEEPS) for number in range(3))
    checks.answered(70.0)
    assert (checks.due, checks.limit) == (80.0, 3.0)
    assert not any(checks.failed(80.0 + 20.0 * number, 92.0 + 20.0 * number, SLEEPS) for number in range(3))


def test_time_limit_of_a_check_grows() -> None:
    checks, limits = Checks(Patience(), 0.0), []
    for _ in range(4):
        limits.append(checks.limit)
        checks.failed(0.0, 3.0, SLEEPS)
        assert checks.due == 8.0
    assert limits == [3.0, 6.0, 12.0, 12.0]


@pytest.mark.node
def test_kernel_reports_whether_a_process_is_stopped_or_works() -> None:
    process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        first = activity_of(process.pid)
        assert first is not None
        wait_for(lambda: (now := activity_of(process.pid)) and now.ticks > first.ticks, "work")
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: (now := activity_of(process.pid)) and now.state == "T", "the stop")
    finally:
        process.kill()
        process.wait()
    assert activity_of(process.pid) is None
