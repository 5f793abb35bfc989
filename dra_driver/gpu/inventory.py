# SPDX-License-Identifier: Apache-2.0
"""What a node has, read through the NVML interface and sysfs, once over.

One bad GPU hides no other: a GPU that cannot be identified, or told whole from split, or whose calls do not return,
becomes a `Failure`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from .calls import HungError
from .facts import Failure, Gpu, Inventory, MigInstance, MigProfile, PciGpu
from .nvml import Nvml, NvmlError
from .pci import NVIDIA_DRIVER, read_pci_gpus
from .reading import ABSENT, read_gpu

__all__ = ["Failure", "Gpu", "Inventory", "MigInstance", "MigProfile", "PciGpu", "Threads", "read_inventory"]

T = TypeVar("T")


class Threads(Protocol):
    """Where calls to NVML run."""

    def library(self, ask: Callable[[], T]) -> T:
        """The answer to a question about no single GPU. Raises NvmlError."""

    def gpus(self, asks: Mapping[int, Callable[[], T]]) -> dict[int, T | NvmlError | None]:
        """The answers of several GPUs, by index; None for one that is busy with something else."""


class CallingThread:
    """Everything runs where it is asked for, without a time limit: for hardware that is simulated."""

    def library(self, ask: Callable[[], T]) -> T:
        """See Threads."""
        return ask()

    def gpus(self, asks: Mapping[int, Callable[[], T]]) -> dict[int, T | NvmlError | None]:
        """See Threads."""
        return {index: ask() for index, ask in asks.items()}


@dataclass(frozen=True, slots=True)
class _System:
    driver_version: str
    cuda_driver_version: int | None
    gpus: int


def read_inventory(
    nvml: Nvml,
    sys_root: Path,
    *,
    dev_root: Path | None = None,
    driver_root: Path | None = None,
    threads: Threads | None = None,
    before: Mapping[int, Gpu] | None = None,
) -> Inventory:
    """Everything there is. Raises NvmlError when the driver as a whole fails.

    `sys_root` is where sysfs is mounted. `dev_root` is the folder whose dev/iommu tells of iommufd, `driver_root` the
    one with the pci.ids that names products; without them neither is looked for. A GPU that is busy is as it was
    `before` (by index).
    """
    threads = threads or CallingThread()
    system = threads.library(partial(_read_system, nvml))
    answers = threads.gpus({index: partial(read_gpu, nvml, index, sys_root) for index in range(system.gpus)})
    found = [_found(index, answer, before or {}) for index, answer in answers.items()]
    found = _with_nvlink_groups(nvml, found, threads)
    gpus = [one for one in found if isinstance(one, Gpu)]
    pci_gpus = read_pci_gpus(sys_root, driver_root)
    return Inventory(
        driver_version=system.driver_version,
        cuda_driver_version=system.cuda_driver_version,
        gpus=tuple(gpus),
        failures=_located([one for one in found if isinstance(one, Failure)], gpus, pci_gpus),
        pci_gpus=pci_gpus,
        iommufd=dev_root is not None and (dev_root / "dev/iommu").exists(),
    )


def _read_system(nvml: Nvml) -> _System:
    driver_version = nvml.driver_version()
    try:
        cuda_driver_version = nvml.cuda_driver_version()
    except NvmlError:
        cuda_driver_version = None
    return _System(driver_version, cuda_driver_version, nvml.device_count())


def _found(index: int, answer: Gpu | Failure | NvmlError | None, before: Mapping[int, Gpu]) -> Gpu | Failure:
    if isinstance(answer, NvmlError):
        return Failure(index, str(answer), hung=isinstance(answer, HungError))
    return answer or before.get(index) or Failure(index, "it is being changed and was not read yet")


def _with_nvlink_groups(nvml: Nvml, found: Sequence[Gpu | Failure], threads: Threads) -> list[Gpu | Failure]:
    """The GPUs with their groups: all that reach each other, over others if need be. Split GPUs use no NVLink.

    A call about two GPUs runs on the thread of the one with the higher index, and counts against that one.
    """
    whole = [one for one in found if isinstance(one, Gpu) and not one.in_mig_mode]
    groups = {gpu.uuid: {gpu.uuid} for gpu in whole}
    problems: dict[str, tuple[str, ...]] = {}
    failures: dict[int, Failure] = {}
    for number, gpu in enumerate(whole[1:], start=1):
        others = [other for other in whole[:number] if other.index not in failures]
        [(_, answer)] = threads.gpus({gpu.index: partial(_linked, nvml, gpu, others, groups)}).items()
        if isinstance(answer, NvmlError):
            failures[gpu.index] = Failure(
                gpu.index, str(answer), gpu.uuid, gpu.pci_address, isinstance(answer, HungError)
            )
        elif answer is not None:
            linked, problems[gpu.uuid] = answer
            joined = set().union(groups[gpu.uuid], *(groups[uuid] for uuid in linked))
            groups |= dict.fromkeys(joined, joined)

    def with_group(one: Gpu | Failure) -> Gpu | Failure:
        if one.index in failures:
            return failures[one.index]
        if isinstance(one, Failure):
            return one
        group = groups.get(one.uuid, set())
        problem = (*one.problems, *problems.get(one.uuid, ()))
        return replace(one, nvlink_group=min(group) if len(group) > 1 else None, problems=problem)

    return [with_group(one) for one in found]


def _linked(
    nvml: Nvml, gpu: Gpu, others: Sequence[Gpu], groups: Mapping[str, set[str]]
) -> tuple[list[str], tuple[str, ...]]:
    """The UUIDs of the others that the GPU reaches, at least one of each group; and what could not be found out."""
    linked: list[str] = []
    problems: list[str] = []
    reached: set[str] = set()
    for other in others:
        if other.uuid in reached:
            continue
        try:
            if nvml.nvlink_peers(nvml.device_by_index(other.index), nvml.device_by_index(gpu.index)):
                linked.append(other.uuid)
                reached |= groups[other.uuid]
        except NvmlError as error:
            if error.code not in ABSENT:
                problems.append(f"{error}, for the NVLink to {other.uuid}")
    return linked, tuple(problems)


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
