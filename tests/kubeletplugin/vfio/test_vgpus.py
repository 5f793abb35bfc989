# SPDX-License-Identifier: Apache-2.0
"""Claims for vGPUs: they are created for a claim and removed after it, and those of an administrator stay."""

import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.gpu.ownership import VgpuMarks
from dra_driver.gpu.vgpus import VgpuPlace
from kubeletplugin.hardware.targets import ClaimRef, PrepareError
from kubeletplugin.hardware.vfio import StuckError
from tests.gpu.test_vgpus import MIXED, VFIO, write_node
from tests.kubeletplugin.inside import ApiServer, Plugin
from tests.support.fuse import needs_fuse
from tests.support.kernel import Kernel
from tests.support.nodes import make_node
from tests.support.waiting import wait_for

pytestmark = needs_fuse

GPU, T4 = "0000:41:00.0", "T4-PCIE-16GB"
MDEV, MDEV_FUNCTIONS = "{framework: mdev}", "{framework: mdev, functions: 4}"
HOSTS = {
    "vfio": (VFIO, "L40S-PCIE-48GB", "gpu-0-vgpu-12q-1104-1", "gpu-0-vgpu-12q-1104-0"),
    "mdev": (MDEV, T4, "gpu-0-vgpu-4q-1102-1", "gpu-0-vgpu-4q-1102-0"),
    "mdev-functions": (MDEV_FUNCTIONS, "A30-PCIE-24GB", "gpu-0-vgpu-12q-1104-1", "gpu-0-vgpu-12q-1104-0"),
}
TEN = "b0e0d5b2-0000-4000-8000-00000000000a"


class Host:
    """A host of vGPUs with one GPU, and its plugin."""

    def __init__(self, folder: Path, kernel: Kernel, hardware: str) -> None:
        self.folder = folder
        self.kernel = kernel
        self.api = ApiServer()
        self._hardware = hardware
        self.plugin = self.another()

    def another(self) -> Plugin:
        """The next plugin process."""
        self.plugin = Plugin(self.folder, self.api, hardware=self._hardware, write_seconds=1.0)
        return self.plugin

    def vgpus(self) -> tuple[VgpuPlace, ...]:
        return self.kernel.vgpus.vgpus(GPU)

    def marks(self) -> frozenset[VgpuPlace]:
        return VgpuMarks(self.folder / "vfio/vgpus").all()

    def fails(self, claim: ClaimRef) -> str:
        """The error of preparing a claim, which leaves nothing."""
        with pytest.raises(PrepareError) as failed:
            self.plugin.lifecycle.prepare(claim)
        return str(failed.value)

    def write(self, file: str, text: str) -> None:
        """What an administrator writes below the folder of a function or mediated device."""
        (self.kernel.driver_root / "sys" / file).write_text(text)


@contextmanager
def a_host(folder: Path, host: str, board: str = "L40S-PCIE-48GB") -> Iterator[Host]:
    hardware = write_node(folder, host, board)
    make_node(folder / "node", hardware)
    kernel = Kernel(folder / "node")
    with kernel.running():
        yield Host(folder, kernel, hardware)


@pytest.mark.parametrize("kind", HOSTS)
def test_a_vgpu_exists_as_long_as_its_claim(tmp_path: Path, kind: str) -> None:
    host, board, device, other = HOSTS[kind]
    with a_host(tmp_path, host, board) as node:
        claims = [node.api.add([device]), node.api.add([other])]
        plans = [node.plugin.lifecycle.prepare(claim) for claim in claims]
        assert {one.target.place for plan in plans for one in plan.devices} == node.marks()  # type: ignore[union-attr]
        assert {(one.address, one.type_id, one.mdev) for one in node.vgpus()} == {
            (one.address, one.type_id, one.mdev) for one in node.marks()
        }
        nodes = node.plugin.nodes_of(claims[0])[device]
        assert [Path(one).parent for one in nodes] == [Path("/dev/vfio")]
        assert (node.kernel.dev / "vfio" / Path(nodes[0]).name).exists()
        node.plugin.lifecycle.prepare(claims[0])
        node.plugin.lifecycle.unprepare(claims[0])
        assert len(node.vgpus()) == len(node.marks()) == 1
        node.plugin.lifecycle.unprepare(claims[1])
        assert (node.vgpus(), node.marks()) == ((), frozenset())
        node.plugin.lifecycle.unprepare(claims[1])


