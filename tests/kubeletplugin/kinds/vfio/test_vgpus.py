# SPDX-License-Identifier: Apache-2.0
"""Claims for vGPUs: they are created for a claim and removed after it, and those of an administrator stay."""

import json
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.devices import VgpuDevice, device_targets
from dra_driver.gpu.ownership import VgpuMarks
from dra_driver.gpu.vgpus import VgpuPlace, existing_vgpus
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from dra_driver.kube.resource.codec import V1, decode_claim
from kubeletplugin.claims.metadata import ClaimMetadata
from kubeletplugin.claims.model import ClaimRef, Record, State
from kubeletplugin.claims.records import decode, encode
from kubeletplugin.claims.specs import ClaimSpecs
from kubeletplugin.containers.common import CommonSpec
from kubeletplugin.containers.metadata import MetadataFiles
from kubeletplugin.drivers import gpu_driver
from kubeletplugin.errors import PrepareError, StuckError
from kubeletplugin.kinds.vgpu import VgpuKind
from kubeletplugin.node.node import Node
from tests.gpu.test_vgpus import MIXED, VFIO, write_node
from tests.kubeletplugin.inside import QUICK, RUNNING, ApiServer, Plugin
from tests.support.claims import allocated_claim
from tests.support.fuse import needs_fuse
from tests.support.kernel import Kernel
from tests.support.kubevirt import device_of, plugin_devices
from tests.support.nodes import make_node
from tests.support.plans import make_plan
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.node, needs_fuse]

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

    def __init__(self, folder: Path, kernel: Kernel, hardware: str, specs: type[ClaimSpecs] = ClaimSpecs) -> None:
        self.folder = folder
        self._specs = specs
        self.times = QUICK
        self.kernel = kernel
        self.api = ApiServer()
        self._hardware = hardware
        self.plugin = self.another()

    def another(self) -> Plugin:
        """The next plugin process."""
        hardware = self._hardware
        self.plugin = Plugin(self.folder, self.api, hardware=hardware, specs=self._specs, times=self.times)
        return self.plugin

    def vgpus(self) -> tuple[VgpuPlace, ...]:
        return self.kernel.vgpus.vgpus(GPU)

    def marks(self) -> frozenset[VgpuPlace]:
        return frozenset(VgpuMarks(self.folder / "vfio/vgpus").all())

    def fails(self, claim: ClaimRef) -> str:
        """The error of preparing a claim, which leaves nothing."""
        with pytest.raises(PrepareError) as failed:
            self.plugin.engine.prepare(claim)
        return str(failed.value)

    def write(self, file: str, text: str) -> None:
        """What an administrator writes below the folder of a function or mediated device."""
        (self.kernel.driver_root / "sys" / file).write_text(text)


class WithMetadata(ClaimSpecs):
    """Specs with metadata files, of devices that are not published any more."""

    def __init__(self, node: Node, common: CommonSpec) -> None:
        def fetch(ref: ClaimRef) -> ResourceClaim:
            return next(one.api.fetch(ref) for one in RUNNING if one.place is node)

        files = MetadataFiles(node.folders.metadata)
        super().__init__(node, common, ClaimMetadata(files, lambda _: {}, fetch, enabled=True))


def vgpus_of(record: Record) -> list[VgpuKind]:
    """The vGPUs of a claim."""
    return [device.kind for device in record.plan.devices if isinstance(device.kind, VgpuKind)]


@contextmanager
def a_host(
    folder: Path, host: str, board: str = "L40S-PCIE-48GB", specs: type[ClaimSpecs] = ClaimSpecs
) -> Iterator[Host]:
    hardware = write_node(folder, host, board)
    make_node(folder / "node", hardware)
    kernel = Kernel(folder / "node")
    with kernel.running():
        yield Host(folder, kernel, hardware, specs)


