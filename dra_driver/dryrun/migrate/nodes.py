# SPDX-License-Identifier: Apache-2.0
"""The nodes with GPUs: what is on them, and which resources the device plugins offer there.

GPUs are known from the labels of GPU Feature Discovery, from the resources that the node's kubelet reports, and from
the mig-parted configuration that the label `nvidia.com/mig.config` names.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...gpu.simulated.board import BoardModel, boards
from ...kube.resource.meta import empty
from ..documents import JSON, Document, each, within
from .configs import GPU, PREFIX, SHARED, MigGroup, PluginConfig, profile_of, resource_of
from .programs import Configurations

_MIG_LABEL: Final = "nvidia.com/mig.config"
_PRODUCT: Final = re.compile(r"(?P<model>.*?)(-MIG-(?P<mig>INVALID|[0-9]+g\..+?))?(-SHARED)?")
_MOST_INSTANCES: Final = 7
"""MIG devices of one GPU."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A resource that a node offers: devices of `type` (gpu, mig, vfio) with the MIG profile or PCI device id `which`,
    each for `shares` pods.
    """

    resource: str
    type: str
    which: str = ""
    shares: int = 1


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node. `gpus` has, for each GPU, the profiles of its MIG devices, or None if its MIG mode is off. `machines` are
    the resources of GPUs for virtual machines, with (number, PCI device id). `notes` tell what had to be assumed.
    """

    value: JSON
    config_name: str = ""
    config: PluginConfig = field(default_factory=PluginConfig)
    product: str = ""
    gpus: tuple[tuple[str, ...] | None, ...] = ()
    machines: Mapping[str, tuple[int, str]] = field(default_factory=empty)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.value["metadata"]["name"])

    @property
    def board(self) -> BoardModel | None:
        """The simulated board of this product."""
        return board_of(self.product)

    def label(self, name: str) -> int:
        """The number in a label `nvidia.com/gpu.<name>`, 0 if there is none."""
        return count_of(within(self.value, "metadata", "labels").get(f"{GPU}.{name}"))

    def offers(self) -> Iterator[Offer]:
        """What the device plugins offer on the node."""
        for gpu in dict.fromkeys(self.gpus):
            yield from self.offers_of(gpu)
        for resource, (_, device_id) in self.machines.items():
            yield Offer(resource, "vfio", device_id)

    def offers_of(self, gpu: tuple[str, ...] | None) -> Iterator[Offer]:
        """What the device plugin offers of one GPU."""
        for profile in ("",) if gpu is None else dict.fromkeys(gpu):
            resource = resource_of(profile) if profile and self.config.mig_strategy == "mixed" else GPU
            shares = self.config.replicas.get(resource, 1)
            renamed = self.config.renamed and shares > 1
            yield Offer(resource + SHARED * renamed, "mig" if profile else "gpu", profile, shares)


def gpu_nodes(documents: Sequence[Document], configurations: Configurations) -> Iterator[GpuNode]:
    """The nodes with GPUs. Raises InputError and DecodeError."""
    permitted = permitted_machines(documents)
    for value in (one.value for one in documents if one.kind == "Node"):
        labels, allocatable = within(value, "metadata", "labels"), within(value, "status", "allocatable")
        offered = {name: count_of(one) for name, one in allocatable.items() if name.startswith(PREFIX)}
        machines = {name: (count, permitted[name]) for name, count in offered.items() if count and permitted.get(name)}
        has_gpus = f"{GPU}.count" in labels or any(_is_plugins(name) and count for name, count in offered.items())
        chosen = configurations.of(value) if has_gpus else None
        if chosen is not None:
            name, config, notes = chosen
            found = _Gpus(labels, offered, config, configurations.mig)
            gpus = found.layout()
            notes = [*notes, *found.notes, *config.notes]
            yield GpuNode(value, name, config, found.product, gpus, machines, tuple(notes))
        elif machines:
            yield GpuNode(value, machines=machines)


