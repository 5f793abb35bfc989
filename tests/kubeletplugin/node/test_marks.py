# SPDX-License-Identifier: Apache-2.0
"""Marks of modes and settings: the value that was found first is kept, in the names that other versions read."""

from pathlib import Path

import pytest

from kubeletplugin.kinds.mig.marks import ModeMark, ModeMarks
from kubeletplugin.kinds.settings.marks import SettingMark, SettingMarks

UUID, OTHER_UUID = "GPU-0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e00", "GPU-1f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e00"


@pytest.mark.parametrize(("original", "file"), [(True, f"{UUID}_on"), (False, f"{UUID}_off")])
def test_mark_of_a_mode_is_read_until_it_is_cleared(tmp_path: Path, original: bool, file: str) -> None:
    marks, other = ModeMarks(tmp_path), ModeMark(OTHER_UUID, original=True)
    marks.set(ModeMark(UUID, original))
    assert [path.name for path in tmp_path.iterdir()] == [file]
    marks.set(other)
    assert set(marks.all()) == {ModeMark(UUID, original), other}
    assert marks.get(UUID) == ModeMark(UUID, original)
    marks.clear(UUID)
    assert marks.get(UUID) is None
    assert marks.all() == (other,)


def test_mark_of_a_mode_keeps_the_original_mode(tmp_path: Path) -> None:
    marks = ModeMarks(tmp_path)
    marks.set(ModeMark(UUID, original=True))
    marks.set(ModeMark(UUID, original=False))
    assert marks.all() == (ModeMark(UUID, original=True),)


def test_mark_of_a_setting_is_read_until_it_is_cleared(tmp_path: Path) -> None:
    marks, other = SettingMarks(tmp_path), SettingMark(OTHER_UUID, 2, 0)
    marks.set(SettingMark(UUID, 1, 3))
    assert [path.name for path in tmp_path.iterdir()] == [f"{UUID}_1_3"]
    marks.set(other)
    assert marks.all() == (SettingMark(UUID, 1, 3), other)
    assert marks.get(UUID) == SettingMark(UUID, 1, 3)
    marks.clear(UUID)
    assert not marks.has(UUID)
    assert marks.all() == (other,)


def test_mark_of_a_setting_keeps_the_previous_value(tmp_path: Path) -> None:
    marks = SettingMarks(tmp_path)
    marks.set(SettingMark(UUID, 1, 3))
    marks.set(SettingMark(UUID, 3, 2))
    assert marks.all() == (SettingMark(UUID, 1, 2),)
    assert [path.name for path in tmp_path.iterdir()] == [f"{UUID}_1_2"]


def test_first_of_two_marks_of_a_setting_counts_after_a_kill(tmp_path: Path) -> None:
    marks = SettingMarks(tmp_path)
    for wanted in (2, 3):
        (tmp_path / f"{UUID}_1_{wanted}").touch()
    assert marks.all() == (marks.get(UUID),)
    marks.clear(UUID)
    assert marks.all() == ()
