# SPDX-License-Identifier: Apache-2.0
"""The check of vGPUs: which of them claims can get."""

from collections.abc import Iterator
from typing import Final

from dra_driver.gpu.devices import NO_VGPU_MANAGER, Forms, Reason, vgpu_forms
from dra_driver.gpu.inventory import Gpu, PciGpu

from ..checkfacts import CheckFacts
from ..finding import CheckResult, NodeCheck

VGPUS: Final = NodeCheck("vGPUs")

_REMEDIES: Final = {
    Reason.VGPU_HOST: "install NVIDIA's vGPU manager, enable the virtual functions of the board (sriov-manage -e), or"
    " remove vgpuTypes for this GPU",
    Reason.VGPU_TYPES: "correct vgpuTypes in the policy",
    Reason.FOREIGN_VGPU: "remove the vGPUs that were created by hand, or vgpuTypes for this GPU",
}


def vgpu_findings(facts: CheckFacts) -> Iterator[CheckResult]:
    """Look at the GPUs that the policy gives to virtual machines as vGPUs."""
    if facts.inventory is None:
        return
    by_address = {gpu.pci_address: gpu for gpu in facts.inventory.gpus}
    for pci in facts.inventory.pci_gpus:
        gpu = by_address.get(pci.address)
        if gpu is not None and facts.policy.for_gpu(gpu, pci).vgpu_types:
            yield from _findings(pci.address, _forms(facts, gpu, pci))


def _forms(facts: CheckFacts, gpu: Gpu, pci: PciGpu) -> Forms:
    if gpu.vgpu_host is None:
        return Forms(complaints=(NO_VGPU_MANAGER,))
    owned = frozenset(facts.node.taken.vgpus.all())
    return vgpu_forms(gpu, gpu.vgpu_host, pci, facts.policy.for_gpu(gpu, pci), owned, partitionable=True)


def _findings(address: str, forms: Forms) -> Iterator[CheckResult]:
    for reason, text in forms.complaints:
        yield VGPUS.warned(f"GPU {address}: left out: {text}", _REMEDIES.get(reason, "see the text"))
    if forms.vgpus:
        names = ", ".join(sorted({vgpu.type.name for vgpu, _ in forms.vgpus}))
        yield VGPUS.passed(f"GPU {address} is published as {len(forms.vgpus)} vGPUs ({names})")