def permitted_machines(documents: Iterable[Document]) -> dict[str, str]:
    """The GPUs for virtual machines that KubeVirt permits, by resource: the PCI device id, or empty for a vGPU."""
    found: dict[str, str] = {}
    for document in (one for one in documents if one.kind == "KubeVirt"):
        permitted = within(document.value, "spec", "configuration", "permittedHostDevices")
        found |= {str(one.get("resourceName")): "" for one in each(permitted, "mediatedDevices")}
        for one in each(permitted, "pciHostDevices"):
            vendor, _, device = str(one.get("pciVendorSelector") or "").lower().partition(":")
            if vendor == "10de":
                found[str(one.get("resourceName"))] = f"0x{device}"
    return found


@dataclass
class _Gpus:
    """The GPUs of one node, while they are counted. `offered` are the resources that kubelet reports."""

    labels: Mapping[str, str]
    offered: Mapping[str, int]
    config: PluginConfig
    mig: Mapping[str, tuple[MigGroup, ...]]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        label = _PRODUCT.fullmatch(self.labels.get(f"{GPU}.product", ""))
        self.product = label["model"] if label is not None else ""
        self.single = (label["mig"] or "") if label is not None and self.config.mig_strategy == "single" else ""

    def layout(self) -> tuple[tuple[str, ...] | None, ...]:
        """For each GPU the profiles of its MIG devices, or None."""
        devices = count_of(self.labels.get(f"{GPU}.count"))
        found = self.offered.get(GPU + SHARED) or self.offered.get(GPU) or 0
        whole = 0 if self.single else found // self.config.replicas.get(GPU, 1)
        done = self.labels.get(f"{_MIG_LABEL}.state", "success") == "success" and self.config.mig_strategy != "none"
        if done and (configured := self.mig.get(self.labels.get(_MIG_LABEL, ""))):
            board = board_of(self.product)
            groups = [one for one in configured if _selects(one, board)]
            each = next((sum(one.profiles.values()) for one in groups if one.profiles), 1)
            count = -(-devices // each) if self.single else devices or whole
            return tuple(_layout(groups, index) for index in range(count))
        profiles = self._profiles(devices)
        if self.single == "INVALID":
            self.notes.append("it offers no GPU: its MIG devices are not all the same, as the strategy single demands")
        if not profiles:
            return (None,) * (whole or devices)
        split = (0 if self.single else max(devices - whole, 0)) or -(-sum(profiles.values()) // _MOST_INSTANCES)
        self.notes.append(
            f"it is assumed that its last {split} GPUs have the MIG devices, evenly: its label {_MIG_LABEL} names no"
            " known configuration of mig-parted"
        )
        mixed: list[list[str]] = [[] for _ in range(split)]
        for position, profile in enumerate(Counter(profiles).elements()):
            mixed[position % split].append(profile)
        return (None,) * whole + tuple(tuple(one) for one in mixed)

    def _profiles(self, devices: int) -> dict[str, int]:
        """The number of MIG devices of each profile on the node."""
        if self.config.mig_strategy == "none" or self.single:
            return {self.single: devices} if self.single not in ("", "INVALID") else {}
        shares = self.config.replicas
        found = {name: count // shares.get(name.removesuffix(SHARED), 1) for name, count in self.offered.items()}
        found |= {
            name.removesuffix(".count"): count_of(one) for name, one in self.labels.items() if name.endswith(".count")
        }
        return {profile: count for name, count in found.items() if count and (profile := profile_of(name))}


@functools.cache
def board_of(product: str) -> BoardModel | None:
    """The simulated board of a product, whose name is written as GPU Feature Discovery writes it into a label."""
    labels = {"-".join(re.sub("[^A-Za-z0-9-_. ]", "", one.product_name).split()): one for one in boards().values()}
    return labels.get(product)


def _selects(group: MigGroup, board: BoardModel | None) -> bool:
    return not group.filters or (board is not None and f"0x{board.pci_device_id:08x}" in group.filters)


def _layout(groups: Iterable[MigGroup], index: int) -> tuple[str, ...] | None:
    """The MIG devices of a GPU that the plugin offers: those that are all of their GPU instance."""
    group = next((one for one in groups if one.devices is None or index in one.devices), None)
    if group is None or group.profiles is None:
        return None
    return tuple(
        Counter({name: one for name, one in group.profiles.items() if profile_of(resource_of(name))}).elements()
    )


def _is_plugins(resource: str) -> bool:
    return resource.removesuffix(SHARED) == GPU or profile_of(resource) is not None


def count_of(value: object) -> int:
    """The whole number in a label or amount, 0 for another text."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else 0
