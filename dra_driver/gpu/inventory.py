# SPDX-License-Identifier: Apache-2.0
"""What a node has, read through the NVML gateway and sysfs, once over.

One bad GPU hides no other: a GPU that cannot be identified, or told whole from split, becomes a `Failure`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .facts import Failure, Gpu, Inventory, MigInstance, MigProfile, PciGpu
from .nvml import Nvml, NvmlError
from .pci import NVIDIA_DRIVER, read_pci_gpus
from .reading import ABSENT, read_gpu

__all__ = ["Failure", "Gpu", "Inventory", "MigInstance", "MigProfile", "PciGpu", "read_inventory"]


def read_inventory(
    nvml: Nvml, sys_root: Path, *, dev_root: Path | None = None, driver_root: Path | None = None
) -> Inventory:
    """Everything there is. Raises NvmlError when the driver as a whole fails.

    `sys_root` is where sysfs is mounted. `dev_root` is the folder whose dev/iommu tells of iommufd, `driver_root` the
    one with the pci.ids that names products; without them neither is looked for.
    """
    driver_version = nvml.driver_version()
    try:
        cuda_driver_version = nvml.cuda_driver_version()
    except NvmlError:
        cuda_driver_version = None
    found = [read_gpu(nvml, index, sys_root) for index in range(nvml.device_count())]
    gpus = [one for one in found if isinstance(one, Gpu)]
    pci_gpus = read_pci_gpus(sys_root, driver_root)
    return Inventory(
        driver_version=driver_version,
        cuda_driver_version=cuda_driver_version,
        gpus=_with_nvlink_groups(nvml, gpus),
        failures=_located([one for one in found if isinstance(one, Failure)], gpus, pci_gpus),
        pci_gpus=pci_gpus,
        iommufd=dev_root is not None and (dev_root / "dev/iommu").exists(),
    )


def _with_nvlink_groups(nvml: Nvml, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs with their groups: all that reach each other, over others if need be. Split GPUs use no NVLink."""
    groups = [{gpu.uuid} for gpu in gpus]
    problems: dict[str, list[str]] = {}
    for second, gpu in enumerate(gpus):
        for first, other in enumerate(gpus[:second]):
            if gpu.in_mig_mode or other.in_mig_mode or groups[first] is groups[second]:
                continue
            try:
                linked = nvml.nvlink_peers(nvml.device_by_index(other.index), nvml.device_by_index(gpu.index))
            except NvmlError as error:
                linked = False
                if error.code not in ABSENT:
                    problems.setdefault(gpu.uuid, []).append(f"{error}, for the NVLink to {other.uuid}")
            if linked:
                joined = groups[first] | groups[second]
                groups = [joined if group <= joined else group for group in groups]
    return tuple(
        replace(
            gpu,
            nvlink_group=min(group) if len(group) > 1 else None,
            problems=(*gpu.problems, *problems.get(gpu.uuid, ())),
        )
        for gpu, group in zip(gpus, groups, strict=True)
    )


def _located(failures: Sequence[Failure], gpus: Sequence[Gpu], pci_gpus: Sequence[PciGpu]) -> tuple[Failure, ...]:
    """The failures with their addresses. One that did not tell its own has one that is left over: NVML's order is that
    of the addresses, so when as many are left over as are missing, they belong together in that order.
    """
    taken = {gpu.pci_address for gpu in gpus} | {failure.pci_address for failure in failures}
    left = [one.address for one in pci_gpus if one.driver == NVIDIA_DRIVER and one.address not in taken]
    missing = [failure for failure in failures if failure.pci_address is None]
    if len(left) != len(missing):
        return tuple(failures)
    addresses = iter(left)
    return tuple(
        failure if failure.pci_address else replace(failure, pci_address=next(addresses)) for failure in failures
    )
