# SPDX-License-Identifier: Apache-2.0
"""A process in a container keeps a device open, and has a name with control characters, or hides it by a long path."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from kubeletplugin.host.openers import names_of, openers
from tests.support.isolated import require_namespaces

from .containers import container, said, tell

RENAMED = """
import sys
with open(sys.argv[1]) as device, open("/proc/self/comm", "wb", buffering=0) as name:
    name.write(b"\\x1b[2J\\nforged\\xff")
    print("opened")
    sys.stdin.readline()
"""


def test_the_name_of_a_process_is_shown_without_control_characters(tmp_path: Path) -> None:
    require_namespaces()
    folder, device = tmp_path / "container", tmp_path / "device"
    folder.mkdir()
    device.touch()
    with container(folder, RENAMED, str(device)) as attacker:
        assert said(attacker) == "opened"
        text = names_of(openers([device]))
        tell(attacker)
    assert "forged" in text
    assert text.isprintable()


def test_node_that_is_open_under_a_path_longer_than_the_kernel_tells_is_found(tmp_path: Path) -> None:
    """A container may make such a path to hide that it has the node open."""
    node, top = tmp_path / "nvidia0", tmp_path / "top"
    node.touch()
    top.mkdir()
    name = "x" * 250
    with contextlib.ExitStack() as stack:
        folder = os.open(top, os.O_RDONLY)
        for _ in range(4096 // len(name) + 1):
            stack.callback(os.close, folder)
            os.mkdir(name, dir_fd=folder)
            folder = os.open(name, os.O_RDONLY, dir_fd=folder)
        stack.callback(os.close, folder)
        os.link(node, "node", dst_dir_fd=folder)
        opened = os.open("node", os.O_RDONLY, dir_fd=folder)
        stack.callback(os.close, opened)
        with pytest.raises(OSError, match="File name too long"):
            Path(f"/proc/self/fd/{opened}").readlink()
        assert [opener.pid for opener in openers([node])] == [os.getpid()]
    shutil.rmtree(top)
