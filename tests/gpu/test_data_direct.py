# SPDX-License-Identifier: Apache-2.0
"""GPUs and their NICs on boards with Data Direct.

The trees are those that rdma_topo in rdma-core (kernel-boot, commit 0434340) accepts: below a root port of Grace, a
switch leads to the DMA function of a ConnectX-8, and through another switch to one GPU. The NIC is in another PCI
domain.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dra_driver.gpu.data_direct import data_direct_nics
from dra_driver.gpu.devices import describe
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.simulated.board import boards
from dra_driver.kube.resource import (
    Device,
    DeviceClass,
    Node,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourcePool,
    ResourceSlice,
)
from dra_driver.kube.resource.codec import decode
from dra_driver.scheduler.allocator import Cluster, Features, allocate
from tests.docs.commands import ROOT, blocks
from tests.support.nodes import board_inventory

GPU = "0008:06:00.0"
NIC = "0000:03:00.0"
UUID = "d4bf12a9e8f0f0118000c470bd8a1b2c"


def function(sys_root: Path, path: str, vendor: int, device: int, kind: int, identifier: str = "") -> None:
    """A function at the end of a path of addresses, with vital product data if it has an identifier."""
    folder = sys_root / "devices" / path
    folder.mkdir(parents=True)
    for name, number in (("vendor", vendor), ("device", device), ("class", kind)):
        (folder / name).write_text(f"{number:#06x}\n")
    if identifier:
        (folder / "vpd").write_bytes(vital_product_data(identifier))
    link = sys_root / "bus/pci/devices" / folder.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path("../../../devices") / path)


def vital_product_data(identifier: str) -> bytes:
    def item(tag: int, content: bytes) -> bytes:
        return bytes([tag]) + len(content).to_bytes(2, "little") + content

    def field(name: bytes, value: bytes) -> bytes:
        return name + bytes([len(value)]) + value

    fields = field(b"PN", b"900-9X81E-00EX-ST0") + field(b"V3", identifier.encode()) + field(b"RV", b"\0\0")
    return item(0x82, b"NVIDIA ConnectX-8") + item(0x90, fields) + b"\x78" + bytes(50)


def complex_of(sys_root: Path, domain: str, identifier: str, gpus: int = 1) -> None:
    """A root port with a DMA function and GPUs."""
    port = f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0"
    function(sys_root, f"{port}/{domain}:02:00.0/{domain}:03:00.0", 0x15B3, 0x2100, 0x0880_00, identifier)
    for number in range(gpus):
        inner = f"{port}/{domain}:02:01.0/{domain}:04:00.0/{domain}:05:0{number}.0"
        function(sys_root, f"{inner}/{domain}:0{6 + number}:00.0", 0x10DE, 0x31C2, 0x0302_00)


def nic(sys_root: Path, address: str, identifier: str) -> None:
    """A function of a NIC below a root port of its own."""
    domain = address.partition(":")[0]
    function(sys_root, f"pci{domain}:00/{domain}:00:01.0/{address}", 0x15B3, 0x1023, 0x0207_00, identifier)


def test_a_gpu_is_paired_with_the_first_function_of_its_nic(tmp_path: Path) -> None:
    complex_of(tmp_path, "0008", UUID)
    complex_of(tmp_path, "0018", "another")
    nic(tmp_path, "0000:03:00.1", UUID)
    nic(tmp_path, NIC, UUID)
    nic(tmp_path, "0010:03:00.0", "another")
    assert data_direct_nics(tmp_path) == {GPU: NIC, "0018:06:00.0": "0010:03:00.0"}


def test_a_node_without_data_direct_has_no_pairs_and_reads_no_product_data(tmp_path: Path) -> None:
    nic(tmp_path, NIC, UUID)
    (tmp_path / "bus/pci/devices" / NIC / "vpd").unlink()
    function(tmp_path, "pci0008:00/0008:00:00.0/0008:06:00.0", 0x10DE, 0x2330, 0x0302_00)
    assert data_direct_nics(tmp_path) == {}
    assert data_direct_nics(tmp_path / "missing") == {}


@pytest.mark.parametrize(("gpus", "identifier"), [(1, "of another NIC"), (2, UUID), (0, UUID)])
def test_a_pair_that_is_not_certain_is_left_out_with_a_warning(
    tmp_path: Path, gpus: int, identifier: str, caplog: pytest.LogCaptureFixture
) -> None:
    complex_of(tmp_path, "0008", UUID, gpus)
    nic(tmp_path, NIC, identifier)
    assert data_direct_nics(tmp_path) == {}
    assert "the NIC of the DMA function 0008:03:00.0 is not paired" in caplog.text


@pytest.mark.parametrize(
    "data", [b"", b"\x90", b"\x90\xff\xff", b"\x90\x04\x00V3\xff", b"text", bytes(10), b"\xff" * 99]
)
def test_damaged_product_data_pairs_nothing(tmp_path: Path, data: bytes) -> None:
    complex_of(tmp_path, "0008", UUID)
    nic(tmp_path, NIC, UUID)
    (tmp_path / "bus/pci/devices" / NIC / "vpd").write_bytes(data)
    assert data_direct_nics(tmp_path) == {}


def test_product_data_is_read_once_for_each_function(tmp_path: Path) -> None:
    complex_of(tmp_path, "0008", UUID)
    nic(tmp_path, NIC, UUID)
    assert data_direct_nics(tmp_path) == {GPU: NIC}
    (tmp_path / "bus/pci/devices" / NIC / "vpd").unlink()
    assert data_direct_nics(tmp_path) == {GPU: NIC}


def test_the_claim_of_the_page_gets_a_gpu_and_its_nic() -> None:
    page = (ROOT / "docs/how-to/gpus-and-nics.md").read_text(encoding="utf-8")
    (text,) = (content for _, _, content in blocks(page) if "dataDirectNIC" in content)
    template = decode(yaml.safe_load(text))
    assert isinstance(template, ResourceClaimTemplate)
    gpus = node_slices("node-a", "uid", describe(board_inventory(boards()["GB300-288GB"], 4)).gpus)
    addresses = ["0000:63:00.0", "0000:62:00.0", "0000:61:00.0"]
    nics = tuple(
        Device(f"nic-{number}", attributes={"resource.kubernetes.io/pciBusID": address})
        for number, address in enumerate(addresses)
    )
    pool = ResourcePool("node-a", generation=1, resource_slice_count=1)
    slices = (
        *(replace(one, pool=replace(one.pool, generation=1)) for one in gpus),
        ResourceSlice(ObjectMeta("nics"), "nic.example.com", pool, node_name="node-a", devices=nics),
    )
    classes = tuple(
        DeviceClass(ObjectMeta(name), (f"device.driver == {json.dumps(name)}",))
        for name in ("gpu.nvidia.com", "nic.example.com")
    )
    claim = ResourceClaim(ObjectMeta("claim", "default"), template.spec)
    cluster = Cluster(slices, classes, (Node(ObjectMeta("node-a")),))
    features = Features.from_gates({"DRADerivedAttributes": True}, release="1.37")
    (allocation,) = allocate(cluster, [claim], "node-a", features).allocations
    gpu, nic_device = (result.device for result in allocation.results)
    assert f"0000:{0x60 + int(gpu.removeprefix('gpu-')):02x}:00.0" == addresses[int(nic_device.removeprefix("nic-"))]
