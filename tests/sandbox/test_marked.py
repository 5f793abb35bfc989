# SPDX-License-Identifier: Apache-2.0
"""Finding the processes of containers, in a /proc that has what a real one has only for a moment."""

import os
import threading
from pathlib import Path

import pytest

from dra_driver.sandbox.marked import MARK, marked_processes

FOLDER = Path("/var/lib/x/pods")
OURS = f"PATH=/bin\0{MARK}={FOLDER}/s0123456789\0".encode()


def process(proc: Path, pid: int, *, environment: bytes, state: str = "S", flags: int = 0x400000) -> Path:
    """Make a process, and return its folder."""
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a) b) {state} 1 1 1 0 -1 {flags} 0 0\n")
    (folder / "environ").write_bytes(environment)
    return folder


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        (OURS, [7]),
        (f"{MARK}={FOLDER}\0".encode(), [7]),
        (f"{MARK}={FOLDER}-other/s0123456789\0".encode(), []),
        (f"OTHER={MARK}={FOLDER}\0".encode(), []),
        (b"", []),
    ],
    ids=["below", "exactly", "another folder", "another variable", "no environment at all"],
)
def test_a_process_is_found_by_its_environment(tmp_path: Path, environment: bytes, found: list[int]) -> None:
    process(tmp_path, 7, environment=environment)
    (tmp_path / "sys").mkdir()
    assert marked_processes(FOLDER, tmp_path) == found


def test_dead_processes_and_threads_of_the_kernel_are_none(tmp_path: Path) -> None:
    process(tmp_path, 7, environment=OURS, state="Z")
    process(tmp_path, 8, environment=b"", flags=0x208040)
    assert marked_processes(FOLDER, tmp_path) == []


def test_a_process_that_just_begins_to_execute_its_program_is_found(tmp_path: Path) -> None:
    folder = process(tmp_path, 7, environment=b"")
    state = (folder / "stat").rename(tmp_path / "stat")
    os.mkfifo(folder / "stat")

    def appear() -> None:
        with (folder / "stat").open("wb") as pipe:  # opens when the empty environment was read, and then the state is
            (folder / "environ").write_bytes(OURS)
            pipe.write(state.read_bytes())
            state.rename(folder / "stat")

    appearing = threading.Thread(target=appear, daemon=True)
    appearing.start()
    assert marked_processes(FOLDER, tmp_path) == [7]
    appearing.join(60)