@pytest.mark.parametrize("kind", HOSTS)
def test_a_vgpu_exists_as_long_as_its_claim(tmp_path: Path, kind: str) -> None:
    host, board, device, other = HOSTS[kind]
    with a_host(tmp_path, host, board) as node:
        claims = [node.api.add([device]), node.api.add([other])]
        prepared = [vgpu for claim in claims for vgpu in vgpus_of(node.plugin.engine.prepare(claim))]
        assert {vgpu.place for vgpu in prepared} == node.marks()
        assert {(one.address, one.type_id, one.mdev) for one in node.vgpus()} == {
            (one.address, one.type_id, one.mdev) for one in node.marks()
        }
        nodes = node.plugin.nodes_of(claims[0])[device]
        assert [Path(one).parent for one in nodes] == [Path("/dev/vfio")]
        assert (node.kernel.dev / "vfio" / Path(nodes[0]).name).exists()
        node.plugin.engine.prepare(claims[0])
        node.plugin.engine.unprepare(claims[0])
        assert len(node.vgpus()) == len(node.marks()) == 1
        node.plugin.engine.unprepare(claims[1])
        assert (node.vgpus(), node.marks()) == ((), frozenset())
        node.plugin.engine.unprepare(claims[1])


def test_simulated_nodes_have_vgpus_without_a_kernel(tmp_path: Path) -> None:
    """As in the sandbox."""
    api = ApiServer()
    plugin, claim = Plugin(tmp_path, api, hardware="l40sx4-vgpu"), api.add(["gpu-1-vgpu-12q-1104-24"])
    (device,) = plugin.engine.prepare(claim).plan.devices
    address = plugin.gpu(1).pci_address
    assert address is not None
    assert [one.type_id for one in existing_vgpus(plugin.sys_root, "", address)] == [1104]
    assert plugin.nodes_of(claim)[device.name]
    plugin.engine.unprepare(claim)
    assert existing_vgpus(plugin.sys_root, "", address) == ()


def test_the_uuid_of_a_mediated_device_follows_from_claim_and_device(tmp_path: Path) -> None:
    with a_host(tmp_path, MDEV, T4) as node:
        claims = [node.api.add(["gpu-0-vgpu-4q-1102-0"]), node.api.add(["gpu-0-vgpu-4q-1102-1"])]
        first, second = ((node.plugin.engine.prepare(one), node.vgpus())[1] for one in claims)
        assert uuid.UUID(first[0].mdev).version == 5
        assert len({one.mdev for one in second}) == 2
        node.plugin.engine.unprepare(claims[0])
        node.plugin.engine.prepare(claims[0])
        assert {one.mdev for one in node.vgpus()} == {one.mdev for one in second}


def test_a_vgpu_among_several_types_is_placed_where_it_was_allocated(tmp_path: Path) -> None:
    with a_host(tmp_path, MIXED) as node:
        large, small = node.api.add(["gpu-0-vgpu-24q-1106-24"]), node.api.add(["gpu-0-vgpu-8q-1103-16"])
        for claim in (large, small):
            node.plugin.engine.prepare(claim)
        assert sorted(node.kernel.vgpus.params.values()) == ["vgpu-placement-id=16", "vgpu-placement-id=24"]
        overlapping = node.api.add(["gpu-0-vgpu-12q-1104-24"])
        assert "gpu-0-vgpu-24q-1106-24" in node.fails(overlapping)
        assert len(node.vgpus()) == 2


def test_all_vgpus_of_a_gpu_have_one_type(tmp_path: Path) -> None:
    with a_host(tmp_path, VFIO) as node:
        node.plugin.engine.prepare(node.api.add(["gpu-0-vgpu-12q-1104-0"]))
        assert "gpu-0-vgpu-12q-1104-0" in node.fails(node.api.add(["gpu-0-vgpu-24q-1106-1"]))
        assert len(node.vgpus()) == 1


def test_a_gpu_with_vgpus_is_not_given_away_as_a_whole(tmp_path: Path) -> None:
    with a_host(tmp_path, MDEV, T4) as node:
        before = node.kernel.picture()
        part, whole = node.api.add(["gpu-0-vgpu-4q-1102-0"]), node.api.add(["gpu-vfio-0"])
        node.plugin.engine.prepare(part)
        assert "gpu-0-vgpu-4q-1102-0" in node.fails(whole)
        assert node.kernel.picture() == before
        node.plugin.engine.unprepare(part)
        node.plugin.engine.prepare(whole)
        assert node.kernel.driver(GPU) == "vfio-pci"
        node.plugin.engine.unprepare(whole)
        assert node.kernel.picture() == before


