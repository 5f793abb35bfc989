# SPDX-License-Identifier: Apache-2.0
"""The stored state of a simulated node, which several processes read and change."""

from pathlib import Path

import pytest

from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.simulated.store import StateFolder, SystemState

UNSTORABLE = Fault("nvmlInitWithFlags", seconds=object())  # type: ignore[arg-type]


def made(path: Path) -> StateFolder:
    """A folder as a new node has it."""
    store = StateFolder(path)
    store.create()
    store.write_system(SystemState("first"))
    return store


def test_changes_of_one_folder_are_read_through_another(tmp_path: Path) -> None:
    writer, reader = made(tmp_path), StateFolder(tmp_path)
    seen = [reader.read_system().identity]
    for identity in ("second", "third"):
        writer.write_system(SystemState(identity))
        seen.append(reader.read_system().identity)
    assert seen == ["first", "second", "third"]


def test_state_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    reader = made(tmp_path)
    assert reader.read_system_text() is reader.read_system_text()


def test_change_that_was_broken_off_hides_no_later_change(tmp_path: Path) -> None:
    writer, reader = made(tmp_path), StateFolder(tmp_path)
    assert reader.read_system().identity == "first"
    with pytest.raises(AttributeError):
        writer.write_system(SystemState("broken off", faults=[UNSTORABLE]))
    assert reader.read_system().identity == "first"
    writer.write_system(SystemState("second"))
    assert reader.read_system().identity == "second"
