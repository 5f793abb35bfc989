# SPDX-License-Identifier: Apache-2.0
"""What becomes of a container when edits are applied to it."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.sandbox.kubelet import ContainerSpec
from dra_driver.sandbox.kubelet.cdi import CdiError, DeviceNode, Edits, Hook, Mount
from dra_driver.sandbox.kubelet.runtime import apply, problems_on_host, stat_device


def applied(edits: Edits) -> ContainerSpec:
    return apply(edits, {}, plain_files=False)


def test_a_later_variable_of_the_same_name_wins() -> None:
    found = apply(Edits(env=("A=1", "B=2", "A=3=4")), {"PATH": "/bin", "A": "base"}, plain_files=False)
    assert found.env == {"PATH": "/bin", "A": "3=4", "B": "2"}


NULL = DeviceNode("/dev/null", "/dev/null", "c", 1, 3)


@pytest.mark.parametrize(
    ("node", "device"),
    [
        (DeviceNode("/dev/null"), NULL),
        (DeviceNode("/dev/a", "/dev/null"), replace(NULL, path="/dev/a")),
        (DeviceNode("/dev/null", type="c"), NULL),
        (
            DeviceNode("/dev/null", permissions="rw", file_mode=0o666, uid=1, gid=2),
            replace(NULL, permissions="rw", file_mode=0o666, uid=1, gid=2),
        ),
    ],
)
def test_absent_numbers_of_a_device_node_are_read_from_the_host(node: DeviceNode, device: DeviceNode) -> None:
    assert applied(Edits(device_nodes=(node,))).devices == (device,)


@pytest.mark.parametrize(
    "node",
    [DeviceNode("/dev/a", "/dev/a", type="c", major=195, minor=0), DeviceNode("/run/p", "/run/p", type="p")],
)
def test_a_device_node_with_type_and_major_need_not_exist(node: DeviceNode) -> None:
    assert applied(Edits(device_nodes=(replace(node, host_path=""),))).devices == (node,)


def test_a_device_of_another_type_than_promised_is_an_error() -> None:
    with pytest.raises(CdiError, match="host type mismatch"):
        applied(Edits(device_nodes=(DeviceNode("/dev/null", type="b"),)))


def test_the_last_device_or_mount_of_a_path_is_the_one() -> None:
    edits = Edits(
        device_nodes=(DeviceNode("/dev/a", "/dev/zero"), DeviceNode("/dev/a", "/dev/null")),
        mounts=(Mount("/1", "/m"), Mount("/2", "/m")),
    )
    result = applied(edits)
    assert [device.host_path for device in result.devices] == ["/dev/null"]
    assert [mount.host_path for mount in result.mounts] == ["/2"]


def test_device_nodes_are_told_from_other_files(tmp_path: Path) -> None:
    ordinary, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    ordinary.touch()
    link.symlink_to("/dev/null")
    os.mkfifo(pipe)
    assert stat_device("/dev/null", plain_files=False) == ("c", 1, 3)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat_device(str(pipe), plain_files=False)[0] == "p"
    for path, error in ((ordinary, "not a device node"), (link, "not a device node"), (tmp_path / "x", "no such file")):
        with pytest.raises(CdiError, match=f'failed to stat CDI host device "{path}": {error}'):
            stat_device(str(path), plain_files=False)


def test_an_ordinary_file_may_stand_for_a_device_where_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert stat_device(str(tmp_path / "nvidia0"), plain_files=True) == ("c", 0, 0)
    assert stat_device("/dev/null", plain_files=True) == ("c", 1, 3)
    with pytest.raises(CdiError, match="no such file"):
        stat_device(str(tmp_path / "nvidia1"), plain_files=True)


def test_mounts_and_hooks_have_to_be_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "lib").touch()
    (tmp_path / "hook").touch(mode=0o755)
    good = Edits(
        mounts=(Mount(str(tmp_path / "lib"), "/lib"), Mount("tmpfs", "/tmp/x", type="tmpfs")),
        hooks=(Hook("createContainer", str(tmp_path / "hook")),),
    )
    bad = Edits(
        mounts=(Mount(str(tmp_path / "gone"), "/gone"),), hooks=(Hook("createContainer", str(tmp_path / "lib")),)
    )
    assert problems_on_host(applied(good)) == ()
    assert problems_on_host(applied(bad)) == (
        f'error mounting "{tmp_path}/gone" to rootfs at "/gone": no such file or directory',
        f'error running createContainer hook "{tmp_path}/lib": no such program',
    )
