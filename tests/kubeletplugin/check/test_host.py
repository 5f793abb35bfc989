# SPDX-License-Identifier: Apache-2.0
"""The host's files, seen below another folder."""

import os
import stat
from pathlib import Path

import pytest

from kubeletplugin.check.host import Folder, Host, Unreadable

from .support import make_host


def test_absolute_links_stay_on_the_host(tmp_path: Path) -> None:
    host = make_host(tmp_path, {"/run/cdi/a.json": "{}"})
    assert host.read("/var/run/cdi/a.json") == "{}"
    assert host.here("/var/run/cdi") == tmp_path / "run/cdi"


@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        ("/var/run/cdi", "/run/cdi"),  # not there yet, below a link
        ("/run//cdi/../cdi", "/run/cdi"),
        ("/", "/"),
        ("/nothing/like/it", "/nothing/like/it"),
    ],
)
def test_a_path_is_the_same_by_whichever_way_it_is_written(tmp_path: Path, path: str, canonical: str) -> None:
    assert make_host(tmp_path, {}).canonical(path) == canonical


def test_a_missing_file_is_none_and_one_that_is_no_text_tells_why(tmp_path: Path) -> None:
    host = make_host(tmp_path, {"/etc/file": "x"})
    assert host.read("/etc/missing") is None
    assert host.read("/etc/file/below") is None
    assert host.read("/etc") == Unreadable("/etc", "Is a directory")
    (tmp_path / "etc/binary").write_bytes(b"ab\xff")
    assert str(host.read("/etc/binary")) == "/etc/binary cannot be read: not UTF-8 at byte 2"
    (tmp_path / "etc/huge").write_bytes(b" " * (5 << 20))
    assert host.read("/etc/huge") == Unreadable("/etc/huge", "larger than 4 MiB")


def test_entries_of_a_folder_are_sorted(tmp_path: Path) -> None:
    host = make_host(tmp_path, {"/etc/d/b": "", "/etc/d/a": ""})
    assert host.entries("/etc/d") == ["/etc/d/a", "/etc/d/b"]
    assert host.entries("/etc/none") == []


def test_descriptor_is_that_of_the_file_below_linked_folders(tmp_path: Path) -> None:
    host = make_host(tmp_path, {"/run/file": "text"})
    descriptor = host.descriptor("/var/run/file")
    try:
        assert os.path.samestat(os.fstat(descriptor), (tmp_path / "run/file").stat())
    finally:
        os.close(descriptor)


def test_descriptor_of_a_link_is_that_of_the_link(tmp_path: Path) -> None:
    host = make_host(tmp_path, {})
    (tmp_path / "run/link").symlink_to("/etc/passwd")
    descriptor = host.descriptor("/run/link")
    try:
        assert stat.S_ISLNK(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def test_a_folder_tells_whether_files_can_be_made_in_it(tmp_path: Path) -> None:
    host = make_host(tmp_path, {"/etc/file": ""})
    assert host.folder("/run") == Folder("/run", exists=True)
    assert host.folder("/missing") == Folder("/missing", exists=False)
    assert host.folder("/etc/file") == Folder("/etc/file", exists=False, problem="not a folder")


def test_a_folder_of_somebody_else_is_not_writable(tmp_path: Path) -> None:
    host = make_host(tmp_path, {})
    (tmp_path / "run").chmod(0o555)
    if os.access(tmp_path / "run", os.W_OK):
        pytest.skip("this user may write everywhere")
    assert host.folder("/run").problem == "not writable for this process"


def test_only_the_hosts_own_root_is_its_own() -> None:
    assert Host(Path("/")).is_own
    assert not Host(Path("/run")).is_own
