# SPDX-License-Identifier: Apache-2.0
"""Labels of the node, for workloads that select nodes by the labels of NVIDIA's GPU Feature Discovery (GFD).

Names and values are those of GFD 0.20 with the MIG strategy `mixed`. GFD itself sets no labels on nodes either: node
feature discovery (NFD) does, from a NodeFeature object or from a file on the node. Three things differ from GFD:

- There is no timestamp, and MIG devices that were created for claims are not counted. So labels change only if the
  node does, and not with each claim.
- If a node has GPUs of several models, the labels describe the first whole GPU. GFD selects a model at random.
- The driver of the host of a vGPU is unknown.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import UnenforceableError
from .devices.enforcement import enforcement
from .facts import Gpu, Inventory, MigProfile
from .imex import clique_of
from .policy import Enforcement, NodePolicy

Labels = Mapping[str, str]

PREFIX: Final = "nvidia.com/"
MACHINE_LABEL: Final = f"{PREFIX}gpu.machine"
PRODUCT_LABEL: Final = f"{PREFIX}gpu.product"
_OF_HARDWARE: Final = re.compile(
    r"nvidia\.com/(cuda\..+|gpu\.(product|count|replicas|sharing-strategy|memory|clique|mode|family|compute\.(major|minor))"
    r"|mig\.(capable|strategy)|mig-.+\..+|mps\.capable|vgpu\.present)"
)
_FAMILIES = (
    ((13, 0), "rubin"),
    ((10, 0), "blackwell"),  # 10 and 12
    ((9, 0), "hopper"),
    ((8, 9), "ada-lovelace"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
    ((5, 0), "maxwell"),
    ((3, 0), "kepler"),
)
_MODES = {"0x030200": "compute", "0x030000": "graphics"}


@dataclass(frozen=True, slots=True)
class Machine:
    """What labels tell of a node besides its GPUs: its product name, and its GPUs' PCI classes. None is unknown."""

    product: str | None
    gpu_classes: frozenset[str | None]


def read_machine(gpus: Sequence[Gpu], sys_root: Path) -> Machine:
    """The machine with these GPUs, read below `sys_root`."""
    classes = frozenset(_text(sys_root / f"bus/pci/devices/{gpu.pci_address}/class") for gpu in gpus)
    return Machine(_text(sys_root / "class/dmi/id/product_name"), classes)


def tells_of_hardware(label: str) -> bool:
    """Whether the label follows from the GPUs and the driver alone, so that its absence tells something, too."""
    return _OF_HARDWARE.fullmatch(label) is not None


def node_labels(hardware: tuple[Inventory, Set[object]] | None, policy: NodePolicy, sys_root: Path) -> Labels | None:
    """The labels of a node: empty if it has no GPU, None if its GPUs cannot be read. `hardware` is that of a
    HardwareView. The machine is read below `sys_root`.
    """
    if hardware is None:
        return None
    inventory, owned = hardware
    if not inventory.gpus:
        return None if inventory.failures else {}
    return gpu_labels(inventory, owned, policy, read_machine(inventory.gpus, sys_root))


def gpu_labels(inventory: Inventory, owned: Set[object], policy: NodePolicy, machine: Machine) -> Labels:
    """The labels of a node with GPUs. `owned` are the places of MIG instances that were created for claims."""
    gpus, classes = inventory.gpus, machine.gpu_classes
    sample = next((gpu for gpu in gpus if not gpu.in_mig_mode), gpus[0])
    replicas, strategy = (0, "none") if sample.in_mig_mode else _sharing(sample, False, policy)
    capability = sample.compute_capability
    values: dict[str, object | None] = {
        **_versions(inventory),
        "gpu.machine": _word(machine.product or "unknown"),
        "gpu.mode": _MODES.get(str(next(iter(classes))), "unknown") if len(classes) == 1 else "unknown",
        "gpu.product": _product(replicas, sample.product_name or ""),
        "gpu.count": sum(gpu.product_name == sample.product_name for gpu in gpus),
        "gpu.replicas": replicas,
        "gpu.sharing-strategy": strategy,
        "gpu.memory": None if sample.memory is None else sample.memory >> 20,
        "gpu.clique": _clique(gpus),
        "mig.capable": _yes(any(gpu.mig_mode is not None for gpu in gpus)),
        "mig.strategy": "mixed",
        "mps.capable": _yes(strategy == "mps"),
        "vgpu.present": _yes(any(gpu.is_vgpu for gpu in gpus)),
        **_mig(gpus, owned, policy),
    }
    if capability is not None:
        family = next((name for since, name in _FAMILIES if since <= capability), "undefined")
        values |= {"gpu.family": family, "gpu.compute.major": capability[0], "gpu.compute.minor": capability[1]}
    return {f"{PREFIX}{name}": str(value) for name, value in sorted(values.items()) if value is not None}


