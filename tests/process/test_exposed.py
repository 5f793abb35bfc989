# SPDX-License-Identifier: Apache-2.0
"""Folders in which containers can write: what is put there, and how it is removed."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.process.exposed import Trash, folder_at, publish, remove_tree
from dra_driver.process.files import names_in

DEEP = 1500
"""More than the process may have open files, and than Python has frames."""


class Folders:
    """A folder of root's, and one that a container has."""

    def __init__(self, folder: Path) -> None:
        self.source, self.target = folder / "source", folder / "target"
        for path in (self.source, self.target):
            path.mkdir()
        self._listeners: list[socket.socket] = []

    def listen(self, path: Path) -> None:
        """Make a socket."""
        listener = socket.socket(socket.AF_UNIX)
        with folder_at(path.parent) as parent:
            listener.bind(f"/proc/self/fd/{parent}/{path.name}")
        listener.listen(1)
        self._listeners.append(listener)

    def publish(self, *, files: bool = True) -> None:
        """Show the first in the second."""
        with folder_at(self.source) as source, folder_at(self.target) as target:
            publish(source, target, files=files)

    def close(self) -> None:
        """Close the sockets."""
        for listener in self._listeners:
            listener.close()


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    made = Folders(tmp_path)
    yield made
    made.close()


def nested(folder: Path, depth: int) -> None:
    """Nest folders in a folder, each with a file."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
        os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))
    os.close(descriptor)


@pytest.mark.node
def test_published_socket_can_be_used(folders: Folders) -> None:
    folders.listen(folders.source / "control")
    folders.publish()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folders.target / "control"))


def test_published_pipe_is_the_same_pipe(folders: Folders) -> None:
    os.mkfifo(folders.source / "log")
    folders.publish()
    assert (folders.target / "log").samefile(folders.source / "log")


def test_published_file_is_a_copy_that_the_container_can_change_alone(folders: Folders) -> None:
    (folders.source / "pid").write_text("7\n")
    (folders.source / "pid").chmod(0o640)
    folders.publish()
    assert stat.S_IMODE((folders.target / "pid").stat().st_mode) == 0o640
    (folders.target / "pid").write_text("1\n")
    assert (folders.source / "pid").read_text() == "7\n"
    assert names_in(folders.source) == ["pid"]


def test_links_of_the_source_are_not_published(folders: Folders) -> None:
    (folders.source / "link").symlink_to("/etc")
    folders.publish()
    assert names_in(folders.target) == []


@pytest.mark.node
def test_folders_are_published_with_what_is_in_them(folders: Folders) -> None:
    (folders.source / "server/share").mkdir(parents=True)
    folders.listen(folders.source / "server/share/control")
    folders.publish()
    assert (folders.target / "server/share/control").is_socket()


@pytest.mark.node
@pytest.mark.parametrize(
    "kind", ["link to a file", "link to a folder", "broken link", "file", "folder", "pipe", "socket"]
)
def test_whatever_has_the_name_of_a_socket_is_replaced(folders: Folders, tmp_path: Path, kind: str) -> None:
    outside, shown = tmp_path / "outside", folders.target / "control"
    (outside / "kept").mkdir(parents=True)
    match kind:
        case "link to a file":
            (outside / "file").write_text("kept")
            shown.symlink_to(outside / "file")
        case "link to a folder":
            shown.symlink_to(outside)
        case "broken link":
            shown.symlink_to(outside / "missing")
        case "file":
            shown.write_text("")
        case "folder":
            (shown / "full").mkdir(parents=True)
        case "pipe":
            os.mkfifo(shown)
        case "socket":
            folders.listen(shown)
    before = sorted(names_in(outside))
    folders.listen(folders.source / "control")
    for _ in range(2):
        folders.publish(files=False)
    assert shown.samefile(folders.source / "control")
    assert sorted(names_in(outside)) == before


@pytest.mark.node
def test_link_in_place_of_a_folder_is_replaced_and_not_followed(folders: Folders, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (folders.target / "share").symlink_to(outside)
    (folders.source / "share").mkdir()
    folders.listen(folders.source / "share/control")
    folders.publish()
    assert (folders.target / "share/control").is_socket()
    assert names_in(outside) == []


@pytest.mark.node
def test_names_of_the_container_stay(folders: Folders) -> None:
    (folders.target / "own\nname").touch()
    folders.listen(folders.source / "control")
    folders.publish()
    assert sorted(names_in(folders.target)) == ["control", "own\nname"]


def test_trash_takes_a_folder_at_once_and_is_emptied_in_parts(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    for number in range(50):
        (full / str(number)).touch()
    trash = Trash(tmp_path / "trash")
    trash.take(full)
    assert not full.exists()
    assert not trash.empty(20)
    left = len(list((tmp_path / "trash").rglob("*")))
    assert 30 <= left <= 51
    while not trash.empty(20):
        assert len(list((tmp_path / "trash").rglob("*"))) < left
        left = len(list((tmp_path / "trash").rglob("*")))
    assert names_in(tmp_path / "trash") == []


def test_taking_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    trash = Trash(tmp_path / "trash")
    assert trash.empty(10)
    trash.take(tmp_path / "missing")
    assert trash.empty(10)


def test_deeply_nested_folders_are_removed(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    nested(full, DEEP)
    remove_tree(full)
    assert not full.exists()


def test_targets_of_links_stay(tmp_path: Path) -> None:
    outside, full = tmp_path / "outside", tmp_path / "full"
    (outside / "folder").mkdir(parents=True)
    (outside / "folder/file").touch()
    (full / "inner").mkdir(parents=True)
    for folder in (full, full / "inner"):
        (folder / "link").symlink_to(outside)
        (folder / "to-folder").symlink_to(outside / "folder")
    remove_tree(full)
    assert (outside / "folder/file").exists()


def test_folder_without_permissions_is_removed(tmp_path: Path) -> None:
    inner = tmp_path / "full/inner/deeper"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    for folder in (inner, inner.parent):
        folder.chmod(0)
    remove_tree(tmp_path / "full")
    assert not (tmp_path / "full").exists()


def test_link_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(NotADirectoryError), folder_at(tmp_path / "link"):
        pass
