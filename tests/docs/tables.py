# SPDX-License-Identifier: Apache-2.0
"""The tables of the documentation that are made from what the code has.

`python -m tests.docs.tables` writes them. A table stands between `<!-- table: NAME -->` and `<!-- end -->`; the text
around it is written by hand.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import click

from dra_driver.gpu.devices import describe
from dra_driver.gpu.fabric import Partition, SwitchFacts
from dra_driver.gpu.health.meanings import MEANINGS, XID, Gravity, Lasts, Meaning
from dra_driver.gpu.policy import Enforcement, GpuRule, HealthPolicy, MigPolicy, NodePolicy, PassthroughMode
from dra_driver.gpu.simulated.board import boards
from dra_driver.gpu.vgpus import VgpuFramework, VgpuHost, VgpuPlace, VgpuType, VgpuTypes
from dra_driver.kube.resource import Device
from dra_driver.kube.resource.device import attribute_kind
from tests.support.nodes import board_inventory, mig_instances

from . import cel, releases
from .checks import OURS
from .commands import PAGES
from .metrics import (
    alerts,
    of_cluster_controller,
    of_compute_domains,
    of_controller,
    of_imex_daemon,
    of_kubeletplugin,
)

DOCUMENTS = tuple(path for path in PAGES if "<!-- table: " in path.read_text(encoding="utf-8"))
"""The pages that have tables."""

MODEL = "H100-SXM5-80GB"

ATTRIBUTES: Mapping[str, str] = {
    "type": "`gpu`, `mig`, `vfio` or `vgpu`; the DeviceClasses select by this attribute",
    "uuid": "the UUID that NVML reports; a MIG placement has none; for vfio devices derived from the PCI address",
    "parentUUID": "the GPU that a MIG device or vGPU is part of; `matchAttribute` on it asks for parts of one GPU",
    "profile": "the MIG profile; for vGPUs the end of the type, such as `12Q`",
    "vgpuType": "the type of a vGPU",
    "mdevUUID": "the UUID of a mediated device; only of vGPUs that an administrator created, and in the metadata of"
    " claims",
    "model": "the product name without the vendor, in one word",
    "productName": "the name that NVML reports; for vfio devices the name in the PCI database",
    "brand": "the brand that NVML reports",
    "architecture": "the architecture of the GPU",
    "cudaComputeCapability": "the CUDA compute capability",
    "driverVersion": "the version of the NVIDIA driver",
    "cudaDriverVersion": "the newest CUDA version that the NVIDIA driver supports",
    "addressingMode": "`HMM`, `ATS` or `None`",
    "gpuModuleID": "the position of the GPU on its board",
    "nvlinkGroup": "equal for all GPUs of a node that are connected by NVLink",
    "dataDirectNIC": "the PCI address of the NIC that Data Direct pairs with the GPU (GB300): [GPUs and"
    " NICs](../how-to/gpus-and-nics.md)",
    "fabricClique": "cluster UUID and clique of the NVLink fabric, equal on all nodes of the clique",
    "partition<N>": "the ID of the [NVSwitch partition](../how-to/nvswitch-partitions.md) of N GPUs"
    " with this GPU, for `matchAttribute`; only if Fabric Manager lists partitions",
    "sharesEnforcedBy": "what limits [shares](../how-to/share-with-limits.md): `mps` or `memory-limits`;"
    " only with such a policy",
    "vendorID": "the PCI vendor ID",
    "deviceID": "the PCI device ID",
    "iommuFDEnabled": "whether the node has `/dev/iommu`",
    "gpus": "the number of GPUs, if the device is [several"
    " GPUs](../how-to/virtual-machines.md#gpus-that-share-an-iommu-group); with"
    " `listTypeAttributes`, `pciBusIDs` has their addresses",
    "resource.kubernetes.io/pciBusID": "standard attribute, also used by other DRA drivers; for vGPUs the function"
    " that is or has the vGPU",
    "resource.kubernetes.io/pcieRoot": "standard attribute; equal for devices below one PCIe root (GPU, NIC)",
    "resource.kubernetes.io/numaNode": "standard attribute; a list if `listTypeAttributes` is set",
}
CAPACITIES: Mapping[str, str] = {
    "memory": "bytes",
    "multiprocessors": "streaming multiprocessors (SMs)",
    "copyEngines": "copy engines",
    "decoders": "video decoders",
    "encoders": "video encoders",
    "jpegEngines": "JPEG decoders",
    "ofaEngines": "optical flow accelerators",
    "memorySlice<i>": "1 for each memory slice that an existing MIG device occupies",
    "addressableMemory": "bytes of the PCI BARs",
    "shares": "how many claims may share the device, if the policy allows sharing",
}


def published() -> list[tuple[str, Device]]:
    """(kind, device) of a node that has every form of device."""
    model = boards()[MODEL]
    inventory = board_inventory(model, 5, mig=True)
    rules = (
        GpuRule(mig=MigPolicy.DYNAMIC, passthrough=True, shares=4, enforce=Enforcement.MPS),
        GpuRule(indexes=(1,), passthrough=False),
        GpuRule(indexes=(2,), vgpu_types=("20C",)),
        GpuRule(indexes=(3, 4), passthrough=PassthroughMode.ONLY),
    )
    profile = next(one for one in model.profiles if one.info.name == "3g.40gb")
    first, second, third, *group = inventory.gpus
    taken = replace(second, mig_instances=mig_instances(second, [(profile, profile.placements[1])]))
    switches = SwitchFacts((Partition(4, (1, 2)),), True)
    address = str(third.pci_address)
    types = VgpuTypes(mixed=False, types=(VgpuType(1104, "H100-20C", 20 << 30, 1, tuple(range(4))),))
    created = VgpuPlace(third.uuid, address, 1104, "b0e0d5b2-2f7c-4d3e-8a51-6c1d0e9f7a42")
    host = replace(third, vgpu_host=VgpuHost(types, VgpuFramework.MDEV, (address,), (created,)))
    *alone, one, other = inventory.pci_gpus
    together = (replace(one, group_gpus=(other.address,)), replace(other, group_gpus=(one.address,)))
    node = replace(inventory, gpus=(first, taken, host, *group), pci_gpus=(*alone, *together), switches=switches)
    description = describe(node, NodePolicy(rules, mps=True))
    kinds = {"gpu": "gpu", "vfio": "vfio", "vgpu": "vgpu"}
    return [
        (kinds.get(kind, "mig" if "uuid" in device.attributes else "mig placement"), device)
        for gpu in description.gpus
        for device in gpu.devices
        for kind in [str(device.attributes["type"])]
    ]


def attributes() -> Iterator[Sequence[str]]:
    """Name, type, devices, example, meaning."""
    yield "attribute", "type", "devices", "example", "meaning"
    devices = published()
    for name, meaning in ATTRIBUTES.items():
        found = ((kind, key, one) for kind, device in devices for key, one in device.attributes.items())
        having = [(kind, one) for kind, key, one in found if _family(key) == name]
        value = having[0][1]
        yield f"`{name}`", attribute_kind(value), _kinds(kind for kind, _ in having), f"`{_text(value)}`", meaning


def capacities() -> Iterator[Sequence[str]]:
    """Name, devices, meaning."""
    yield "capacity", "devices", "meaning"
    devices = published()
    for name, meaning in CAPACITIES.items():
        having = (kind for kind, device in devices if name in {_family(one) for one in device.capacity})
        yield f"`{name}`", _kinds(having), meaning


def taints() -> Iterator[Sequence[str]]:
    """Key, value, effect, when it ends, meaning."""
    yield "key", "value", "effect", "ends", "meaning"
    xids = {
        "application XIDs": Meaning(Gravity.NOTE, Lasts.QUIET, "an error of an application"),
        "XIDs that need no reset": Meaning(Gravity.DEGRADED, Lasts.QUIET, "a temporary error"),
        "other XIDs": Meaning(Gravity.FATAL, Lasts.RESET, "an error of the GPU"),
    }
    for (key, value), one in {**{(XID, value): one for value, one in xids.items()}, **MEANINGS}.items():
        shown = "" if not value else value if " " in value else f"`{value}`"
        yield f"`{key}`", shown, str(one.effect(HealthPolicy())), one.lasts.value, one.text


def commands() -> Iterator[Sequence[str]]:
    """Each command and subcommand with the first sentence of its help."""
    yield "command", "what it does"
    for name, command in OURS.items():
        yield f"`{name}`", _summary(command)
        for subcommand, its in sorted(command.commands.items()) if isinstance(command, click.Group) else ():
            yield f"`{name} {subcommand}`", _summary(its)


def _summary(command: click.Command) -> str:
    return command.get_short_help_str(200)


TABLES: Mapping[str, Callable[[], Iterator[Sequence[str]]]] = {
    "attributes": attributes,
    "commands": commands,
    "capacities": capacities,
    "taints": taints,
    "alerts": alerts,
    "kubeletplugin": of_kubeletplugin,
    "controller": of_controller,
    "cluster_controller": of_cluster_controller,
    "compute_domains": of_compute_domains,
    "imex_daemon": of_imex_daemon,
    "release_gates": releases.gates,
    "release_support": releases.support,
    "release_rules": releases.rules,
    "cel_tokens": cel.tokens,
    "cel_parsed": cel.parsed,
    "cel_checked": cel.checked,
    "cel_function": cel.function,
    "cel_costs": cel.costs,
    "cel_answers": cel.answers,
}


def filled(text: str) -> str:
    """The document with its tables as they should be. Raises KeyError for a table that nobody makes."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{_markdown(TABLES[match[1]]())}<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", table, text, flags=re.S)


def _markdown(rows: Iterator[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in lines)


def _family(name: str) -> str:
    return re.sub(r"^partition\d+$", "partition<N>", re.sub(r"^memorySlice\d+$", "memorySlice<i>", name))


def _kinds(kinds: Iterator[str]) -> str:
    found = set(kinds)
    return ", ".join(kind for kind in ("gpu", "mig", "mig placement", "vfio", "vgpu") if kind in found)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(encoding="utf-8")), encoding="utf-8")