def test_the_uuid_of_a_mediated_device_follows_from_claim_and_device(tmp_path: Path) -> None:
    with a_host(tmp_path, MDEV, T4) as node:
        claims = [node.api.add(["gpu-0-vgpu-4q-1102-0"]), node.api.add(["gpu-0-vgpu-4q-1102-1"])]
        first, second = ((node.plugin.lifecycle.prepare(one), node.vgpus())[1] for one in claims)
        assert uuid.UUID(first[0].mdev).version == 5
        assert len({one.mdev for one in second}) == 2
        node.plugin.lifecycle.unprepare(claims[0])
        node.plugin.lifecycle.prepare(claims[0])
        assert {one.mdev for one in node.vgpus()} == {one.mdev for one in second}


def test_a_vgpu_among_several_types_is_placed_where_it_was_allocated(tmp_path: Path) -> None:
    with a_host(tmp_path, MIXED) as node:
        large, small = node.api.add(["gpu-0-vgpu-24q-1106-24"]), node.api.add(["gpu-0-vgpu-8q-1103-16"])
        for claim in (large, small):
            node.plugin.lifecycle.prepare(claim)
        assert sorted(node.kernel.vgpus.params.values()) == ["vgpu-placement-id=16", "vgpu-placement-id=24"]
        overlapping = node.api.add(["gpu-0-vgpu-12q-1104-24"])
        assert "gpu-0-vgpu-24q-1106-24" in node.fails(overlapping)
        assert len(node.vgpus()) == 2


def test_all_vgpus_of_a_gpu_have_one_type(tmp_path: Path) -> None:
    with a_host(tmp_path, VFIO) as node:
        node.plugin.lifecycle.prepare(node.api.add(["gpu-0-vgpu-12q-1104-0"]))
        assert "gpu-0-vgpu-12q-1104-0" in node.fails(node.api.add(["gpu-0-vgpu-24q-1106-1"]))
        assert len(node.vgpus()) == 1


def test_a_container_gets_nothing_of_a_host_of_vgpus(tmp_path: Path) -> None:
    with a_host(tmp_path, VFIO) as node:
        assert "there is no device gpu-0 on node" in node.fails(node.api.add(["gpu-0"]))


# vGPUs of an administrator


def test_a_vgpu_of_an_administrator_is_used_and_stays(tmp_path: Path) -> None:
    with a_host(tmp_path, VFIO) as node:
        node.write("bus/pci/devices/0000:41:01.0/nvidia/current_vgpu_type", "1106")
        claim = node.api.add(["gpu-0-vgpu-24q-0000-41-01-0"])
        (device,) = node.plugin.lifecycle.prepare(claim).devices
        assert node.plugin.nodes_of(claim)[device.name]
        node.plugin.lifecycle.unprepare(claim)
        assert ([one.type_id for one in node.vgpus()], node.marks()) == ([1106], frozenset())
        node.write("bus/pci/devices/0000:41:01.0/nvidia/current_vgpu_type", "0")
        assert "there is no vGPU L40S-24Q 0000:41:01.0 any more" in node.fails(claim)


def test_a_mediated_device_of_an_administrator_is_used_and_stays(tmp_path: Path) -> None:
    with a_host(tmp_path, MDEV, T4) as node:
        node.write(f"bus/pci/devices/{GPU}/mdev_supported_types/nvidia-1102/create", TEN)
        claim = node.api.add([f"gpu-0-vgpu-4q-{TEN}"])
        node.plugin.lifecycle.prepare(claim)
        node.plugin.lifecycle.unprepare(claim)
        assert [one.mdev for one in node.vgpus()] == [TEN]


def test_a_function_that_an_administrator_took_meanwhile_is_not_touched(tmp_path: Path) -> None:
    with a_host(tmp_path, VFIO) as node:
        node.write("bus/pci/devices/0000:41:00.4/nvidia/current_vgpu_type", "1104")
        assert "somebody else has created a vGPU of type 1104 on 0000:41:00.4" in node.fails(
            node.api.add(["gpu-0-vgpu-12q-1104-0"])
        )
        assert ([one.type_id for one in node.vgpus()], node.marks()) == ([1104], frozenset())


