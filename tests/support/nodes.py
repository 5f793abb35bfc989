# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes for tests, and nodes as bare facts where no hardware is touched."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dra_driver.gpu.devices import GpuDevices, describe
from dra_driver.gpu.inventory import Gpu, Inventory, MigProfile, PciGpu, read_inventory
from dra_driver.gpu.mig import MigDevice, MigInstance
from dra_driver.gpu.nvml import Architecture, Fabric, FabricState, GpuInstanceProfile, MigMode, Nvml, Placement
from dra_driver.gpu.options import Hardware
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.simulated import load_description
from dra_driver.gpu.simulated.board import BoardModel, ProfileModel
from dra_driver.gpu.simulated.state import BoardState
from dra_driver.gpu.simulated.store import StateFolder
from kubeletplugin.containers.cdi import DriverRoot, Root

from .hardware import ControlledNode

CLUSTER_UUID = "5a1f0c1e-6c3e-4a6f-9f0e-2b7d8c9e0f11"


@dataclass(frozen=True)
class TestNode:
    """A simulated node and an initialized gateway to it."""

    __test__ = False

    node: ControlledNode
    nvml: Nvml

    @property
    def sys_root(self) -> Path:
        """Its sysfs."""
        return self.node.driver_root / "sys"

    def inventory(self) -> Inventory:
        """What it has."""
        return read_inventory(self.nvml, self.sys_root)

    def describe(self, policy: NodePolicy | None = None) -> tuple[GpuDevices, ...]:
        """Its devices."""
        return describe(self.inventory(), policy or NodePolicy()).gpus


def make_node(root: Path, name: str, identity: str = "node-a") -> TestNode:
    """The shipped (or described) node `name`, made in `root`."""
    node = ControlledNode.create(root, load_description(name), identity)
    nvml = node.nvml()
    nvml.initialize()
    return TestNode(node, nvml)


def driver_root_of(path: Path, host_path: str = "/") -> DriverRoot:
    """The driver on a node whose whole root file system, with `/proc` and `/sys`, is visible at `path`."""
    root = Root(path, host_path)
    return DriverRoot(root, root, root.here("/proc"), root.here("/sys"), root)


def hardware_of(path: Path, nvml: Callable[[], Nvml]) -> Hardware:
    """The hardware of a node whose whole root file system, with `/proc` and `/sys`, is visible at `path`."""
    return Hardware(nvml, path, Path("/"), path, path / "proc", path / "sys", path)


def stored_boards(node: ControlledNode) -> list[BoardState]:
    """The state of each GPU as it is stored: to look at it takes a fraction of the time that NVML takes to read all of
    a node, and needs no driver.
    """
    store = StateFolder(node.root / "state")
    return [store.read_board(index) for index in range(len(list(store.folder.glob("gpu-*.json"))))]


def stored_instances(node: ControlledNode) -> list[tuple[int, str, list[int]]]:
    """The GPU instances of all GPUs, in order: index of the GPU, `start:size`, and the ids of the compute instances."""
    return sorted(
        (index, f"{one.start}:{one.size}", [compute.id for compute in one.compute_instances])
        for index, board in enumerate(stored_boards(node))
        for one in board.gpu_instances
    )


def board_inventory(model: BoardModel, count: int, *, mig: bool = False) -> Inventory:
    """The facts of a node with `count` such GPUs, of which everything is known that can be."""
    gpus = tuple(board_gpu(model, index, mig=mig) for index in range(count))
    return Inventory("570.158.01", 12080, gpus, pci_gpus=tuple(map(on_bus, gpus)), iommufd=True)


def board_gpu(model: BoardModel, index: int, *, mig: bool = False) -> Gpu:
    """The facts of one GPU, with as many attributes as any has."""
    switchable = bool(model.profiles) and model.architecture >= Architecture.HOPPER
    profiles = tuple(MigProfile(one.info.name, one.info, one.placements) for one in model.profiles)
    return Gpu(
        index=index,
        minor=index,
        uuid=f"GPU-{index:08x}-8888-4444-2222-123456789abc",
        product_name=model.product_name,
        brand="Nvidia",
        architecture=model.architecture.name.capitalize(),
        compute_capability=model.compute_capability,
        memory=model.memory_mib << 20,
        pci_address=f"0000:{0x10 + index:02x}:00.0",
        pcie_root=f"pci0000:{0x10 + index:02x}",
        numa_node=index % 2,
        addressing_mode="None",
        module_id=index + 1,
        nvlink_group="GPU-00000000-8888-4444-2222-123456789abc",
        data_direct_nic=f"0000:{0x60 + index:02x}:00.0",
        fabric=Fabric(FabricState.COMPLETED, CLUSTER_UUID, 1),
        mig_mode=MigMode(mig, mig) if model.profiles else None,
        mig_switchable=switchable,
        mig_profiles=profiles if switchable or mig else (),
    )


def on_bus(gpu: Gpu, driver: str | None = "nvidia") -> PciGpu:
    """The same GPU on the PCI bus."""
    assert gpu.pci_address is not None
    name = "GH100 [H100 SXM5 80GB]"
    return PciGpu(gpu.index, gpu.pci_address, 0x2330, name, driver, gpu.index, 128 << 30, gpu.pcie_root, gpu.numa_node)


def mig_device(gpu: Gpu, info: GpuInstanceProfile, placement: Placement) -> MigDevice:
    """A MIG device of a GPU, which need not have the profile."""
    return MigDevice(gpu.uuid, info.id, placement, gpu.minor, info.name, info.slice_count)


def mig_instances(gpu: Gpu, where: Iterable[tuple[ProfileModel, Placement]]) -> tuple[MigInstance, ...]:
    """The MIG devices of these profiles and placements."""
    return tuple(
        MigInstance(mig_device(gpu, profile.info, placement), number, 0, f"MIG-{gpu.index:08x}-{number}")
        for number, (profile, placement) in enumerate(where)
    )
