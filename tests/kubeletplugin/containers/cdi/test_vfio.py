# SPDX-License-Identifier: Apache-2.0
"""What a container with a virtual machine gets for a GPU that is bound to a vfio driver."""

from pathlib import Path

import pytest

from kubeletplugin.containers.cdi import CLAIM_KIND, DriverFilesError, Root, claim_spec, egm_edits, vfio_edits
from kubeletplugin.containers.cdi.spec import ContainerEdits, dumps, minimum_version, validate

from .trees import file, link

GPU, AUDIO, OTHER = "0000:1b:00.0", "0000:1b:00.1", "0000:43:00.0"
UID = "9f53c0e5-9f54-647d-a53c-73174df363ba"
LEGACY = ["/dev/vfio/16"]
BOTH = ["/dev/vfio/16", "/dev/vfio/devices/vfio0", "/dev/vfio/devices/vfio1"]


class Machine:
    """A node with a GPU and its audio function in IOMMU group 16. The files in dev stand for device nodes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sys = root / "sys"
        self.dev = Root(root)
        for number, address in enumerate((GPU, AUDIO)):
            device = f"/sys/bus/pci/devices/{address}"
            link(root, f"{device}/iommu_group", "../../../../kernel/iommu_groups/16")
            file(root, f"{device}/vfio-dev/vfio{number}/dev")
            file(root, f"/dev/vfio/devices/vfio{number}")
            link(root, f"/sys/kernel/iommu_groups/16/devices/{address}", f"../../../../bus/pci/devices/{address}")
        for path in ("/dev/vfio/vfio", "/dev/vfio/16", "/dev/iommu"):
            file(root, path)

    def nodes(self, *, prefer_iommufd: bool = False, api_device: bool = False) -> list[str]:
        """The paths of the GPU's nodes in a container."""
        return paths(
            vfio_edits(
                self.sys / "bus/pci/devices" / GPU, self.dev, 16, prefer_iommufd=prefer_iommufd, api_device=api_device
            )
        )

    def egm(self, name: str, gpus: str) -> None:
        """A memory device of these GPUs."""
        file(self.root, f"/sys/class/egm/{name}/gpu_devices", gpus)
        file(self.root, f"/dev/{name}")


def paths(edits: ContainerEdits) -> list[str]:
    return [node.path for node in edits.device_nodes]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


@pytest.mark.parametrize(
    ("prefer_iommufd", "api_device", "nodes"),
    [
        (False, False, LEGACY),
        (False, True, [*LEGACY, "/dev/vfio/vfio"]),
        (True, False, BOTH),
        (True, True, [*LEGACY, "/dev/vfio/vfio", *BOTH[1:], "/dev/iommu"]),
    ],
)
def test_the_nodes_of_each_interface(
    machine: Machine, prefer_iommufd: bool, api_device: bool, nodes: list[str]
) -> None:
    assert machine.nodes(prefer_iommufd=prefer_iommufd, api_device=api_device) == nodes


@pytest.mark.parametrize("missing", ["dev/iommu", f"sys/bus/pci/devices/{GPU}/vfio-dev/vfio0"])
def test_without_iommufd_the_older_interface_is_used(machine: Machine, missing: str) -> None:
    (machine.root / missing).rename(machine.root / "away")
    assert machine.nodes(prefer_iommufd=True, api_device=True) == [*LEGACY, "/dev/vfio/vfio"]


def test_a_kernel_that_has_only_iommufd_has_no_nodes_of_the_older_interface(machine: Machine) -> None:
    (machine.root / "dev/vfio/16").unlink()
    (machine.root / "dev/vfio/vfio").unlink()
    assert machine.nodes(prefer_iommufd=True, api_device=True) == [*BOTH[1:], "/dev/iommu"]
    with pytest.raises(DriverFilesError, match=r"/dev/vfio/16 is missing: "):
        machine.nodes()


def test_a_function_that_is_bound_to_no_vfio_driver_has_no_node(machine: Machine) -> None:
    (machine.sys / f"bus/pci/devices/{AUDIO}/vfio-dev/vfio1/dev").unlink()
    (machine.sys / f"bus/pci/devices/{AUDIO}/vfio-dev/vfio1").rmdir()
    assert machine.nodes(prefer_iommufd=True) == ["/dev/vfio/16", "/dev/vfio/devices/vfio0"]


@pytest.mark.parametrize("missing", ["dev/vfio/vfio", "dev/vfio/16", "dev/vfio/devices/vfio1"])
def test_a_node_that_the_container_needs_and_that_is_missing_is_an_error(machine: Machine, missing: str) -> None:
    (machine.root / missing).unlink()
    with pytest.raises(DriverFilesError, match=f"/{missing} is missing: "):
        machine.nodes(prefer_iommufd="devices" in missing, api_device=True)


def test_the_runtime_reads_the_numbers_and_lets_the_containers_user_open_the_nodes(machine: Machine) -> None:
    edits = vfio_edits(machine.sys / "bus/pci/devices" / GPU, Root(machine.root, "/"), 16, api_device=True)
    assert all((one.type, one.major, one.file_mode, one.host_path) == ("", 0, None, "") for one in edits.device_nodes)
    spec = claim_spec(UID, {"gpu-vfio-0": edits})
    assert spec.kind == CLAIM_KIND
    assert validate(spec) == []
    assert minimum_version(spec) == "0.5.0", "the name of a device begins with a digit"
    assert b'"permissions": "rw"' in dumps(spec)


@pytest.mark.parametrize(
    ("gpus", "allocated", "nodes"),
    [
        (f"{GPU}\n", [GPU], ["/dev/egm4"]),
        (f"{GPU}\n{OTHER}\n", [GPU], []),
        (f"{GPU}\n{OTHER}\n", [OTHER, GPU], ["/dev/egm4"]),
        (f"{GPU.upper()} {OTHER}", [OTHER, GPU], ["/dev/egm4"]),
        (f"{OTHER}\n", [OTHER, GPU], []),
        ("", [GPU], []),
    ],
)
def test_memory_of_the_host_goes_to_the_machine_that_has_all_its_gpus(
    machine: Machine, gpus: str, allocated: list[str], nodes: list[str]
) -> None:
    machine.egm("egm4", gpus)
    assert paths(egm_edits(machine.sys, machine.dev, [GPU], allocated)) == nodes


def test_a_memory_device_without_a_list_of_gpus_goes_to_nobody(machine: Machine) -> None:
    (machine.sys / "class/egm/egm4").mkdir(parents=True)
    assert egm_edits(machine.sys, machine.dev, [GPU], [GPU]) == ContainerEdits()
    machine.egm("egm5", GPU)
    (machine.root / "dev/egm5").unlink()
    with pytest.raises(DriverFilesError, match="/dev/egm5 is missing: "):
        egm_edits(machine.sys, machine.dev, [GPU], [GPU])


def test_gpus_that_go_together_get_the_memory_of_each(machine: Machine) -> None:
    machine.egm("egm4", GPU)
    machine.egm("egm5", OTHER)
    assert paths(egm_edits(machine.sys, machine.dev, [GPU, OTHER], [GPU, OTHER])) == ["/dev/egm4", "/dev/egm5"]
