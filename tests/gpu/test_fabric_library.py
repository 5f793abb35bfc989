# SPDX-License-Identifier: Apache-2.0
"""Fabric Manager's library: the layouts of its structures, and calls into a library of our own (nvfm_stub.c)."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.gpu import fabric_library
from dra_driver.gpu.fabric import FabricCode, FabricError, Partition
from dra_driver.gpu.fabric_library import LIBRARY, FabricLibrary, version_of
from tests.gpu.stub import COMPILER, needs_compiler

pytestmark = pytest.mark.node

STUB = Path(__file__).with_name("nvfm_stub.c")
FIRST, SECOND = Partition(4, (1, 2)), Partition(5, (3, 4))


@pytest.mark.parametrize(
    ("name", "size", "last", "offset"),
    [
        ("ConnectParams", 272, "address_type", 268),
        ("PartitionGpu", 128, "link_rate", 124),
        ("PartitionInfo", 2060, "gpus", 12),
        ("PartitionList", 131852, "partitions", 12),
        ("ActivatedList", 264, "ids", 8),
        ("FailedDevice", 372, "ports", 116),
        ("FailedDevices", 10428, "switches", 5964),
        ("UnsupportedPartition", 72, "physical_ids", 8),
        ("UnsupportedList", 4616, "partitions", 8),
    ],
)
def test_structures_have_the_sizes_of_the_guide(name: str, size: int, last: str, offset: int) -> None:
    structure = getattr(fabric_library, name)
    assert (ctypes.sizeof(structure), getattr(structure, last).offset) == (size, offset)
    assert version_of(structure(), 1) == size + (1 << 24)


class Node:
    """A driver root with a library of Fabric Manager, which runs. `defines` are for the library."""

    def __init__(self, root: Path, *defines: str) -> None:
        self.root = root
        self.socket = root / "run/nvidia-fabricmanager/socket"
        self.socket.parent.mkdir(parents=True)
        self.socket.touch()
        (root / "usr/lib64").mkdir(parents=True)
        self.defines = defines
        self.install()
        self.manager = FabricLibrary(root, self.socket, root / "proc", root / "sys")

    def install(self) -> None:
        """Install the library, in place of an earlier one."""
        assert COMPILER is not None
        built = self.root / "built.so"
        subprocess.run([COMPILER, "-std=c11", "-shared", "-fPIC", *self.defines, "-o", built, STUB], check=True)
        built.replace(self.root / "usr/lib64" / LIBRARY)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def refusal(call: Callable[..., object], *arguments: object) -> FabricCode:
    """The code that a call fails with."""
    with pytest.raises(FabricError) as raised:
        call(*arguments)
    return raised.value.code


@needs_compiler
def test_a_partition_is_activated_and_deactivated(node: Node) -> None:
    manager = node.manager
    assert manager.supported_partitions() == (FIRST, SECOND)
    manager.activate(4)
    assert [one.active for one in manager.supported_partitions()] == [True, False]
    assert refusal(manager.activate, 4) is FabricCode.IN_USE
    manager.deactivate(4)
    assert refusal(manager.deactivate, 4) is FabricCode.UNINITIALIZED
    assert refusal(manager.activate, 7) is FabricCode.BADPARAM
    manager.set_activated([5])
    assert [one.active for one in manager.supported_partitions()] == [False, True]
    manager.set_activated([])
    assert [one.active for one in manager.supported_partitions()] == [False, False]


@needs_compiler
def test_failures_are_read(node: Node) -> None:
    assert node.manager.failed_gpus() == {"GPU-0", "0000:3b:00.0", "10000:01:00.0"}
    assert node.manager.unsupported_partitions() == (Partition(2, (1, 2, 3, 4)),)


@needs_compiler
def test_a_code_that_is_unknown_is_told(node: Node) -> None:
    with pytest.raises(FabricError, match=r"fmActivateFabricPartition failed .* an unknown error, code -77"):
        node.manager.activate(99)


@needs_compiler
def test_the_library_of_an_older_driver_is_connected_in_its_way(tmp_path: Path) -> None:
    assert Node(tmp_path, "-DOLD").manager.supported_partitions() == (FIRST, SECOND)


@needs_compiler
def test_a_library_that_was_replaced_is_loaded_anew(node: Node) -> None:
    node.manager.activate(4)
    node.install()
    assert not any(one.active for one in node.manager.supported_partitions())  # the memory of another library
    (node.root / "empty").touch()
    (node.root / "empty").replace(node.root / "usr/lib64" / LIBRARY)
    with pytest.raises(FabricError, match="dlopen failed"):
        node.manager.activate(4)
    node.install()
    node.manager.activate(4)


@needs_compiler
def test_the_socket_tells_whether_there_is_a_fabric_manager_and_whether_it_is_another_one(node: Node) -> None:
    first = node.manager.identity
    other = node.socket.with_name("other")
    other.touch()
    other.replace(node.socket)
    assert node.manager.identity not in ("", first)
    node.socket.unlink()
    assert node.manager.identity == ""
    assert refusal(node.manager.supported_partitions) is FabricCode.CONNECTION_NOT_VALID
    remote = FabricLibrary(node.root, "10.0.0.1", node.root, node.root)
    assert remote.identity == "10.0.0.1"
    (node.root / "usr/lib64" / LIBRARY).unlink()
    assert remote.identity == node.manager.identity == ""


@pytest.mark.parametrize(
    ("file", "content", "there"),
    [
        ("proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information", b"", True),
        ("sys/class/infiniband/mlx5_0/device/vpd", b"\x82V0SW_MNG", True),
        ("sys/class/infiniband/mlx5_0/device/vpd", b"\x82V0adapter", False),
        ("proc/driver/nvidia/version", b"", False),
    ],
)
def test_switches_are_on_the_pci_bus_or_behind_a_bridge(tmp_path: Path, file: str, content: bytes, there: bool) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_bytes(content)
    manager = FabricLibrary(tmp_path, tmp_path / "socket", tmp_path / "proc", tmp_path / "sys")
    assert manager.has_switches() is there
