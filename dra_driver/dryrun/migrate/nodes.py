# SPDX-License-Identifier: Apache-2.0
"""The nodes with GPUs: what is on them, and which resources the device plugins offer there.

GPUs are known from the labels of GPU Feature Discovery, from the resources that the node's kubelet reports, and from
the mig-parted configuration that the label `nvidia.com/mig.config` names. The configuration of the device plugin is the
one that config-manager, the plugin's sidecar, chooses: that of the node's label, the default, or a fallback.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from ...gpu.simulated.board import BoardModel, boards
from ...kube.resource.meta import empty
from ...process.command import InputError
from ...scheduler.pods import PodDecoder
from ...scheduler.pods.decode import decode_cluster_node
from ...scheduler.pods.node_filters import RequiredAffinity, untolerated
from ..daemons import tolerating
from ..documents import JSON, Document, each, within
from .configs import (
    GPU,
    PREFIX,
    SHARED,
    MigGroup,
    PluginConfig,
    environment,
    parsed,
    profile_of,
    read_mig_configs,
    read_plugin,
    resource_of,
    words,
)

_CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"
_MIG_LABEL: Final = "nvidia.com/mig.config"
_SPEC: Final = ("spec", "template", "spec")
BARE: Final = "Configuration"
"""The kind that stands for a configuration in a file of its own, with the form of a ConfigMap."""
_PRODUCT: Final = re.compile(r"(?P<model>.*?)(-MIG-(?P<mig>INVALID|[0-9]+g\..+?))?(-SHARED)?")
_MOST_INSTANCES: Final = 7
"""MIG devices of one GPU."""
_PROGRAMS: Final = {
    "mps-control-daemon": "mps",
    "kubevirt-gpu-device-plugin": "machines",
    "sandbox-device-plugin": "machines",
    "gpu-feature-discovery": "labels",
    "k8s-mig-manager": "mig",
    "k8s-device-plugin": "plugin",
    "nvidia-device-plugin": "plugin",
}
"""What a DaemonSet is for, by a part of its container's command, name or image. The first one counts."""


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


@dataclass(frozen=True, slots=True)
class NvidiaDaemonSet:
    """A DaemonSet of NVIDIA's: `role` is what its `container` does."""

    document: Document
    role: str
    container: Mapping[str, Any]

    def runs_on(self, node: JSON) -> bool:
        """Whether the DaemonSet has a pod on the node. Raises DecodeError."""
        spec = tolerating(within(self.document.value, *_SPEC))
        pod = PodDecoder().decode({"metadata": {"name": "daemon", "namespace": "default"}, "spec": spec})
        there = decode_cluster_node(node)
        return RequiredAffinity(pod).matches(there) and untolerated(there.taints, pod.tolerations) is None

    def config_maps(self) -> list[tuple[str, str]]:
        """Namespace and name of the ConfigMaps without which the pods do not start."""
        namespace = within(self.document.value, "metadata").get("namespace") or "default"
        maps = [within(one, "configMap") for one in each(self.document.value, *_SPEC, "volumes")]
        return [(namespace, str(one["name"])) for one in maps if one.get("name") and not one.get("optional")]

    def manager(self) -> Mapping[str, str]:
        """The environment of config-manager, empty if it does not run."""
        containers = each(self.document.value, *_SPEC, "containers")
        return next((found for one in containers if "CONFIG_FILE_SRCDIR" in (found := environment(one))), {})


def programs(documents: Iterable[Document]) -> list[NvidiaDaemonSet]:
    """The DaemonSets of NVIDIA's device plugins, GPU Feature Discovery and mig-parted."""
    found = []
    for document in documents:
        for container in each(document.value, *_SPEC, "containers") if document.kind == "DaemonSet" else ():
            named = " ".join((*words(container), str(container.get("name")), str(container.get("image"))))
            role = next((role for part, role in _PROGRAMS.items() if part in named), None)
            if role is not None and "config-manager" not in named:
                found.append(NvidiaDaemonSet(document, role, container))
                break
    return found


class Configurations:
    """All configurations among the documents, and the choice of one for a node."""

    def __init__(self, documents: Iterable[Document], found: Iterable[NvidiaDaemonSet]) -> None:
        every = list(found)
        self._plugins = [one for one in every if one.role == "plugin"]
        mounted = {key for one in every if one.role in ("plugin", "mig") for key in one.config_maps()}
        self._maps: dict[tuple[str, str], dict[str, tuple[Mapping[str, Any], str]]] = {}
        self.mig: dict[str, tuple[MigGroup, ...]] = {}
        for document in documents:
            metadata = within(document.value, "metadata")
            key = metadata.get("namespace") or "default", str(metadata.get("name"))
            if document.kind == BARE or (document.kind == "ConfigMap" and (key in mounted or not mounted)):
                self._keep(document, self._maps.setdefault(key, {}))

    def _keep(self, document: Document, named: dict[str, tuple[Mapping[str, Any], str]]) -> None:
        for name, text in within(document.value, "data").items():
            where = f"{document}: data.{name}"
            value = parsed(str(text), where)
            if value is not None and "mig-configs" in value:
                self.mig |= read_mig_configs(value, where)
            elif value is not None:
                named[name] = value, where
                read_plugin(value, where, {})  # so that mistakes are told also if no node uses it

    def of(self, node: JSON) -> tuple[str, PluginConfig, list[str]] | None:
        """(Name, configuration, notes) of the plugin on the node, None if none runs there. Raises InputError."""
        plugin = next((one for one in self._plugins if one.runs_on(node)), None)
        if self._plugins and plugin is None:
            return None
        named = self._named(plugin)
        manager = plugin.manager() if plugin is not None else {}
        container = plugin.container if plugin is not None else {}
        wanted = within(node, "metadata", "labels").get(manager.get("NODE_LABEL") or _CONFIG_LABEL, "")
        known = wanted in named or not wanted
        notes = [] if known else [f"its label names the unknown configuration {wanted}, which the plugin ignores"]
        file = PurePosixPath(environment(container).get("CONFIG_FILE", "")).name
        names = [name for name in (wanted, manager.get("DEFAULT_CONFIG", ""), "default", file) if name in named]
        if not names and len(named) > 1 and "empty" not in manager.get("FALLBACK_STRATEGIES", ""):
            where = next(iter(named.values()))[1].rpartition(": ")[0]
            raise InputError(f"{where}: of its configurations ({', '.join(named)}) none is the default")
        name = names[0] if names else next(iter(named)) if len(named) == 1 else ""
        value, where = named.get(name, ({}, str(plugin.document) if plugin is not None else ""))
        return name, read_plugin(value, where, container), notes

    def _named(self, plugin: NvidiaDaemonSet | None) -> Mapping[str, tuple[Mapping[str, Any], str]]:
        """The configurations of the plugin by name, with the place of each; all if no DaemonSet is known."""
        keys = plugin.config_maps() if plugin is not None else list(self._maps)
        missing = ["/".join(key) for key in keys if key not in self._maps]
        if missing and plugin is not None:
            raise InputError(f"{plugin.document}: its ConfigMap {missing[0]} is not among the documents")
        return {name: one for key in keys for name, one in self._maps[key].items()}


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
