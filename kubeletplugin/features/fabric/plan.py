# SPDX-License-Identifier: Apache-2.0
"""Which NVSwitch partition the GPUs of a claim are. Pure."""

from collections.abc import Iterable, Sequence

from dra_driver.gpu.fabric import Partition, SwitchFacts, modules_text

from ...errors import PrepareError
from .step import FabricStep

MemberGpu = tuple[str, str, int | None]
"""A whole GPU of a claim: its device name, its UUID (its PCI address if it is unknown), and its module ID if known."""


def fabric_steps(gpus: Iterable[MemberGpu], switches: SwitchFacts) -> tuple[FabricStep, ...]:
    """The step that activates the partition with exactly these GPUs. None on a node without partitions. Raises
    PrepareError.
    """
    members = tuple(dict.fromkeys(gpus))
    if not members:
        return ()
    if switches.shared is None and switches.problem:
        raise PrepareError(f"the NVSwitch partitions of the GPUs are unknown: {switches.problem}")
    if not switches.partitions:
        return ()
    unknown = [name for name, _, module in members if module is None]
    if unknown:
        raise PrepareError(
            f"NVML reports no module ID of {', '.join(unknown)}, so the NVSwitch partition of the claim is unknown;"
            " bind the GPU to the kernel driver nvidia"
        )
    by_module = {module: uuid for _, uuid, module in members if module is not None}
    modules = tuple(sorted(by_module))
    found = next((partition for partition in switches.partitions if partition.modules == modules), None)
    if found is None:
        raise PrepareError(_no_partition(modules, switches.partitions))
    return (FabricStep(found.id, modules, tuple(by_module[module] for module in modules)),)


def _no_partition(modules: Sequence[int], partitions: Sequence[Partition]) -> str:
    size = len(modules)
    fitting = [str(partition) for partition in partitions if len(partition.modules) == size]
    sizes = sorted({len(partition.modules) for partition in partitions})
    known = f"partitions of {size} are {'; '.join(fitting)}" if fitting else f"there are none of {size} GPUs"
    return (
        f"the claim's GPUs (modules {modules_text(modules)}) are not exactly one partition of the NVSwitches: {known};"
        f" request N of {modules_text(sizes)} GPUs in one claim, with the constraint matchAttribute:"
        " gpu.nvidia.com/partition<N>"
    )
