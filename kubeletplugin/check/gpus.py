# SPDX-License-Identifier: Apache-2.0
"""Checks of the GPUs as NVML reports them, of their device nodes, and of MIG."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.cdi import DriverRoot, character_majors, find_node
from dra_driver.gpu.inventory import Gpu, Inventory
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.options import Hardware

from .finding import CheckResult, failed, passed, warned

NVML, GPUS, MIG, NODES, CAPABILITIES = "nvml", "gpus", "mig", "device nodes", "mig capabilities"

_REMEDIES: Mapping[Return, str] = {
    Return.LIBRARY_NOT_FOUND: "set --nvidia-driver-root (chart: nvidiaDriverRoot) to where the driver is",
    Return.DRIVER_NOT_LOADED: "`modprobe nvidia`, and read `dmesg | grep -i nvrm` when that does not help",
    Return.LIB_RM_VERSION_MISMATCH: "reload the nvidia modules, or restart the node: library and module differ",
    Return.NO_PERMISSION: "run as root with the GPUs' device nodes, in a container privileged",
    Return.GPU_IS_LOST: "a GPU fell off the bus: read `dmesg | grep -i xid` and restart the node",
}
_LOSSES = {
    "/dev/nvidiactl": "no program can use a GPU",
    "/dev/nvidia-uvm": "CUDA programs cannot start",
}
_REGISTERED = {
    # node -> names of its driver in /proc/devices, minor
    "/dev/nvidiactl": (("nvidiactl", "nvidia-frontend", "nvidia"), 255),
    "/dev/nvidia-uvm": (("nvidia-uvm",), 0),
}
_GPU_DRIVERS = ("nvidia", "nvidia-frontend")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What NVML says, or why nothing.

    `missing` are device nodes that neither exist nor could be made from /proc/devices, `odd` sentences about nodes that
    are no devices; `capabilities` says that the driver offers those of MIG.
    """

    inventory: Inventory | None
    error: NvmlError | None = None
    missing: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    capabilities: bool = True


def read_gpus(hardware: Hardware, root: DriverRoot) -> GpuFacts:
    """Ask NVML, and look for the nodes of what it names below `root`. A call that hangs counts as one that failed."""
    try:
        with contextlib.closing(hardware.session()) as session:
            inventory = session.inventory()
    except NvmlError as error:
        return GpuFacts(None, error)
    majors = character_majors(root.proc)
    wanted = dict(_REGISTERED)
    wanted |= {f"/dev/nvidia{gpu.minor}": (_GPU_DRIVERS, gpu.minor) for gpu in inventory.gpus}
    found = {path: find_node(root, path, majors, names, minor) for path, (names, minor) in wanted.items()}
    return GpuFacts(
        inventory,
        missing=tuple(path for path, (node, _) in found.items() if node is None),
        odd=tuple(warning for _, warning in found.values() if warning),
        capabilities="nvidia-caps" in majors and (root.proc / "driver/nvidia/capabilities/mig/config").exists(),
    )


def gpu_findings(facts: GpuFacts) -> Iterator[CheckResult]:
    """NVML, the GPUs, MIG, device nodes."""
    if facts.inventory is None:
        remedy = _REMEDIES.get(facts.error.code) if facts.error else None
        yield failed(NVML, f"does not answer: {facts.error}", remedy or "see that `nvidia-smi` works on the host first")
        return
    inventory = facts.inventory
    cuda = inventory.cuda_driver_version
    yield passed(
        NVML, f"driver {inventory.driver_version}" + (f", CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")
    )
    yield from _gpus(inventory)
    yield from _nodes(facts)
    capable = [gpu for gpu in inventory.gpus if gpu.mig_mode is not None]
    yield from _mig(capable, len(inventory.gpus))
    if capable:
        yield _capabilities(facts.capabilities, any(gpu.in_mig_mode for gpu in capable))


def _gpus(inventory: Inventory) -> Iterator[CheckResult]:
    for failure in inventory.failures:
        yield warned(
            GPUS,
            f"GPU {failure.index} is left out: {failure.reason}",
            "read `nvidia-smi` and `dmesg | grep -i xid` on the host; reset or replace the GPU",
        )
    for gpu in inventory.gpus:
        for problem in gpu.problems:
            yield warned(
                GPUS, f"GPU {gpu.index} ({gpu.uuid}): {problem}", "attributes will be missing; upgrade NVIDIA's driver"
            )
    if not inventory.gpus:
        yield warned(
            GPUS,
            "no GPU works" if inventory.failures else "there is none",
            "there is nothing to publish here; run the DaemonSet only on GPU nodes (chart: kubeletPlugin.affinity)",
        )
        return
    counts = Counter(gpu.product_name or "unnamed" for gpu in inventory.gpus)
    yield passed(GPUS, ", ".join(f"{count} x {name}" for name, count in counts.items()))


def _nodes(facts: GpuFacts) -> Iterator[CheckResult]:
    for path in facts.missing:
        if path == "/dev/nvidia-uvm":
            yield warned(
                NODES, f"{path} is missing and its module not loaded: {_LOSSES[path]}", "`modprobe nvidia-uvm`"
            )
        else:
            loss = _LOSSES.get(path, "the GPU cannot be given to a pod")
            yield failed(
                NODES,
                f"{path} is missing: {loss}",
                "run `nvidia-smi` once on the host, which creates the device nodes; a container must be privileged",
            )
    if facts.odd:
        more = f" (and {len(facts.odd) - 1} more)" if len(facts.odd) > 1 else ""
        yield warned(
            NODES,
            facts.odd[0] + more,
            "on a real node, remove that file and run `nvidia-smi`, which creates the device nodes",
        )
    if not facts.missing and not facts.odd:
        yield passed(NODES, "all exist, or the runtime can create them")


def _mig(capable: Sequence[Gpu], total: int) -> Iterator[CheckResult]:
    for gpu in capable:
        mode = gpu.mig_mode
        if mode is not None and mode.current != mode.pending:
            states = ("off", "on")
            yield warned(
                MIG,
                f"GPU {gpu.index} ({gpu.uuid}) is to switch MIG mode {states[mode.pending]} and still has it"
                f" {states[mode.current]}",
                "stop what uses the GPU and reset it (`nvidia-smi --gpu-reset -i INDEX`), or restart the node",
            )
    if not capable:
        yield passed(MIG, "no GPU supports MIG" if total else "no GPUs")
        return
    on = sum(gpu.in_mig_mode for gpu in capable)
    yield passed(MIG, f"{len(capable)} of {total} GPUs support MIG, {on} in MIG mode")


def _capabilities(offered: bool, in_use: bool) -> CheckResult:
    if offered:
        return passed(CAPABILITIES, "the driver offers them")
    text = "the driver offers no MIG capabilities (nvidia-caps in /proc/devices, /proc/driver/nvidia/capabilities)"
    remedy = "load the nvidia module of a driver that knows MIG, and let this process see the host's /proc"
    return failed(CAPABILITIES, text, remedy) if in_use else warned(CAPABILITIES, text, remedy)
