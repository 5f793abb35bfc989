# SPDX-License-Identifier: Apache-2.0
"""The report of a daemon, which the plugin of its node reads."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.domains.daemon.report import FILE, ReportFile, read_report
from dra_driver.domains.objects import DaemonReport

READY = DaemonReport(True, "READY", "UP", "")


def test_a_report_is_valid_as_long_as_its_writer_lives(tmp_path: Path) -> None:
    assert read_report(tmp_path) is None
    file = ReportFile(tmp_path)
    for report in (DaemonReport(message="no nvidia-imex"), READY):
        file.write(report)
        assert [read_report(tmp_path), read_report(tmp_path)] == [report, report]
    file.close()
    assert read_report(tmp_path) is None


@pytest.mark.node
def test_the_report_of_a_killed_daemon_is_not_current(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from dra_driver.domains.objects import DaemonReport
from dra_driver.domains.daemon.report import ReportFile
file = ReportFile(Path({str(tmp_path)!r}))
file.write(DaemonReport(True, "READY", "UP", ""))
print(flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert read_report(tmp_path) == READY
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert read_report(tmp_path) is None
    ReportFile(tmp_path).write(READY)  # its successor replaces the file


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"ready": true}', b"\xff"])
def test_a_damaged_report_is_none(tmp_path: Path, content: bytes) -> None:
    file = ReportFile(tmp_path)
    file.write(READY)
    (tmp_path / FILE).write_bytes(content)
    assert read_report(tmp_path) is None
