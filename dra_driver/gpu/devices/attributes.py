# SPDX-License-Identifier: Apache-2.0
"""Attributes of devices: those of NVIDIA's DRA driver, and `model`, `nvlinkGroup`, `fabricClique`, `dataDirectNIC`,
`sharesEnforcedBy`.

An attribute with an unknown value is left out. `nvlinkGroup` is equal for GPUs of a node that are connected by
NVLink. `fabricClique` (`<cluster uuid>.<clique>`) is equal for GPUs of all nodes that share an NVLink fabric. Both
are made for matchAttribute.
"""

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence

from ...kube.resource import AttributeList, AttributeValue, Version
from ...kube.resource.device import from_dotted
from ...kube.resource.limits import ATTRIBUTE_VALUE_BYTES
from ..fabric import Partition
from ..functions import NVIDIA_VENDOR
from ..imex import clique_of
from ..inventory import Gpu, Inventory, PciGpu
from ..mig import MigDevice
from ..policy import Enforcement
from ..vgpus import VgpuType

GPU_TYPE = "gpu"
MIG_TYPE = "mig"
VFIO_TYPE = "vfio"
VGPU_TYPE = "vgpu"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
ENFORCED_BY = "sharesEnforcedBy"

Attributes = dict[str, AttributeValue]

_NVIDIA = "NVIDIA "
_BRACKETS = re.compile(r"\[(.+)\]")


def model_name(product_name: str) -> str:
    """`H100-80GB-HBM3` for `NVIDIA H100 80GB HBM3`: the product name without the vendor, in one word. For a name from
    the PCI database, such as `GH100 [H100 SXM5 80GB]`, the part in brackets.
    """
    brackets = _BRACKETS.search(product_name)
    return (brackets[1] if brackets else product_name).removeprefix(_NVIDIA).replace(" ", "-")


def driver_attributes(inventory: Inventory) -> Attributes:
    """The attributes of all devices that use the NVIDIA driver."""
    cuda = inventory.cuda_driver_version
    return _known(
        {
            "driverVersion": from_dotted(inventory.driver_version),
            "cudaDriverVersion": None if cuda is None else Version(f"{cuda // 1000}.{cuda % 1000 // 10}.0"),
        }
    )


def gpu_attributes(gpu: Gpu, numa_lists: bool) -> Attributes:
    """The common attributes of a GPU and its MIG devices."""
    capability = gpu.compute_capability
    return _known(
        {
            "productName": _fitting(gpu.product_name),
            "model": None if gpu.product_name is None else _fitting(model_name(gpu.product_name)),
            "brand": gpu.brand,
            "architecture": gpu.architecture,
            "cudaComputeCapability": None if capability is None else Version(f"{capability[0]}.{capability[1]}.0"),
            "addressingMode": gpu.addressing_mode,
            **_place(gpu.pci_address, gpu.pcie_root, gpu.numa_node, numa_lists),
        }
    )


def whole_attributes(gpu: Gpu) -> Attributes:
    """The attributes of whole GPUs. MIG devices have no NVLink."""
    return _known(
        {
            "type": GPU_TYPE,
            "uuid": gpu.uuid,
            "gpuModuleID": gpu.module_id,
            "nvlinkGroup": gpu.nvlink_group,
            "dataDirectNIC": gpu.data_direct_nic,
            "fabricClique": clique_of(gpu.fabric),
        }
    )


def partition_attributes(partitions: Iterable[Partition]) -> tuple[Attributes, Mapping[int, list[int]]]:
    """`partition<N>`, the ID of the NVSwitch partition of N GPUs with this GPU; and the IDs for those sizes of which
    the GPU is in several partitions, which are left out.
    """
    by_size: dict[int, list[int]] = {}
    for partition in partitions:
        by_size.setdefault(len(partition.modules), []).append(partition.id)
    several = {size: ids for size, ids in by_size.items() if len(ids) > 1}
    return {f"partition{size}": ids[0] for size, ids in by_size.items() if size not in several}, several


def mig_attributes(device: MigDevice, uuid: str | None) -> Attributes:
    """The attributes of MIG devices. The UUID is known only if an administrator created the MIG device."""
    return _known({"type": MIG_TYPE, "uuid": uuid, "parentUUID": device.gpu_uuid, "profile": device.profile})


def vgpu_attributes(gpu: Gpu, vgpu: VgpuType, mdev: str) -> Attributes:
    """The attributes of vGPUs. The UUID of a mediated device is known only if it exists. KubeVirt reads it."""
    known = {"type": VGPU_TYPE, "parentUUID": gpu.uuid, "vgpuType": vgpu.name, "profile": vgpu.profile}
    return _known({**known, "mdevUUID": mdev or None})


def enforced_by(enforcement: Enforcement) -> Attributes:
    """The attribute of devices whose shares are enforced."""
    return {} if enforcement is Enforcement.NONE else {ENFORCED_BY: enforcement.value}


def vfio_attributes(pci: PciGpu, gpu: Gpu | None, iommufd: bool, numa_lists: bool) -> Attributes:
    """The attributes of a GPU for virtual machines. `gpu` is the same GPU in NVML, or None if NVML does not see it.

    The UUID is derived from the address, and the model comes from the PCI database, so that both stay the same when the
    GPU is bound to another driver.
    """
    return _known(
        {
            "type": VFIO_TYPE,
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, pci.address)),
            "deviceID": f"0x{pci.device_id:04x}",
            "vendorID": f"0x{NVIDIA_VENDOR:04x}",
            "productName": _fitting(pci.product_name),
            "model": None if pci.product_name is None else _fitting(model_name(pci.product_name)),
            "iommuFDEnabled": iommufd,
            "gpuModuleID": None if gpu is None else gpu.module_id,
            **_place(pci.address, pci.pcie_root, pci.numa_node, numa_lists),
        }
    )


def group_attributes(addresses: Sequence[str], lists: bool) -> Attributes:
    """The attributes of a vfio device with several GPUs, which share an IOMMU group. The others are the first GPU's."""
    if len(addresses) == 1:
        return {}
    return {"gpus": len(addresses), **({"pciBusIDs": AttributeList("strings", tuple(addresses))} if lists else {})}


def _place(
    address: str | None, root: str | None, numa_node: int | None, lists: bool
) -> Mapping[str, AttributeValue | None]:
    """The location of the device, in the attributes that Kubernetes has standardized."""
    numa = AttributeList("ints", (numa_node,)) if lists and numa_node is not None else numa_node
    return {
        PCI_BUS_ID: address,
        "resource.kubernetes.io/pcieRoot": root,
        "resource.kubernetes.io/numaNode": numa,
    }


def _known(attributes: Mapping[str, AttributeValue | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _fitting(text: str | None) -> str | None:
    """The text, cut to the maximum length of an attribute."""
    if text is None:
        return None
    return text.encode()[:ATTRIBUTE_VALUE_BYTES].decode(errors="ignore")