def _versions(inventory: Inventory) -> dict[str, object | None]:
    full = inventory.driver_version
    major, minor, revision = [*full.split("."), "", ""][:3]
    found: dict[str, object | None] = {
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": full,
    }
    if inventory.cuda_driver_version is not None:
        major, minor = (str(part) for part in divmod(inventory.cuda_driver_version // 10, 100))
        for name in ("cuda.runtime", "cuda.runtime-version"):
            found |= {f"{name}.major": major, f"{name}.minor": minor}
        found["cuda.runtime-version.full"] = f"{major}.{minor}"
    return found


def _mig(gpus: Sequence[Gpu], owned: Set[object], policy: NodePolicy) -> dict[str, object]:
    """The labels of each profile of which an administrator created MIG devices."""
    found: dict[str, list[tuple[Gpu, MigProfile]]] = defaultdict(list)
    for gpu in gpus:
        profiles = {profile.info.id: profile for profile in gpu.mig_profiles}
        for mig_instance in gpu.mig_instances:
            profile = profiles.get(mig_instance.device.profile_id)
            if profile and mig_instance.device not in owned:
                found[profile.name.replace("+", ".")].append((gpu, profile))
    labels: dict[str, object] = {}
    for name, devices in found.items():
        gpu, profile = devices[0]
        info = profile.info
        replicas, strategy = _sharing(gpu, True, policy)
        values = {
            "product": _product(replicas, gpu.product_name or "", "MIG", name),
            "count": len(devices),
            "replicas": replicas,
            "sharing-strategy": strategy,
            "memory": info.memory_mib,
            "multiprocessors": info.multiprocessors,
            "slices.gi": info.slice_count,
            "slices.ci": info.slice_count,
            "engines.copy": info.copy_engines,
            "engines.decoder": info.decoders,
            "engines.encoder": info.encoders,
            "engines.jpeg": info.jpeg_engines,
            "engines.ofa": info.ofa_engines,
        }
        labels |= {f"mig-{name}.{key}": value for key, value in values.items()}
    return labels


def _sharing(gpu: Gpu, is_mig: bool, policy: NodePolicy) -> tuple[int, str]:
    """The number of replicas and GFD's name of the sharing strategy. Shares without a number have no replicas."""
    shares = policy.for_gpu(gpu).shares
    if not isinstance(shares, int) or shares < 2:
        return 1, "none"
    try:
        return shares, "mps" if enforcement(gpu, is_mig, policy) is Enforcement.MPS else "time-slicing"
    except UnenforceableError:
        return 1, "none"


def _product(replicas: int, *words: str) -> str:
    return "-".join([*map(_word, words), *(["SHARED"] if replicas > 1 else [])])


def _clique(gpus: Sequence[Gpu]) -> str | None:
    cliques = {clique_of(gpu.fabric) for gpu in gpus} - {None}
    return cliques.pop() if len(cliques) == 1 else None


def _word(text: str) -> str:
    return "-".join(re.sub(r"[^A-Za-z0-9-_. ]", "", text).split())


def _yes(value: bool) -> str:
    return str(value).lower()


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
