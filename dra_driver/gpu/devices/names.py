# SPDX-License-Identifier: Apache-2.0
"""Names of devices, as NVIDIA's DRA driver forms them, and the hardware that each name stands for.

A name contains everything that is needed to prepare the device, so it means the same whatever is published.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..inventory import Gpu, Inventory, MigProfile, PciGpu
from ..nvml import Placement
from ..profiles import device_suffix


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """A MIG device that a name stands for: where it is or will be."""

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
    """Every MIG device that the GPU could have, by device name."""
    for profile in gpu.mig_profiles:
        for placement in profile.placements:
            yield mig_name(gpu, profile, placement), MigPlacement(gpu, profile, placement)


def device_targets(inventory: Inventory) -> Mapping[str, Gpu | MigPlacement | PciGpu]:
    """What every device name of the node stands for, published at the moment or not."""
    targets: dict[str, Gpu | MigPlacement | PciGpu] = {}
    for gpu in inventory.gpus:
        targets[gpu_name(gpu)] = gpu
        targets.update(mig_placements(gpu))
    targets.update((vfio_name(gpu), gpu) for gpu in inventory.pci_gpus)
    return targets
