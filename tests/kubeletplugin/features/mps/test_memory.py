# SPDX-License-Identifier: Apache-2.0
"""The shared memory of groups: a folder or a tmpfs of the driver, in a folder in which only root can create names."""

import os
import stat
from pathlib import Path

import pytest

from dra_driver.errors import MpsError
from kubeletplugin.features.mps.memory import SharedMemory, shared_memory_folder
from kubeletplugin.features.mps.shares import trash_in
from tests.support.isolated import isolated

pytestmark = pytest.mark.node

SERVER = "s0123456789"

MOUNTED = """
import sys
from pathlib import Path
from kubeletplugin.features.mps.memory import SharedMemory
from kubeletplugin.features.mps.shares import trash_in

folder = Path(sys.argv[1])
memory = SharedMemory(folder / "memory", True, trash_in(folder))

def mounts():
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split(" - ")[1].split()[:2] for line in lines if f" {folder}/memory/" in line]
"""
"""A program in a mount namespace of its own."""


@pytest.fixture
def memory(tmp_path: Path) -> SharedMemory:
    return SharedMemory(tmp_path / "memory", False, trash_in(tmp_path))


def test_folder_of_a_group_can_be_written_by_every_user(memory: SharedMemory) -> None:
    for _ in range(2):
        path = memory.provide(SERVER)
    assert path == shared_memory_folder(memory.folder, SERVER)
    assert stat.S_IMODE(path.stat().st_mode) == 0o1777
    assert not stat.S_IMODE(memory.folder.stat().st_mode) & 0o022


def test_discarded_folder_is_gone_at_once_and_can_be_made_again(memory: SharedMemory) -> None:
    path = memory.provide(SERVER)
    (path / "data").write_text("data")
    for _ in range(2):
        memory.discard(SERVER)
        assert not path.exists()
    assert list(memory.provide(SERVER).iterdir()) == []


def test_folder_in_which_others_can_create_names_is_refused(memory: SharedMemory) -> None:
    memory.folder.mkdir(mode=0o700)
    memory.folder.chmod(0o1777)
    with pytest.raises(MpsError, match=r"others than root can create names in .*--shared-memory-directory-path"):
        memory.provide(SERVER)
    assert list(memory.folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "file", "folder of another user"])
def test_foreign_file_is_refused_and_stays(memory: SharedMemory, tmp_path: Path, kind: str) -> None:
    outside, path = tmp_path / "outside", shared_memory_folder(memory.folder, SERVER)
    outside.mkdir(mode=0o700)
    memory.folder.mkdir()
    match kind:
        case "link":
            path.symlink_to(outside)
        case "file":
            path.touch()
        case "folder of another user":
            if os.geteuid() != 0:
                pytest.skip("making files of other users takes root")
            path.mkdir()
            os.chown(path, 65534, 65534)
    for verb in (memory.provide, memory.discard):
        with pytest.raises(MpsError, match=f"{path} was not made by this driver"):
            verb(SERVER)
    assert os.path.lexists(path)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o700


def test_mounted_memory_is_a_tmpfs_that_is_mounted_once_and_ends_with_the_group(tmp_path: Path) -> None:
    text = """
for _ in range(2):
    path = memory.provide("s0123456789")
assert mounts() == [["tmpfs", "dra-mps"]], mounts()
assert oct(path.stat().st_mode)[-4:] == "1777"
(path / "data").write_text("data")
for _ in range(2):
    memory.discard("s0123456789")
assert (mounts(), list((folder / "memory").iterdir())) == ([], [])
assert not (folder / "removed").exists()
"""
    isolated(MOUNTED + text, str(tmp_path), propagation="shared")


def test_next_process_uses_what_an_earlier_one_has_mounted(tmp_path: Path) -> None:
    text = """
(memory.provide("s0123456789") / "data").write_text("data")
again = SharedMemory(folder / "memory", True, trash_in(folder))
assert (again.provide("s0123456789") / "data").read_text() == "data"
again.discard("s0123456789")
assert mounts() == []
"""
    isolated(MOUNTED + text, str(tmp_path), propagation="shared")


def test_mount_of_others_is_refused_and_stays(tmp_path: Path) -> None:
    text = """
import subprocess
path = folder / "memory/dra-mps-s0123456789"
path.mkdir(parents=True)
subprocess.run(["mount", "-t", "tmpfs", "other", str(path)], check=True)
for verb in (memory.provide, memory.discard):
    try:
        verb("s0123456789")
    except Exception as error:
        assert "was not made by this driver: tmpfs other is mounted there" in str(error), error
    else:
        raise AssertionError(verb)
assert mounts() == [["tmpfs", "other"]]
"""
    isolated(MOUNTED + text, str(tmp_path), propagation="shared")


def test_mount_that_the_node_would_not_see_is_refused_and_undone(tmp_path: Path) -> None:
    text = """
try:
    memory.provide("s0123456789")
except Exception as error:
    assert "would not be visible on the node: set mountPropagation to Bidirectional" in str(error), error
else:
    raise AssertionError
assert (mounts(), list((folder / "memory").iterdir())) == ([], [])
"""
    isolated(MOUNTED + text, str(tmp_path), propagation="private")
