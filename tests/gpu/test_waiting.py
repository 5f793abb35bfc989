# SPDX-License-Identifier: Apache-2.0
"""Waiting for a file of a simulated node: it would last for an hour, and ends at once."""

import os
from pathlib import Path

import pytest

from dra_driver.gpu.simulation.access import FileWatch

LONG = 3600.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "events"
    file.touch()
    return file


def test_it_ends_when_the_file_is_written_or_touched_also_before(file: Path) -> None:
    watch = FileWatch(str(file))
    with file.open("a") as opened:
        opened.write("something")
    watch.wait(LONG)
    os.utime(file)
    watch.wait(LONG)


def test_without_a_watch_it_is_short(tmp_path: Path) -> None:
    FileWatch(str(tmp_path / "none")).wait(LONG)


def test_a_watch_that_nobody_has_any_more_holds_no_descriptor(file: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    watch = FileWatch(str(file))
    assert len(set(Path("/proc/self/fd").iterdir()) - before) == 1
    del watch
    assert set(Path("/proc/self/fd").iterdir()) == before
