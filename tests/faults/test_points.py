# SPDX-License-Identifier: Apache-2.0
"""Points at which faults occur (tests/faults/points.py)."""

import sys
from pathlib import Path

import pytest

from .points import Points, Trigger, raise_killed

pytestmark = pytest.mark.unit


def test_profile_function_ends_with_the_watch_of_files(tmp_path: Path) -> None:
    """Otherwise all later tests of the process take twice the time."""
    before = sys.getprofile()
    points = Points(Trigger(), raise_killed)
    points.trigger.arm()
    with points.of_files(tmp_path):
        (tmp_path / "file").write_text("text")
    assert [name.split()[0] for name in points.names] == ["open", "write", "__exit__"]
    assert sys.getprofile() is before
