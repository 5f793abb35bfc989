# SPDX-License-Identifier: Apache-2.0
"""Small files, and what may stand in their place."""

import fcntl
import os
import socket
from pathlib import Path

import pytest

from dra_driver.errors import NotAFileError
from dra_driver.process.files import (
    make_folder,
    names_in,
    open_lock,
    put_file,
    read_file,
    remove_file,
    set_aside,
    write_file,
)
from tests.support.damage import WRONG_KINDS, aside_of


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert read_file(tmp_path / "a") == b"content"


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").symlink_to("a")
    assert read_file(tmp_path / "b") == b"content"


def test_a_file_that_is_missing_is_told_from_one_of_the_wrong_kind(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "a")


@pytest.mark.parametrize("kind", WRONG_KINDS)
class TestWrongKind:
    """Something else has the name of a file."""

    @pytest.mark.node
    def test_irregular_file_is_not_read(self, short_path: Path, kind: str) -> None:
        WRONG_KINDS[kind](short_path / "a")
        with pytest.raises(NotAFileError, match="a is not a regular file"):
            read_file(short_path / "a")

    @pytest.mark.node
    def test_a_file_takes_its_place(self, short_path: Path, kind: str) -> None:
        WRONG_KINDS[kind](short_path / "a")
        (short_path / "new").write_bytes(b"content")
        put_file(short_path / "new", short_path / "a")
        assert (short_path / "a").read_bytes() == b"content"
        assert not (short_path / "new").exists()

    @pytest.mark.node
    def test_irregular_file_is_removed(self, short_path: Path, kind: str) -> None:
        WRONG_KINDS[kind](short_path / "a")
        assert remove_file(short_path / "a")
        assert not os.path.lexists(short_path / "a")
        assert not remove_file(short_path / "a")

    @pytest.mark.node
    def test_lock_file_replaces_another_file(self, short_path: Path, kind: str) -> None:
        WRONG_KINDS[kind](short_path / "a")
        descriptors = [open_lock(short_path / "a") for _ in range(2)]
        fcntl.flock(descriptors[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptors[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        for one in descriptors:
            os.close(one)

    @pytest.mark.node
    def test_folder_replaces_another_file(self, short_path: Path, kind: str) -> None:
        if "directory" not in kind:
            WRONG_KINDS[kind](short_path / "a")
        make_folder(short_path / "a")
        make_folder(short_path / "a")
        assert (short_path / "a").is_dir()


def test_a_folder_takes_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    make_folder(tmp_path / "a")
    assert (tmp_path / "a").is_dir()
    assert aside_of(tmp_path / "a").read_bytes() == b"content"


def test_content_of_a_directory_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "precious").write_bytes(b"content")
    assert remove_file(tmp_path / "a")
    assert (aside_of(tmp_path / "a") / "precious").read_bytes() == b"content"


def test_an_empty_directory_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    set_aside(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_renamed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    with pytest.raises(OSError, match="No such file"):
        put_file(tmp_path / "a", tmp_path / "missing" / "a")


def test_a_file_is_exchanged_with_the_one_that_it_replaces(tmp_path: Path) -> None:
    for data in (b"first", b"second", b"third"):
        status = write_file(tmp_path / "a", data, tmp_path / "a.new", exchange=True)
        assert (tmp_path / "a").read_bytes() == data
        assert (tmp_path / "a").stat().st_ino == status.st_ino
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_directory_is_set_aside_by_an_exchange(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "precious").write_bytes(b"content")
    write_file(tmp_path / "a", b"new", tmp_path / "a.new", exchange=True)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (aside_of(tmp_path / "a.new") / "precious").read_bytes() == b"content"


@pytest.mark.node
def test_a_socket_that_is_served_is_not_waited_for(short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(short_path / "a"))
        server.listen()
        with pytest.raises(NotAFileError):
            read_file(short_path / "a")


def test_a_folder_that_is_made_at_this_moment_has_no_names(tmp_path: Path) -> None:
    class Made(type(tmp_path)):  # type: ignore[misc]
        """A folder that somebody makes after it was not there."""

        def is_dir(self) -> bool:
            self.mkdir()
            return True

    assert names_in(Made(tmp_path / "folder")) == []
