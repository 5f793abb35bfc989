# SPDX-License-Identifier: Apache-2.0
"""The SELinux labels of folders that containers use. A kernel without SELinux stores labels, but does not use them."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from kubeletplugin.containers.cdi import Root
from kubeletplugin.features.mps.memory import shared_memory_folder
from kubeletplugin.features.mps.program import Program
from kubeletplugin.features.mps.protocol2 import Protocol2
from kubeletplugin.features.mps.protocol3 import Protocol3
from kubeletplugin.features.mps.selinux import LABEL, let_containers_use
from kubeletplugin.features.mps.shares import NODE_DAEMON, MpsShare
from tests.support.logs import records_of
from tests.support.nodes import make_node

SERVER = "s0123456789"
NOBODY = 65534


def label_of(path: Path) -> bytes:
    """The label of a folder, or nothing."""
    try:
        return os.getxattr(path, LABEL).rstrip(b"\0")
    except OSError:
        return b""


def set_label(path: Path, label: bytes) -> None:
    """Give a folder a label."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        os.setxattr(path, LABEL, label)
    except OSError as error:
        pytest.skip(f"labels cannot be stored: {error.strerror}")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (b"system_u:object_r:container_var_lib_t:s0\0", b"system_u:object_r:container_file_t:s0"),
        (b"unconfined_u:object_r:tmpfs_t:s0-s0:c0.c1023", b"unconfined_u:object_r:container_file_t:s0-s0:c0.c1023"),
        (b"system_u:object_r:container_file_t:s0:c1,c2\0", b"system_u:object_r:container_file_t:s0:c1,c2"),
        (b"system_u:object_r:var_lib_t", b"system_u:object_r:container_file_t"),
    ],
    ids=["kubelet's", "categories", "already", "a policy without levels"],
)
def test_only_the_type_of_a_label_is_replaced(tmp_path: Path, found: bytes, wanted: bytes) -> None:
    set_label(tmp_path, found)
    for _ in range(2):
        let_containers_use(tmp_path)
        assert label_of(tmp_path) == wanted


def test_without_selinux_a_folder_gets_no_label(tmp_path: Path) -> None:
    if label_of(tmp_path):
        pytest.skip("this machine has SELinux")
    let_containers_use(tmp_path)
    assert label_of(tmp_path) == b""


def test_a_policy_that_refuses_the_label_is_logged_and_does_not_stop_the_daemon(
    short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    set_label(short_path, b"system_u:object_r:local_t:s0")
    short_path.chmod(0o755)
    caller = os.geteuid()
    os.seteuid(NOBODY)  # who may not change labels
    try:
        let_containers_use(short_path)
    finally:
        os.seteuid(caller)
    (record,) = records_of(caplog, "kubeletplugin.features.mps")
    text = f"SELinux label system_u:object_r:container_file_t:s0 of {short_path} cannot be set: Operation not permitted"
    assert text in record.getMessage()


@pytest.fixture
def labelled(short_path: Path) -> Path:
    """A node whose folders for MPS exist, with the labels that they get on a node with SELinux."""
    for folder in (f"mps/{SERVER}/pipe", f"mps/{NODE_DAEMON}/pipe"):
        set_label(short_path / folder, b"system_u:object_r:container_var_lib_t:s0")
    set_label(shared_memory_folder(short_path / "shm", SERVER), b"system_u:object_r:tmpfs_t:s0")
    return short_path


@pytest.mark.node
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_daemon_starts_with_folders_that_containers_may_use(labelled: Path, protocol: int) -> None:
    node = make_node(labelled / "node", "l40sx4")
    program = Program(Root(node.node.driver_root), private=False)
    files = labelled / "mps"
    served = Protocol2(program, files, labelled / "shm") if protocol == 2 else Protocol3(program, files)
    share = MpsShare(protocol, (node.nvml.uuid(node.nvml.device_by_index(0)),))
    try:
        served.serve(SERVER, {"a": share})
        folders = [files / NODE_DAEMON / "pipe"]
        if protocol == 2:
            folders = [files / SERVER / "pipe", shared_memory_folder(labelled / "shm", SERVER)]
        assert {label_of(folder) for folder in folders} == {b"system_u:object_r:container_file_t:s0"}
    finally:
        with suppress(OSError):
            served.end(SERVER)
