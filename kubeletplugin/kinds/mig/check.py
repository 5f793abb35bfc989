# SPDX-License-Identifier: Apache-2.0
"""The check of MIG: modes that wait for a reset, and the capabilities that the driver offers for MIG devices."""

from collections.abc import Iterator, Sequence

from dra_driver.gpu.inventory import Gpu

from ...checkfacts import CheckFacts
from ...containers.cdi import character_majors
from ...finding import CheckResult, NodeCheck

MIG, CAPABILITIES = NodeCheck("mig"), NodeCheck("mig capabilities")


def mig_findings(facts: CheckFacts) -> Iterator[CheckResult]:
    """Look at the GPUs, and at the files of the driver in /proc."""
    if facts.inventory is None:
        return
    proc = facts.node.folders.hardware.proc_root
    offered = "nvidia-caps" in character_majors(proc) and (proc / "driver/nvidia/capabilities/mig/config").exists()
    yield from mig_mode_findings(facts.inventory.gpus, offered)


def mig_mode_findings(gpus: Sequence[Gpu], offered: bool) -> Iterator[CheckResult]:
    """The findings about these GPUs. `offered` tells whether the driver offers MIG capabilities."""
    capable = [gpu for gpu in gpus if gpu.mig_mode is not None]
    for gpu in capable:
        mode = gpu.mig_mode
        if mode is not None and mode.current != mode.pending:
            states = ("off", "on")
            yield MIG.warned(
                f"GPU {gpu.index} ({gpu.uuid}) waits for a reset that switches MIG mode {states[mode.pending]}; it is"
                f" still {states[mode.current]}",
                "stop what uses the GPU and reset it (`nvidia-smi --gpu-reset -i INDEX`), or restart the node",
            )
    if not capable:
        yield MIG.passed("no GPU supports MIG" if gpus else "no GPUs")
        return
    on = sum(gpu.in_mig_mode for gpu in capable)
    yield MIG.passed(f"{len(capable)} of {len(gpus)} GPUs support MIG, {on} in MIG mode")
    if offered:
        yield CAPABILITIES.passed("the driver offers them")
        return
    text = "the driver offers no MIG capabilities (nvidia-caps in /proc/devices, /proc/driver/nvidia/capabilities)"
    remedy = "load the nvidia module of a driver that supports MIG, and give this process the host's /proc"
    yield CAPABILITIES.failed(text, remedy) if on else CAPABILITIES.warned(text, remedy)
