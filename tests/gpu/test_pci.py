# SPDX-License-Identifier: Apache-2.0
"""The GPUs on the PCI bus, from what sysfs says of them."""

import logging
from pathlib import Path

import pytest

from dra_driver.gpu.facts import PciGpu
from dra_driver.gpu.functions import group_obstacles
from dra_driver.gpu.pci import KernelDriver, PciBus, read_driver, read_pci_gpus
from tests.support.nodes import make_node

GIB = 1 << 30
ONE = "0000:3b:00.0"
# As of an H100: three regions with 64-bit addresses, each of them in two lines.
RESOURCE = """\
0x0000088042000000 0x0000088042ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000084000000000 0x0000085fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000088040000000 0x0000088041ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000088044000000 0x00000887ffffffff 0x000000000014220c
"""
FILES = {
    "vendor": "0x10de\n",
    "device": "0x2330\n",
    "class": "0x030200\n",
    "numa_node": "1\n",
    "resource": RESOURCE,
}
PCI_IDS = """\
# A comment
10dd  Endless
\t2330  Something else
\t2332  Something of another vendor
10de  NVIDIA Corporation
\t2330  GH100 [H100 SXM5 80GB]
\t\t10de 16c1  Of a server
\t26b9  AD102GL [L40S]

10df  Emulex
\t2331  Another's
"""


