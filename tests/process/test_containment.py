# SPDX-License-Identifier: Apache-2.0
"""Failures of one piece of work that do not end the others."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from dra_driver.names import DRIVER_NAME
from dra_driver.process.containment import contained
from dra_driver.process.endpoints import unexpected_errors
from tests.support.logs import records_of


def test_an_unexpected_exception_is_logged_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    told: list[Exception] = []
    done: list[int] = []
    for number in (1, 0, 2):
        with contained("divide number", number, counted.append, told.append, gpu="GPU-1"):
            done.append(2 // number)
    assert done == [2, 1]
    assert counted == ["divide number"]
    assert [type(one) for one in told] == [ZeroDivisionError]
    (record,) = records_of(caplog, "dra_driver.process")
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "divide number 0 failed unexpectedly; other work continues"
    assert record.exc_info is not None
    assert record.exc_info[1] is told[0]
    assert record.__dict__["gpu"] == "GPU-1"


def test_expected_exception_is_raised_to_the_caller() -> None:
    counted: list[str] = []
    with pytest.raises(OSError, match="disk"), contained("write file", "a", counted.append, expected=(OSError,)):
        raise OSError("disk")
    assert counted == []


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_process_is_not_contained(end: type[BaseException]) -> None:
    with pytest.raises(end), contained("write file", "a", lambda _: None):
        raise end


def test_a_failure_that_cannot_be_reported_is_contained_too(caplog: pytest.LogCaptureFixture) -> None:
    def tell(_: Exception) -> None:
        raise OSError("nobody listens")

    with contained("write file", "a", lambda _: None, tell):
        raise ValueError("odd")
    assert [record.getMessage() for record in caplog.records] == [
        "write file a failed unexpectedly; other work continues",
        "write file a: the failure could not be reported",
    ]


def test_failures_are_a_metric() -> None:
    registry = CollectorRegistry()
    count = unexpected_errors(registry)
    for work in ("write file", "write file", "read file"):
        with contained(work, "a", count):
            raise ValueError("odd")
    for work, number in (("write file", 2), ("read file", 1)):
        labels = {"driver": DRIVER_NAME, "work": work}
        assert registry.get_sample_value("nvidia_dra_unexpected_errors_total", labels) == number