@pytest.mark.parametrize("type_id", [1104, 1106])
def test_a_vgpu_that_an_administrator_creates_at_the_same_moment_is_not_removed(tmp_path: Path, type_id: int) -> None:
    with a_host(tmp_path, VFIO) as node:

        def first(_number: int, path: str, _text: str) -> None:
            node.kernel.strike = lambda *_: None
            node.kernel.vgpus.write(path, str(type_id))

        node.kernel.strike = first
        assert "the kernel refuses to write '1104'" in node.fails(node.api.add(["gpu-0-vgpu-12q-1104-0"]))
        assert ([one.type_id for one in node.vgpus()], node.marks()) == ([type_id], frozenset())


# What goes wrong


def test_a_type_that_no_longer_fits_is_not_tried(tmp_path: Path) -> None:
    with a_host(tmp_path, VFIO) as node:
        node.write("bus/pci/devices/0000:41:01.0/nvidia/current_vgpu_type", "1106")
        before = list(node.kernel.writes)
        assert "does not offer the type there" in node.fails(node.api.add(["gpu-0-vgpu-12q-1104-0"]))
        assert (node.kernel.writes, node.marks()) == (before, frozenset())


@pytest.mark.parametrize("kind", HOSTS)
def test_a_vgpu_that_a_machine_uses_is_removed_when_the_machine_has_ended(tmp_path: Path, kind: str) -> None:
    host, board, device, _ = HOSTS[kind]
    with a_host(tmp_path, host, board) as node:
        claim = node.api.add([device])
        node.plugin.lifecycle.prepare(claim)
        (vgpu,) = node.vgpus()
        opened = os.open(node.kernel.dev / "vfio" / Path(node.plugin.nodes_of(claim)[device][0]).name, os.O_RDONLY)
        assert f"(PID {os.getpid()}): the virtual machine still runs" in unprepared(node, claim)
        os.close(opened)
        node.kernel.vgpus.used.add(vgpu.mdev or vgpu.address)
        assert "Device or resource busy" in unprepared(node, claim)
        assert (len(node.vgpus()), len(node.marks())) == (1, 1)
        node.kernel.vgpus.used.clear()
        node.plugin.lifecycle.unprepare(claim)
        assert (node.vgpus(), node.marks()) == ((), frozenset())


def test_a_vgpu_that_was_lost_is_created_again(tmp_path: Path) -> None:
    with a_host(tmp_path, VFIO) as node:
        claim = node.api.add(["gpu-0-vgpu-12q-1104-0"])
        node.plugin.lifecycle.prepare(claim)
        node.plugin.stop()
        node.write("bus/pci/devices/0000:41:00.4/nvidia/current_vgpu_type", "0")
        node.another()
        assert [one.type_id for one in node.vgpus()] == [1104]
        node.plugin.lifecycle.unprepare(claim)
        assert (node.vgpus(), node.marks()) == ((), frozenset())


@pytest.mark.parametrize("kind", HOSTS)
def test_a_vgpu_without_a_record_is_removed(tmp_path: Path, kind: str) -> None:
    host, board, device, _ = HOSTS[kind]
    with a_host(tmp_path, host, board) as node:
        claim = node.api.add([device])
        node.plugin.lifecycle.prepare(claim)
        node.plugin.stop()
        next((tmp_path / "claims").iterdir()).unlink()
        node.another()
        wait_for(lambda: not (node.vgpus() or node.marks()), "nothing to be left")


def test_a_write_that_does_not_return_is_waited_for(tmp_path: Path) -> None:
    with a_host(tmp_path, MDEV, T4) as node:
        claim, released = node.api.add(["gpu-0-vgpu-4q-1102-0"]), threading.Event()
        node.kernel.strike = lambda *_: (released.wait(), None)[1]
        with pytest.raises(StuckError, match="the kernel does not finish writing"):
            node.plugin.lifecycle.prepare(claim)
        assert "an earlier change of" in unprepared(node, claim)
        released.set()
        wait_for(lambda: not unprepared(node, claim), "unprepare to succeed")
        assert (node.vgpus(), node.marks()) == ((), frozenset())


def unprepared(node: Host, claim: ClaimRef) -> str:
    """The error of unpreparing a claim."""
    try:
        node.plugin.lifecycle.unprepare(claim)
    except PrepareError as error:
        return str(error)
    return ""