def device(
    sys_root: Path,
    address: str = ONE,
    /,
    *,
    driver: str | None = None,
    group: str | None = None,
    **files: str | None,
) -> Path:
    """A PCI device, an H100 but for what `files` have otherwise; None takes one away."""
    folder = sys_root / "devices/pci0000:3a" / address
    folder.mkdir(parents=True)
    for name, text in (FILES | files).items():
        if text is not None:
            (folder / name).write_text(text)
    if driver is not None:
        (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    if group is not None:
        (folder / "iommu_group").symlink_to(f"../../../kernel/iommu_groups/{group}")
    link = sys_root / "bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path("../../../devices/pci0000:3a") / address)
    return folder


def test_gpu_is_read_with_all_its_fields(tmp_path: Path) -> None:
    device(tmp_path, driver="nvidia", group="42")
    assert read_pci_gpus(tmp_path) == (
        PciGpu(
            position=0,
            address=ONE,
            device_id=0x2330,
            product_name=None,
            driver="nvidia",
            iommu_group=42,
            addressable_memory=256 * GIB,
            pcie_root="pci0000:3a",
            numa_node=1,
        ),
    )


def test_facts_missing_in_sysfs_are_unknown(tmp_path: Path) -> None:
    device(tmp_path, numa_node=None, resource=None)
    (gpu,) = read_pci_gpus(tmp_path)
    assert (gpu.driver, gpu.iommu_group, gpu.addressable_memory, gpu.numa_node) == (None, None, None, None)


NO_GPUS: dict[str, dict[str, str | None]] = {
    "another vendor's": {"vendor": "0x8086\n"},
    "a switch": {"class": "0x068000\n"},
    "its sound": {"class": "0x040300\n"},
    "gone meanwhile": {"vendor": None},
    "half gone": {"class": None},
    "nonsense": {"vendor": "what\n"},
}


@pytest.mark.parametrize("files", NO_GPUS.values(), ids=list(NO_GPUS))
def test_node_without_a_gpu_has_no_pci_gpus(tmp_path: Path, files: dict[str, str | None]) -> None:
    device(tmp_path, **files)
    device(tmp_path, "0000:3c:00.0", **{"class": "0x030000\n"})
    assert [gpu.address for gpu in read_pci_gpus(tmp_path)] == ["0000:3c:00.0"]


def test_virtual_functions_are_no_gpus(tmp_path: Path) -> None:
    folder = device(tmp_path)
    function = device(tmp_path, "0000:3b:00.4")
    (function / "physfn").symlink_to(folder)
    assert [gpu.address for gpu in read_pci_gpus(tmp_path)] == [ONE]


def test_a_gpu_whose_kind_cannot_be_read_is_left_out_and_the_others_keep_their_positions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device(tmp_path, device=None)
    device(tmp_path, "0000:3c:00.0")
    with caplog.at_level(logging.WARNING):
        assert [(gpu.position, gpu.address) for gpu in read_pci_gpus(tmp_path)] == [(1, "0000:3c:00.0")]
    assert f"the GPU at {ONE} is left out: its PCI device id cannot be read" in caplog.text


def test_gpus_are_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    addresses = ["0000:1b:00.0", "0000:1b:1c.0", "0000:c3:00.0", "1000:01:00.0", "10000:01:00.0"]
    for address in reversed(addresses):
        device(tmp_path, address, driver="vfio-pci")
    assert [(gpu.position, gpu.address) for gpu in read_pci_gpus(tmp_path)] == list(enumerate(addresses))
    assert PciBus().bound_gpus(tmp_path) == tuple((address, "vfio-pci") for address in addresses)


def test_repeated_look_at_the_bus_finds_changes(tmp_path: Path) -> None:
    """Only what a device is, which cannot change while it is there, is remembered."""
    bus = PciBus()
    first = device(tmp_path, driver="nvidia")
    half = device(tmp_path, "0000:3c:00.0", vendor=None)
    device(tmp_path, "0000:3d:00.0", vendor="0x8086\n")
    assert bus.bound_gpus(tmp_path) == ((ONE, "nvidia"),)
    (first / "driver").unlink()
    (half / "vendor").write_text(FILES["vendor"])
    assert bus.bound_gpus(tmp_path) == ((ONE, None), ("0000:3c:00.0", None))
    (tmp_path / "bus/pci/devices" / ONE).unlink()
    device(tmp_path, "0000:3e:00.0", driver="vfio-pci")
    assert bus.bound_gpus(tmp_path) == (("0000:3c:00.0", None), ("0000:3e:00.0", "vfio-pci"))


@pytest.mark.parametrize(
    ("driver", "is_obstacle"), [("mlx5_core", True), ("vfio-pci", False), ("pci-stub", False), (None, False)]
)
def test_network_card_in_the_group_is_an_obstacle_if_the_node_uses_it(
    tmp_path: Path, driver: str | None, is_obstacle: bool
) -> None:
    card = "0000:77:00.0"
    device(tmp_path, ONE, group="16")
    device(tmp_path, card, driver=driver, group="16", **{"vendor": "0x15b3", "class": "0x020000"})
    members = tmp_path / "kernel/iommu_groups/16/devices"
    members.mkdir(parents=True)
    for address in (ONE, card):
        (members / address).touch()
    assert group_obstacles(tmp_path, ONE) == ((card,) if is_obstacle else ())


def test_without_a_pci_bus_there_are_none(tmp_path: Path) -> None:
    assert (read_pci_gpus(tmp_path), PciBus().bound_gpus(tmp_path)) == ((), ())


def lines(*regions: tuple[int, int]) -> str:
    """A `resource` with regions of these sizes and flags."""
    return "".join(f"0x{1 << 44:x} 0x{(1 << 44) + size - 1:x} 0x{flags:x}\n" for size, flags in regions)


WIDE, NARROW, PORTS = 0x14220C, 0x40200, 0x40101
NOTHING = "0x0 0x0 0x0\n"
MEMORY = {
    "A100-40": (lines((16 << 20, NARROW), (64 * GIB, WIDE)) + NOTHING + lines((32 << 20, WIDE)), 128 * GIB),
    "T4": (lines((16 << 20, NARROW), (256 << 20, WIDE)) + NOTHING + lines((32 << 20, WIDE)), 512 << 20),
    "a power of two": (lines((64 * GIB, WIDE)), 64 * GIB),
    "only 32-bit addresses": (lines((16 << 20, NARROW), (128, PORTS)), None),
    "behind the BARs": (NOTHING * 6 + lines((64 * GIB, WIDE)), None),
    "nothing": ("", None),
    "too little": ("0x0 0x1\n", None),
    "nonsense": ("a b c\n", None),
}


@pytest.mark.parametrize(("resource", "memory"), MEMORY.values(), ids=list(MEMORY))
def test_addressable_memory_is_that_of_64_bit_bars_rounded_up(
    tmp_path: Path, resource: str, memory: int | None
) -> None:
    device(tmp_path, resource=resource)
    assert read_pci_gpus(tmp_path)[0].addressable_memory == memory


@pytest.mark.parametrize(
    ("device_id", "name"),
    [("0x2330", "GH100 [H100 SXM5 80GB]"), ("0x26b9", "AD102GL [L40S]"), ("0x2331", None), ("0x2332", None)],
)
@pytest.mark.parametrize("place", ["usr/share/misc", "usr/share/hwdata", "usr/share", "var/lib/pciutils"])
def test_a_product_is_named_by_the_hosts_list(tmp_path: Path, place: str, device_id: str, name: str | None) -> None:
    device(tmp_path / "sys", device=device_id)
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "pci.ids").write_text(PCI_IDS)
    assert read_pci_gpus(tmp_path / "sys", tmp_path)[0].product_name == name
    assert read_pci_gpus(tmp_path / "sys")[0].product_name is None


