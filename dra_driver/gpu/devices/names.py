# SPDX-License-Identifier: Apache-2.0
"""Names of devices, as NVIDIA's DRA driver forms them, and the hardware that each name refers to.

A name contains everything that is needed to prepare the device. So its meaning does not depend on what is published.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..inventory import Gpu, Inventory, MigProfile, PciGpu
from ..nvml import Placement
from ..profiles import device_suffix


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """The place of an existing or possible MIG device."""

    gpu: Gpu
    profile: MigProfile
    placement: Placement


def gpu_name(gpu: Gpu) -> str:
    """`gpu-<minor>`."""
    return f"gpu-{gpu.minor}"


def mig_name(gpu: Gpu, profile: MigProfile, placement: Placement) -> str:
    """`gpu-<minor>-mig-<profile>-<the driver's profile id>-<first memory slice>`."""
    return f"{gpu_name(gpu)}-mig-{device_suffix(profile.name)}-{profile.info.id}-{placement.start}"


def vfio_name(gpu: PciGpu) -> str:
    """`gpu-vfio-<position on the PCI bus>`."""
    return f"gpu-vfio-{gpu.position}"


def mig_placements(gpu: Gpu) -> Iterator[tuple[str, MigPlacement]]:
    """Every possible MIG device of the GPU, by device name."""
    for profile in gpu.mig_profiles:
        for placement in profile.placements:
            yield mig_name(gpu, profile, placement), MigPlacement(gpu, profile, placement)


def device_targets(inventory: Inventory) -> Mapping[str, Gpu | MigPlacement | PciGpu]:
    """The hardware of every device name of the node, published or not."""
    targets: dict[str, Gpu | MigPlacement | PciGpu] = {}
    for gpu in inventory.gpus:
        targets[gpu_name(gpu)] = gpu
        targets.update(mig_placements(gpu))
    targets.update((vfio_name(gpu), gpu) for gpu in inventory.pci_gpus)
    return targets