def test_a_container_gets_nothing_of_a_host_of_vgpus(tmp_path: Path) -> None:
    with a_host(tmp_path, VFIO) as node:
        assert "there is no device gpu-0 on node" in node.fails(node.api.add(["gpu-0"]))


# vGPUs of an administrator


def test_a_vgpu_of_an_administrator_is_used_and_stays(tmp_path: Path) -> None:
    with a_host(tmp_path, VFIO) as node:
        node.write("bus/pci/devices/0000:41:01.0/nvidia/current_vgpu_type", "1106")
        claim = node.api.add(["gpu-0-vgpu-24q-0000-41-01-0"])
        (device,) = node.plugin.engine.prepare(claim).plan.devices
        assert node.plugin.nodes_of(claim)[device.name]
        node.plugin.engine.unprepare(claim)
        assert ([one.type_id for one in node.vgpus()], node.marks()) == ([1106], frozenset())
        node.write("bus/pci/devices/0000:41:01.0/nvidia/current_vgpu_type", "0")
        assert "there is no vGPU L40S-24Q 0000:41:01.0 any more" in node.fails(claim)


def test_a_mediated_device_of_an_administrator_is_used_and_stays(tmp_path: Path) -> None:
    with a_host(tmp_path, MDEV, T4) as node:
        node.write(f"bus/pci/devices/{GPU}/mdev_supported_types/nvidia-1102/create", TEN)
        claim = node.api.add([f"gpu-0-vgpu-4q-{TEN}"])
        node.plugin.engine.prepare(claim)
        node.plugin.engine.unprepare(claim)
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


# What a container gets


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("existing", [False, True])
def test_everything_about_a_vgpu_is_recorded(tmp_path: Path, kind: str, existing: bool) -> None:
    host, board, name, _ = HOSTS[kind]
    target = device_targets(make_node(tmp_path / "node", write_node(tmp_path, host, board)).inventory())[name]
    assert isinstance(target, VgpuDevice)
    if existing:
        target = replace(target, start=None, place=replace(target.place, mdev="" if kind == "vfio" else TEN))
    claim = allocated_claim("claim", [name])
    ref = ClaimRef(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)
    plan = make_plan(ref, claim, "node-a", {name: target}.get)
    record = Record(State.PREPARED, "boot", plan)
    assert decode(gpu_driver(), encode(record)) == record


