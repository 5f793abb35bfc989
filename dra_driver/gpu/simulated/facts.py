# SPDX-License-Identifier: Apache-2.0
"""What the driver finds on a simulated node, from the description alone.

A simulated node has hundreds of files. Who needs nothing but the node's facts gets them here in a fraction of the time.
A test compares them with those of nodes that are made and read (`read_inventory`).
"""

from collections.abc import Mapping
from dataclasses import replace

from ..fabric import Partition, SwitchFacts
from ..facts import Gpu, Inventory, MigProfile, PciGpu
from ..inventory import architecture_name, brand_name
from ..mig import MigInstance
from ..nvml import Architecture, Fabric, FabricState, MigMode, Placement
from ..pci import NVIDIA_DRIVER, addressable_memory
from ..vgpus import VgpuHost
from .description import GpuDescription, NodeDescription, first_state
from .files import iommu_group, product_names, resource_text
from .limits import has_limits
from .nvml import ADDRESSING_MODE, BRAND, cuda_version, gpu_uuid, mig_uuid, module_id
from .vgpu import vgpu_addresses, vgpu_types


def inventory_of(node: NodeDescription, identity: str) -> Inventory:
    """The GPUs of the node that `SimulatedNode.create` makes of this description and identity, without its faults."""
    gpus = [_gpu(node, position, identity) for position in range(len(node.gpus))]
    linked = {
        gpu.uuid
        for gpu, described in zip(gpus, node.gpus, strict=True)
        if described.board.nvlinks and not gpu.in_mig_mode
    }
    group = min(linked) if len(linked) > 1 else None
    names = product_names(node)
    partitions = tuple(
        Partition(number, tuple(sorted(modules))) for number, modules in enumerate(node.partitions, start=1)
    )
    return Inventory(
        driver_version=node.driver_version,
        cuda_driver_version=cuda_version(node),
        gpus=tuple(replace(gpu, nvlink_group=group) if gpu.uuid in linked else gpu for gpu in gpus),
        pci_gpus=tuple(_pci_gpu(gpu, position, names) for position, gpu in enumerate(node.gpus)),
        iommufd=True,
        switches=SwitchFacts(partitions, True) if partitions else SwitchFacts(),
    )


def _gpu(node: NodeDescription, position: int, identity: str) -> Gpu:
    gpu, uuid = node.gpus[position], gpu_uuid(identity, position)
    board = gpu.board
    switchable = bool(board.profiles) and board.architecture >= Architecture.HOPPER and not gpu.vgpu
    # NVML is asked in the order of its constants.
    profiles = sorted(board.profiles, key=lambda profile: profile.info.constant) if gpu.mig or switchable else ()
    found = Gpu(
        index=position,
        minor=gpu.minor,
        uuid=uuid,
        product_name=board.product_name,
        brand=brand_name(BRAND),
        architecture=architecture_name(board.architecture),
        compute_capability=board.compute_capability,
        memory=board.memory_mib << 20,
        pci_address=gpu.pci_address,
        pcie_root=gpu.pcie_root,
        numa_node=_numa_node(gpu),
        addressing_mode=ADDRESSING_MODE,
        module_id=module_id(board, position) or None,
        fabric=_fabric(node, identity),
        is_vgpu=gpu.vgpu,
        vgpu_host=_vgpu_host(gpu),
        memory_limits=has_limits(node.driver_version),
        mig_mode=MigMode(gpu.mig, gpu.mig) if board.profiles else None,
        mig_switchable=switchable,
        mig_profiles=tuple(MigProfile(profile.info.name, profile.info, profile.placements) for profile in profiles),
    )
    return replace(found, mig_instances=_instances(found, gpu)) if gpu.instances else found


def _instances(found: Gpu, gpu: GpuDescription) -> tuple[MigInstance, ...]:
    return tuple(
        MigInstance(
            found.mig_device(instance.profile_id, Placement(instance.start, instance.size)),
            instance.id,
            compute.id,
            mig_uuid(found.uuid, instance.id, compute.id),
        )
        for instance in sorted(first_state(gpu).gpu_instances, key=lambda instance: instance.id)
        for compute in instance.compute_instances
    )


def _fabric(node: NodeDescription, identity: str) -> Fabric | None:
    """The registration with the fabric, for which the GPUs of a node with NVSwitch partitions wait."""
    if node.fabric is None:
        return None
    if node.partitions:
        return Fabric(FabricState.IN_PROGRESS)
    fabric = node.fabric.of_node(identity)
    return Fabric(FabricState.COMPLETED, fabric.cluster_uuid, fabric.clique)


def _vgpu_host(gpu: GpuDescription) -> VgpuHost | None:
    host = None if gpu.vgpu else gpu.vgpu_host
    if host is None:
        return None
    return VgpuHost(vgpu_types(gpu.board, host), host.framework, vgpu_addresses(gpu, host), existing=())


def _pci_gpu(gpu: GpuDescription, position: int, names: Mapping[int, str]) -> PciGpu:
    device_id = gpu.board.pci_device_id >> 16
    return PciGpu(
        position=position,
        address=gpu.pci_address,
        device_id=device_id,
        product_name=names[device_id],
        driver=NVIDIA_DRIVER,
        iommu_group=iommu_group(position),
        addressable_memory=addressable_memory(resource_text(position, gpu.board)),
        pcie_root=gpu.pcie_root,
        numa_node=_numa_node(gpu),
        virtual_functions=gpu.virtual_functions,
    )


def _numa_node(gpu: GpuDescription) -> int | None:
    return None if gpu.numa_node == -1 else gpu.numa_node  # -1: unknown, as in sysfs
