# SPDX-License-Identifier: Apache-2.0
"""Writing the file of --fix."""

from pathlib import Path

import pytest

from kubeletplugin.check.dropin import DropIn, remove, write
from kubeletplugin.errors import FixError

from .support import make_host

DROP_IN = DropIn("/etc/containerd/conf.d/99.toml", "version = 3\n", "systemctl restart containerd")


def test_the_file_says_who_wrote_it_and_how_to_undo_it(tmp_path: Path) -> None:
    host = make_host(tmp_path, {})
    write(host, DROP_IN)
    file = tmp_path / "etc/containerd/conf.d/99.toml"
    first, second, rest = file.read_text(encoding="utf-8").split("\n", 2)
    assert "dra-kubeletplugin check --fix" in first
    assert second == "# To undo: rm /etc/containerd/conf.d/99.toml && systemctl restart containerd"
    assert rest == "version = 3\n"
    assert file.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in file.parent.iterdir()] == ["99.toml"]


def test_a_file_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    host = make_host(tmp_path, {})
    write(host, DropIn(DROP_IN.path, "version = 2\n", "systemctl restart containerd"))
    write(host, DROP_IN)
    assert (tmp_path / "etc/containerd/conf.d/99.toml").read_text(encoding="utf-8").endswith("version = 3\n")


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    host = make_host(tmp_path, {DROP_IN.path: "mine = true\n"})
    with pytest.raises(FixError, match="was not written by this command"):
        write(host, DROP_IN)
    assert (tmp_path / "etc/containerd/conf.d/99.toml").read_text(encoding="utf-8") == "mine = true\n"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    host = make_host(tmp_path, {"/etc/containerd": "a file"})
    with pytest.raises(FixError, match=r"/etc/containerd/conf.d/99.toml cannot be written: (Not a dir|File exists)"):
        write(host, DROP_IN)


@pytest.mark.parametrize("with_folder", [True, False])
def test_removed_file_takes_along_the_folder_that_was_made_for_it(tmp_path: Path, with_folder: bool) -> None:
    host = make_host(tmp_path, {})
    write(host, DROP_IN)
    remove(host, DROP_IN, with_folder=with_folder)
    assert not (tmp_path / "etc/containerd/conf.d/99.toml").exists()
    assert (tmp_path / "etc/containerd/conf.d").exists() is not with_folder
