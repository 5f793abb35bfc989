# SPDX-License-Identifier: Apache-2.0
"""Log lines that a test expects. Threads that earlier tests left in this process may log at any time, too."""

import logging

import pytest


def records_of(caplog: pytest.LogCaptureFixture, package: str) -> list[logging.LogRecord]:
    """The records of the loggers of a module or package, in their order."""
    return [record for record in caplog.records if f"{record.name}.".startswith(f"{package}.")]