@pytest.mark.parametrize("kind", HOSTS)
def test_a_launcher_of_kubevirt_finds_its_vgpus(tmp_path: Path, kind: str) -> None:
    """By metadata files for claims, and by variables for extended resources."""
    host, board, *devices = HOSTS[kind]
    with a_host(tmp_path, host, board, WithMetadata) as node:
        requests, uid = ("container-0-request-0", "container-0-request-1"), str(uuid.uuid4())
        results = [
            {"request": request, "driver": "gpu.nvidia.com", "pool": "node-a", "device": device}
            for request, device in zip(requests, devices, strict=True)
        ]
        wanted = [{"name": one, "exactly": {"deviceClassName": "vgpus"}} for one in requests]
        value = {
            "metadata": {
                "name": "machine",
                "namespace": "team",
                "uid": uid,
                "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
            },
            "spec": {"devices": {"requests": wanted}},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        node.api.claims[uid] = decode_claim(value, V1)
        claim = ClaimRef("team", "machine", uid)
        (node.kernel.dev / "vfio/vfio").touch()
        (node.kernel.dev / "vfio/devices").mkdir()
        for number in (100, 101):
            (node.kernel.dev / f"vfio/devices/vfio{number}").touch()
        found = [vgpu.identifier for vgpu in vgpus_of(node.plugin.engine.prepare(claim))]
        assert len(set(found)) == 2
        spec = json.loads(next(one for one in node.plugin.cdi.iterdir() if uid in one.name).read_text())
        edits = {one["name"].removeprefix(f"{uid}-"): one["containerEdits"] for one in spec["devices"]}
        environment = dict(one.split("=", 1) for device in devices for one in edits[device]["env"])
        resource = "deviceclass.resource.kubernetes.io/vgpus"
        assert plugin_devices(environment, resource, resource, mdev=kind != "vfio") == found
        paths = [one["path"] for one in edits[devices[0]]["deviceNodes"]]
        assert [*paths[1:2], *paths[3:]] == ["/dev/vfio/vfio", "/dev/iommu"]
        assert paths[2].startswith("/dev/vfio/devices/vfio")
        for one in (mount for edit in edits.values() for mount in edit.get("mounts", ())):
            target = tmp_path / "container" / one["containerPath"].lstrip("/")
            target.parent.mkdir(parents=True)
            target.write_bytes(Path(one["hostPath"]).read_bytes())
        shown = [device_of(tmp_path / "container", one, claim="machine") for one in requests]
        assert shown == [("pci" if kind == "vfio" else "mdev", one) for one in found]


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
        node.plugin.engine.prepare(claim)
        (vgpu,) = node.vgpus()
        opened = os.open(node.kernel.dev / "vfio" / Path(node.plugin.nodes_of(claim)[device][0]).name, os.O_RDONLY)
        assert f"(PID {os.getpid()}): the virtual machine still runs" in unprepared(node, claim)
        os.close(opened)
        node.kernel.vgpus.used.add(vgpu.mdev or vgpu.address)
        assert "Device or resource busy" in unprepared(node, claim)
        assert (len(node.vgpus()), len(node.marks())) == (1, 1)
        node.kernel.vgpus.used.clear()
        node.plugin.engine.unprepare(claim)
        assert (node.vgpus(), node.marks()) == ((), frozenset())


def test_a_vgpu_that_was_lost_is_created_again(tmp_path: Path) -> None:
    with a_host(tmp_path, VFIO) as node:
        claim = node.api.add(["gpu-0-vgpu-12q-1104-0"])
        node.plugin.engine.prepare(claim)
        node.plugin.stop()
        node.write("bus/pci/devices/0000:41:00.4/nvidia/current_vgpu_type", "0")
        node.another()
        assert [one.type_id for one in node.vgpus()] == [1104]
        node.plugin.engine.unprepare(claim)
        assert (node.vgpus(), node.marks()) == ((), frozenset())


@pytest.mark.parametrize("kind", HOSTS)
def test_a_vgpu_without_a_record_is_removed(tmp_path: Path, kind: str) -> None:
    host, board, device, _ = HOSTS[kind]
    with a_host(tmp_path, host, board) as node:
        claim = node.api.add([device])
        node.plugin.engine.prepare(claim)
        node.plugin.stop()
        next((tmp_path / "claims").iterdir()).unlink()
        node.another()
        wait_for(lambda: not (node.vgpus() or node.marks()), "nothing to be left")


def test_a_write_that_does_not_return_is_waited_for(tmp_path: Path) -> None:
    with a_host(tmp_path, MDEV, T4) as node:
        claim, released = node.api.add(["gpu-0-vgpu-4q-1102-0"]), threading.Event()
        node.plugin.stop()
        node.times = replace(QUICK, write=3.0)
        node.another()
        node.kernel.strike = lambda *_: (released.wait(), None)[1]
        with pytest.raises(StuckError, match="the kernel does not finish writing"):
            node.plugin.engine.prepare(claim)
        assert "an earlier change of" in unprepared(node, claim)
        released.set()
        wait_for(lambda: not unprepared(node, claim), "unprepare to succeed")
        assert (node.vgpus(), node.marks()) == ((), frozenset())


def unprepared(node: Host, claim: ClaimRef) -> str:
    """The error of unpreparing a claim."""
    try:
        node.plugin.engine.unprepare(claim)
    except PrepareError as error:
        return str(error)
    return ""
