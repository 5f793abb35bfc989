# SPDX-License-Identifier: Apache-2.0
"""Programs are run for a limited time, and end with all that they started."""

import os
from pathlib import Path

import pytest

from dra_driver.errors import ProgramError, TimeLimitError
from dra_driver.process.programs import MOST_OUTPUT, Ended, run_program
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node


def test_output_and_exit_code_are_returned() -> None:
    done = run_program(["/bin/sh", "-c", "echo $WORD; echo more >&2; exit 3"], 60, {"WORD": "text"})
    assert (done.code, done.output) == (3, "text\nmore\n")
    assert str(done) == "ended with code 3: text more"


def test_program_reads_nothing() -> None:
    assert run_program(["/bin/cat"], 60).output == ""


def test_program_is_killed_with_its_children_after_the_time_limit(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/child; wait"
    with pytest.raises(TimeLimitError, match=r"^/bin/sh did not end within 0\.5 s and was killed$"):
        run_program(["/bin/sh", "-c", script], 0.5)
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not _runs(child), "the end of the child")


def test_a_child_that_stays_behind_ends_too(tmp_path: Path) -> None:
    done = run_program(["/bin/sh", "-c", f"sleep 1000 >/dev/null 2>&1 & echo $! > {tmp_path}/child"], 60)
    assert done.code == 0
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not _runs(child), "the end of the child")


def test_a_program_that_prints_without_end_is_killed() -> None:
    with pytest.raises(ProgramError, match=rf"^/bin/sh printed more than {MOST_OUTPUT} bytes and was killed$"):
        run_program(["/bin/sh", "-c", "exec yes"], 60)


def test_input_that_a_program_does_not_read_is_dropped() -> None:
    assert run_program(["/bin/sh", "-c", "echo done"], 60, text="x" * (1 << 20)).output == "done\n"


def test_input_that_is_larger_than_a_pipe_is_written_while_output_is_read() -> None:
    text = "x" * (1 << 19)
    assert run_program(["/bin/cat"], 60, text=text).output == text


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("", "without any output"),
        ("two\n lines\n", "two lines"),
        ("\x1b[31mred\x00\u202e", r"\x1b[31mred\x00\u202e"),
        ("x" * 501, "x" * 500 + "…"),
        ("\n" * (1 << 19) + "late", "…"),
    ],
    ids=["nothing", "lines", "control characters", "long", "empty lines"],
)
def test_output_is_shown_escaped_and_shortened(output: str, shown: str) -> None:
    assert str(Ended(3, output)) == f"ended with code 3: {shown}"


def test_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"/missing cannot be run: No such file or directory$"):
        run_program([str(tmp_path / "missing")], 60)


def _runs(pid: int) -> bool:
    """Whether the process is there, and no zombie that nobody collects."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
