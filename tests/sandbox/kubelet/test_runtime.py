# SPDX-License-Identifier: Apache-2.0
"""What becomes of a container when edits are applied to it."""

import os
import stat
from pathlib import Path

import pytest

from dra_driver.sandbox.kubelet import (
    CdiError,
    ContainerSpec,
    DeviceNode,
    DeviceStat,
    Hook,
    Mount,
    OciDevice,
    stat_device,
    stat_stand_in,
)
from dra_driver.sandbox.kubelet.cdi import Edits
from dra_driver.sandbox.kubelet.runtime import apply, problems_on_host


def host(path: str) -> DeviceStat:
    """A host on which every path is the character device 195:7."""
    return DeviceStat("c", 195, 7)


def no_host(path: str) -> DeviceStat:
    """A host that must not be asked."""
    raise AssertionError(path)


def test_a_later_variable_of_the_same_name_wins() -> None:
    base = ContainerSpec(env=("PATH=/bin", "A=base"))
    assert apply(Edits(env=("A=1", "B=2", "A=3")), base, no_host).env == ("PATH=/bin", "A=3", "B=2")


@pytest.mark.parametrize(
    ("node", "device"),
    [
        (DeviceNode("/dev/a"), OciDevice("/dev/a", "/dev/a", "c", 195, 7, "rwm")),
        (DeviceNode("/dev/a", "/host/a"), OciDevice("/dev/a", "/host/a", "c", 195, 7, "rwm")),
        (DeviceNode("/dev/a", type="c"), OciDevice("/dev/a", "/dev/a", "c", 195, 7, "rwm")),
        (
            DeviceNode("/dev/a", permissions="rw", file_mode=0o666, uid=1, gid=2),
            OciDevice("/dev/a", "/dev/a", "c", 195, 7, "rw", 0o666, 1, 2),
        ),
    ],
)
def test_what_a_device_node_leaves_open_is_read_from_the_host(node: DeviceNode, device: OciDevice) -> None:
    assert apply(Edits(device_nodes=(node,)), ContainerSpec(), host).devices == (device,)


@pytest.mark.parametrize(
    ("node", "device"),
    [
        (
            DeviceNode("/dev/a", type="c", major=195, minor=0),
            OciDevice("/dev/a", "/dev/a", "c", 195, 0, "rwm"),
        ),
        (DeviceNode("/run/p", type="p"), OciDevice("/run/p", "/run/p", "p", 0, 0, "")),
    ],
)
def test_a_device_node_with_type_and_major_need_not_exist(node: DeviceNode, device: OciDevice) -> None:
    assert apply(Edits(device_nodes=(node,)), ContainerSpec(), no_host).devices == (device,)


def test_a_device_of_another_type_than_promised_is_an_error() -> None:
    with pytest.raises(CdiError, match="host type mismatch"):
        apply(Edits(device_nodes=(DeviceNode("/dev/a", type="b"),)), ContainerSpec(), host)


def test_the_last_device_or_mount_of_a_path_is_the_one() -> None:
    edits = Edits(
        device_nodes=(DeviceNode("/dev/a", "/host/1"), DeviceNode("/dev/a", "/host/2")),
        mounts=(Mount("/1", "/m"), Mount("/2", "/m")),
    )
    result = apply(edits, ContainerSpec(mounts=(Mount("/0", "/m"),)), host)
    assert [device.host_path for device in result.devices] == ["/host/2"]
    assert [mount.host_path for mount in result.mounts] == ["/2"]


def test_mounts_are_sorted_by_depth_and_otherwise_keep_their_order() -> None:
    edits = Edits(mounts=tuple(Mount("/s", path) for path in ("/a/b/c", "/z", "/a/b/", "/y/./x")))
    paths = [mount.container_path for mount in apply(edits, ContainerSpec(), no_host).mounts]
    assert paths == ["/z", "/a/b/", "/y/./x", "/a/b/c"]


def test_group_zero_is_not_added() -> None:
    assert apply(Edits(additional_gids=(0, 7, 7)), ContainerSpec(), no_host).additional_gids == (7,)


def test_device_nodes_are_told_from_other_files(tmp_path: Path) -> None:
    ordinary, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    ordinary.touch()
    link.symlink_to("/dev/null")
    os.mkfifo(pipe)
    assert stat_device("/dev/null") == DeviceStat("c", 1, 3)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat_device(str(pipe)).type == "p"
    for path, error in ((ordinary, "not a device node"), (link, "not a device node"), (tmp_path / "x", "no such file")):
        with pytest.raises(CdiError, match=f'failed to stat CDI host device "{path}": {error}'):
            stat_device(str(path))


def test_an_ordinary_file_may_stand_for_a_device_where_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert stat_stand_in(str(tmp_path / "nvidia0")) == DeviceStat("c", 0, 0)
    assert stat_stand_in("/dev/null") == DeviceStat("c", 1, 3)
    with pytest.raises(CdiError, match="no such file"):
        stat_stand_in(str(tmp_path / "nvidia1"))


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
    assert problems_on_host(apply(good, ContainerSpec(), no_host)) == ()
    assert problems_on_host(apply(bad, ContainerSpec(), no_host)) == (
        f'error mounting "{tmp_path}/gone" to rootfs at "/gone": no such file or directory',
        f'error running createContainer hook "{tmp_path}/lib": no such program',
    )
