# SPDX-License-Identifier: Apache-2.0
"""A check that fails unexpectedly is a finding of its own, and the other checks run."""

from collections.abc import Iterator

import pytest

from kubeletplugin.check.checks import CheckRun
from kubeletplugin.finding import CheckResult, NodeCheck

GOOD = NodeCheck("gpus").passed("8 GPUs")
TEXT = "this check failed unexpectedly, so its result is unknown: ZeroDivisionError('no switch')"
UNKNOWN = NodeCheck("fabric").warned(TEXT, "report it with the text on standard error")


@pytest.fixture
def checks() -> CheckRun:
    return CheckRun()


def divide() -> Iterator[CheckResult]:
    yield NodeCheck("fabric").passed("one of two findings")
    raise ZeroDivisionError("no switch")


def test_check_that_fails_is_a_warning_and_the_next_check_runs(checks: CheckRun) -> None:
    checks.add("fabric", divide)
    checks.add("gpus", lambda: [GOOD])
    assert checks.findings == [UNKNOWN, GOOD]


def test_facts_that_cannot_be_read_are_none_and_a_warning(checks: CheckRun) -> None:
    assert checks.read("fabric", lambda: list(divide())) is None
    assert checks.findings == [UNKNOWN]


def test_facts_that_are_read_are_no_finding(checks: CheckRun) -> None:
    assert checks.read("gpus", lambda: 8) == 8
    assert checks.findings == []


def test_traceback_of_a_failed_check_is_logged(checks: CheckRun, caplog: pytest.LogCaptureFixture) -> None:
    checks.add("fabric", divide)
    assert "check fabric failed unexpectedly; other work continues" in caplog.text
    assert "Traceback (most recent call last)" in caplog.text