def test_without_a_list_products_have_no_name(tmp_path: Path) -> None:
    device(tmp_path / "sys")
    assert read_pci_gpus(tmp_path / "sys", tmp_path)[0].product_name is None


# The simulated node has all of it


@pytest.mark.parametrize(
    ("name", "product", "memory"),
    [
        ("a100-40x16", "GA100 [A100 SXM4 40GB]", 128 * GIB),
        ("a30x4", "GA100GL [A30 PCIe]", 64 * GIB),
        ("h100x8", "GH100 [H100 SXM5 80GB]", 256 * GIB),
        ("h200x8", "GH100 [H200 SXM 141GB]", 512 * GIB),
        ("l40sx4", "AD102GL [L40S]", 128 * GIB),
    ],
)
def test_simulated_gpus_are_on_the_bus(tmp_path: Path, name: str, product: str, memory: int) -> None:
    node = make_node(tmp_path, name)
    found = read_pci_gpus(node.sys_root, node.node.driver_root)
    handles = [node.nvml.device_by_index(index) for index in range(node.nvml.device_count())]
    assert [gpu.address for gpu in found] == [node.nvml.pci_address(gpu) for gpu in handles]
    assert {(gpu.product_name, gpu.addressable_memory, gpu.driver) for gpu in found} == {(product, memory, "nvidia")}
    assert len({gpu.iommu_group for gpu in found} - {None}) == len(found)
    assert PciBus().bound_gpus(node.sys_root) == tuple((gpu.address, "nvidia") for gpu in found)


def test_the_driver_and_what_it_has(tmp_path: Path) -> None:
    node = make_node(tmp_path, "a30x4")

    def addresses() -> list[str]:
        return [address for address, _ in read_driver(node.sys_root).gpus]

    before = read_driver(node.sys_root)
    assert addresses() == ["0000:17:00.0", "0000:65:00.0", "0000:ca:00.0", "0000:e3:00.0"]
    assert (before.version, read_driver(node.sys_root)) == ("570.158.01", before)
    node.node.bind_driver(1, "vfio-pci")
    assert addresses() == ["0000:17:00.0", "0000:ca:00.0", "0000:e3:00.0"]
    node.node.unload_driver()
    assert read_driver(node.sys_root) == KernelDriver((), None, None)
    node.node.load_driver("580.95.05")
    assert read_driver(node.sys_root).version == "580.95.05"
    assert addresses() == ["0000:17:00.0", "0000:ca:00.0", "0000:e3:00.0"]


def test_a_gpu_that_is_bound_again_and_a_module_that_is_loaded_again_are_others(tmp_path: Path) -> None:
    """As the kernel does it, with new inodes; renaming keeps the old ones from being used again at once."""
    node = make_node(tmp_path, "a30x4")
    before = read_driver(node.sys_root)
    link = node.sys_root / "bus/pci/drivers/nvidia/0000:65:00.0"
    target = link.readlink()
    link.rename(link.with_name("old"))
    link.symlink_to(target)
    bound = read_driver(node.sys_root)
    assert [new == old for new, old in zip(bound.gpus, before.gpus, strict=True)] == [True, False, True, True]
    module = node.sys_root / "module/nvidia"
    module.rename(module.with_name("old"))
    module.mkdir()
    loaded = read_driver(node.sys_root)
    assert (loaded.gpus, loaded.version) == (bound.gpus, None)
    assert loaded.module != bound.module


def test_sysfs_has_no_loose_ends(tmp_path: Path) -> None:
    node = make_node(tmp_path, "a30x4")
    node.node.bind_driver(1, "vfio-pci")
    before = sorted(node.sys_root.rglob("*"))
    node.node.unplug(1)
    assert not [path for path in node.sys_root.rglob("*") if path.is_symlink() and not path.exists()]
    assert not [path for path in node.sys_root.rglob("*") if path.name == "0000:65:00.0"]
    node.node.plug(1)
    node.node.bind_driver(1, "vfio-pci")
    assert sorted(node.sys_root.rglob("*")) == before
    assert (node.sys_root / "bus/pci/drivers/vfio-pci/0000:65:00.0").resolve() == (
        node.sys_root / "bus/pci/devices/0000:65:00.0"
    ).resolve()
