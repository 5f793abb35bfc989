# SPDX-License-Identifier: Apache-2.0
"""Waiting for a file of a simulated node: it would last for an hour, and ends at once."""

import contextlib
import os
from pathlib import Path

import pytest

from dra_driver.gpu.simulated.access import FileWatch

LONG = 3600.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "events"
    file.touch()
    return file


def test_waiting_ends_when_the_file_is_written_or_touched_also_before(file: Path) -> None:
    watch = FileWatch(str(file))
    with file.open("a") as opened:
        opened.write("something")
    watch.wait(LONG)
    os.utime(file)
    watch.wait(LONG)


def test_without_a_watch_it_is_short(tmp_path: Path) -> None:
    FileWatch(str(tmp_path / "none")).wait(LONG)


def watches(file: Path) -> int:
    """The number of this process's descriptors that watch the file. Other threads open and close theirs meanwhile."""
    found = 0
    for descriptor in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += f"inotify wd:1 ino:{file.stat().st_ino:x} " in descriptor.read_text(encoding="utf-8")
    return found


def test_a_watch_that_nobody_has_any_more_holds_no_descriptor(file: Path) -> None:
    watch = FileWatch(str(file))
    assert watches(file) == 1
    del watch
    assert watches(file) == 0
