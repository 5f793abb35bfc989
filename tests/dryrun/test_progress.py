# SPDX-License-Identifier: Apache-2.0
"""The line that tells what takes so long, on a real terminal and without one."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.dryrun.progress import progress

pytestmark = pytest.mark.node

SLOW = """
import sys
from dra_driver.dryrun.progress import progress
with progress("reading [the cluster]", delay=float(sys.argv[1])) as say:
    sys.stdin.readline()
    say("allocating")
    print("out")
    sys.stdin.readline()
"""


def on_a_terminal(delay: float, out: Path, *shown: str) -> str:
    """What the program writes to standard error, which is a terminal; its standard output is a file. Each part of its
    work ends when the text of that part is `shown`, or at once.
    """
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with out.open("wb") as file:
        command = [sys.executable, "-c", SLOW, str(delay)]
        run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=slave, env=environment)
        os.close(slave)
        assert run.stdin is not None
        written = b""
        for text in shown:
            while text.encode() not in written and (chunk := _read(master)):
                written += chunk
            run.stdin.write(b"\n")
            run.stdin.flush()
        run.stdin.close()
        while chunk := _read(master):
            written += chunk
        assert run.wait(60) == 0
    os.close(master)
    return written.decode()


def _read(master: int) -> bytes:
    try:
        return os.read(master, 4096)
    except OSError:  # Linux's way to say that nobody can write any more
        return b""


def test_long_work_is_told_and_the_line_taken_away(tmp_path: Path) -> None:
    written = on_a_terminal(0.01, tmp_path / "out", "reading [the cluster]", "allocating")
    assert "reading [the cluster]" in written
    assert "allocating" in written
    assert written.endswith("\x1b[2K"), "the line is erased"
    assert (tmp_path / "out").read_text(encoding="utf-8") == "out\n", "standard output is left alone"


def test_short_work_prints_no_progress(tmp_path: Path) -> None:
    assert on_a_terminal(60, tmp_path / "out") == ""


def test_without_a_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("reading", delay=0) as say:
        say("allocating")
    assert capsys.readouterr().err == ""


def test_an_error_in_the_work_comes_out_of_it() -> None:
    with pytest.raises(ValueError, match="broken"), progress("reading"):
        raise ValueError("broken")
