# SPDX-License-Identifier: Apache-2.0
"""What the driver of a simulated node has on disk: device nodes, /proc and /sys entries, libraries."""

import re
from pathlib import Path

import pytest

from dra_driver.gpu.pci import pci_location
from dra_driver.gpu.simulated.files import capability_minor
from tests.gpu.calls import destroy_instance, make_instance
from tests.support.nodes import TestNode, make_node


@pytest.fixture
def split(tmp_path: Path) -> TestNode:
    """Eight H100 in MIG mode."""
    return make_node(tmp_path, "h100x8-mig")


def device_nodes(node: TestNode) -> set[str]:
    """What is in /dev, by path below it."""
    dev = node.node.driver_root / "dev"
    return {str(path.relative_to(dev)) for path in dev.rglob("*") if not path.is_dir()}


def capabilities(node: TestNode) -> dict[str, int]:
    """The device minor of every access file of MIG instances."""
    root = node.node.driver_root / "proc/driver/nvidia/capabilities"
    found = {}
    for path in root.glob("gpu*/**/access"):
        minor = re.search(r"^DeviceFileMinor: (\d+)$", path.read_text(encoding="ascii"), re.MULTILINE)
        assert minor is not None
        found[str(path.relative_to(root))] = int(minor[1])
    return found


def test_a_node_has_the_device_nodes_of_its_gpus_and_the_drivers_own(tmp_path: Path) -> None:
    found = device_nodes(make_node(tmp_path, "a30x4"))
    assert found == {
        *(f"nvidia{index}" for index in range(4)),
        "iommu",
        "nvidiactl",
        "nvidia-modeset",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-caps/nvidia-cap1",
        "nvidia-caps/nvidia-cap2",
    }


def test_device_nodes_and_access_files_go_by_minors(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(
        'driverVersion: 570.158.01\ncudaVersion: "12.8"\n'
        "gpus: [{model: H100-SXM5-80GB, count: 2, mig: true, minors: [5, 0], instances: [{profile: 7g.80gb}]}]\n"
    )
    node = make_node(tmp_path / "node", str(tmp_path / "node.yaml"))
    assert {name for name in device_nodes(node) if re.fullmatch(r"nvidia\d", name)} == {"nvidia5", "nvidia0"}
    expected = {f"gpu{minor}/mig/gi0/access": capability_minor(minor, 0) for minor in (5, 0)}
    expected |= {f"gpu{minor}/mig/gi0/ci0/access": capability_minor(minor, 0, 0) for minor in (5, 0)}
    assert capabilities(node) == expected
    node.node.reset_gpu(0)
    assert {path.split("/")[0] for path in capabilities(node)} == {"gpu0"}
    make_instance(node.nvml, node.nvml.device_by_index(0), 4, 0)
    assert capabilities(node) == expected


def test_majors_are_listed_as_the_kernel_does(tmp_path: Path) -> None:
    listed = (make_node(tmp_path, "a30x4").node.driver_root / "proc/devices").read_text(encoding="ascii")
    characters, blocks = listed.split("\n\n")
    assert characters.splitlines()[0] == "Character devices:"
    assert blocks.startswith("Block devices:")
    names = {name: int(major) for major, name in (line.split() for line in characters.splitlines()[1:])}
    assert set(names) == {"nvidia", "nvidiactl", "nvidia-uvm", "nvidia-caps"}


def test_access_files_and_device_nodes_come_and_go_with_instances(split: TestNode) -> None:
    before = device_nodes(split)
    instance, _ = make_instance(split.nvml, split.nvml.device_by_index(3), 2, 4)
    assert capabilities(split) == {
        "gpu3/mig/gi1/access": capability_minor(3, 1),
        "gpu3/mig/gi1/ci0/access": capability_minor(3, 1, 0),
    }
    assert device_nodes(split) - before == {
        f"nvidia-caps/nvidia-cap{minor}" for minor in (capability_minor(3, 1), capability_minor(3, 1, 0))
    }
    destroy_instance(split.nvml, instance)
    assert capabilities(split) == {}
    assert device_nodes(split) == before


@pytest.mark.parametrize("ends", ["reset", "unloaded"])
def test_instances_lost_by_a_reset_or_an_unloaded_driver_leave_no_files(split: TestNode, ends: str) -> None:
    before = device_nodes(split)
    for start in (0, 2, 4):
        make_instance(split.nvml, split.nvml.device_by_index(0), 1, start)
    if ends == "reset":
        split.node.reset_gpu(0)
    else:
        split.node.unload_driver()
    assert (capabilities(split), device_nodes(split)) == ({}, before)


def test_minors_of_capabilities_are_the_drivers_and_never_shared() -> None:
    assert [capability_minor(0, 0), capability_minor(0, 0, 0), capability_minor(0, 1)] == [3, 4, 12]
    assert capability_minor(1, 0) == 138
    minors = [
        capability_minor(gpu, instance, compute)
        for gpu in range(16)
        for instance in range(15)
        for compute in (None, *range(8))
    ]
    assert len(set(minors)) == len(minors)


def test_libraries_are_found_through_their_links(tmp_path: Path) -> None:
    libraries = make_node(tmp_path, "h100x8").node.driver_root / "usr/lib/x86_64-linux-gnu"
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4"):
        real = (libraries / name).resolve()
        assert real.name == f"{name.partition('.so')[0]}.so.570.158.01"
        assert real.is_file()


def test_gpus_are_in_sysfs_where_they_are_described(tmp_path: Path) -> None:
    node = make_node(tmp_path, "a30x4")
    found = [pci_location(node.sys_root, node.nvml.pci_address(node.nvml.device_by_index(index))) for index in range(4)]
    assert found == [
        ("pci0000:16", 0),
        ("pci0000:64", 0),
        ("pci0000:c9", 1),
        ("pci0000:e2", 1),
    ]


# Sysfs in general


def device_folder(sys_root: Path, target: str, numa_node: str | None) -> None:
    """A PCI device 0000:3b:00.0 at `target` of a sysfs."""
    real = sys_root / target
    real.mkdir(parents=True)
    if numa_node is not None:
        (real / "numa_node").write_text(numa_node)
    link = sys_root / "bus/pci/devices/0000:3b:00.0"
    link.parent.mkdir(parents=True)
    link.symlink_to(Path("../../..") / target)


@pytest.mark.parametrize(
    ("target", "numa_node", "location"),
    [
        ("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "1\n", ("pci0000:3a", 1)),
        ("devices/pci10000:00/10000:00:00.0/0000:3b:00.0", "0\n", ("pci10000:00", 0)),
        ("devices/pci0000:3a/0000:3b:00.0", "-1\n", ("pci0000:3a", None)),
        ("devices/pci0000:3a/0000:3b:00.0", "none\n", ("pci0000:3a", None)),
        ("devices/pci0000:3a/0000:3b:00.0", None, ("pci0000:3a", None)),
        ("devices/platform/0000:3b:00.0", "0\n", (None, 0)),
    ],
)
def test_pci_location_is_read_from_sysfs(
    tmp_path: Path, target: str, numa_node: str | None, location: tuple[str | None, int | None]
) -> None:
    device_folder(tmp_path, target, numa_node)
    assert pci_location(tmp_path, "0000:3b:00.0") == location


def test_a_device_that_sysfs_does_not_have_is_nowhere(tmp_path: Path) -> None:
    assert pci_location(tmp_path, "0000:3b:00.0") == (None, None)
