# SPDX-License-Identifier: Apache-2.0
"""The nodes with GPUs: what is on them, and which resources the device plugins offer there.

GPUs are known from labels (see `labels`), from the resources that the node's kubelet reports, and from the
configurations of the device plugin and of mig-parted (see `layout`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...gpu.simulated.board import BoardModel
from ...kube.resource.meta import empty
from ..documents import JSON, Document, each, within
from .configs import GPU, PREFIX, SHARED, MigGroup, PluginConfig, profile_of, resource_of
from .labels import LabelFacts, count_of, facts_of, is_auto_mode, model_of
from .layout import Layout, NodeGpus, observed
from .programs import Choice, Configurations, NvidiaDaemonSet


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
    """A node. `machines` are the resources of GPUs for virtual machines, with (number, PCI device id). `plugin` is the
    DaemonSet of the device plugin, if it is known. `notes` tell what had to be assumed, and `unknown` what makes the
    plan for the node uncertain.
    """

    value: JSON
    config_name: str = ""
    config: PluginConfig = field(default_factory=PluginConfig)
    facts: LabelFacts = field(default_factory=LabelFacts)
    gpus: Layout = ()
    machines: Mapping[str, tuple[int, str]] = field(default_factory=empty)
    plugin: NvidiaDaemonSet | None = None
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the Node."""
        return str(self.value["metadata"]["name"])

    @property
    def product(self) -> str:
        """The product as GFD writes it into a label, empty if it is not known."""
        return self.facts.product

    @property
    def board(self) -> BoardModel | None:
        """The simulated board of this product."""
        model = model_of(self.product)
        return model.board if model is not None else None

    def offers(self) -> Iterator[Offer]:
        """The resources that the device plugins offer on the node."""
        for gpu in dict.fromkeys(self.gpus):
            yield from self.offers_of(gpu)
        for resource, (_, device_id) in self.machines.items():
            yield Offer(resource, "vfio", device_id)

    def resources(self) -> dict[str, int]:
        """The number of each resource that the device plugins offer on the node."""
        found = Counter({name: count for name, (count, _) in self.machines.items()})
        for gpu in self.gpus:
            for offer in self.offers_of(gpu):
                found[offer.resource] += Counter(gpu or ("",))[offer.which] * offer.shares
        return dict(found)

    def offers_of(self, gpu: tuple[str, ...] | None) -> Iterator[Offer]:
        """The resources that the device plugin offers for one GPU."""
        for profile in ("",) if gpu is None else dict.fromkeys(gpu):
            resource = resource_of(profile) if profile and self.config.mig_strategy == "mixed" else GPU
            shares = self.config.replicas.get(resource, 1)
            renamed = self.config.renamed and shares > 1
            yield Offer(resource + SHARED * renamed, "mig" if profile else "gpu", profile, shares)


def gpu_nodes(documents: Sequence[Document], configurations: Configurations) -> Iterator[GpuNode]:
    """The nodes with GPUs, except nodes that keep the device plugin. Raises InputError and DecodeError."""
    permitted = permitted_machines(documents)
    for value in (document.value for document in documents if document.kind == "Node"):
        labels, allocatable = within(value, "metadata", "labels"), within(value, "status", "allocatable")
        offered = {name: count_of(amount) for name, amount in allocatable.items() if name.startswith(PREFIX)}
        machines = {name: (count, permitted[name]) for name, count in offered.items() if count and permitted.get(name)}
        facts = facts_of(labels)
        offers = any(_is_plugins(name) and count for name, count in offered.items())
        has_gpus = (offers or facts.gpus > 0 or f"{GPU}.count" in labels) and not is_auto_mode(labels)
        choice = configurations.of(value, offers=offers) if has_gpus else None
        if choice is not None:
            yield replace(_gpu_node(value, choice, facts, offered, configurations.mig), machines=machines)
        elif machines:
            yield GpuNode(value, machines=machines)


def _gpu_node(
    value: JSON,
    choice: Choice,
    facts: LabelFacts,
    offered: Mapping[str, int],
    mig: Mapping[str, tuple[MigGroup, ...]],
) -> GpuNode:
    """The node with the GPUs for containers. `offered` are the resources that kubelet reports."""
    labels = within(value, "metadata", "labels")
    config, differences = observed(choice.config, facts, labels, offered, known=choice.known)
    found = NodeGpus(labels, facts, offered, config, mig)
    gpus = found.layout()
    notes = [*choice.notes, *differences, *found.notes, *config.notes]
    if gpus and not facts.memory_mib:
        notes.append(f"the memory of its GPUs ({facts.product or 'of an unknown model'}) is not known")
    return GpuNode(
        value,
        choice.name,
        config,
        facts,
        gpus,
        plugin=choice.plugin,
        notes=tuple(notes),
        unknown=tuple(_unexplained(choice, facts, offered)),
    )


def _unexplained(choice: Choice, facts: LabelFacts, offered: Mapping[str, int]) -> Iterator[str]:
    """The resources that the node offers without a known reason."""
    total = offered.get(GPU + SHARED) or offered.get(GPU, 0)
    explained = facts.profile or facts.replicas > 1 or choice.config.replicas.get(GPU, 1) > 1
    if not explained and 0 < facts.gpus < total:
        yield (
            f"it offers {total} {GPU} of {facts.gpus} GPUs, and neither a label nor a configuration says whether these"
            " are shares or MIG devices: it is planned with shares. Add the DaemonSet of the device plugin and its"
            " ConfigMap, or the labels of GPU Feature Discovery"
        )


def nodes_of_auto_mode(documents: Iterable[Document]) -> list[str]:
    """The names of the nodes with GPUs that EKS Auto Mode manages."""
    nodes = [
        document
        for document in documents
        if document.kind == "Node" and is_auto_mode(within(document.value, "metadata", "labels"))
    ]
    return [
        node.name
        for node in nodes
        if any(_is_plugins(name) for name in within(node.value, "status", "allocatable"))
        or facts_of(within(node.value, "metadata", "labels")).product
    ]


def permitted_machines(documents: Iterable[Document]) -> dict[str, str]:
    """The GPUs for virtual machines that KubeVirt permits, by resource: the PCI device id, or empty for a vGPU."""
    found: dict[str, str] = {}
    for document in (document for document in documents if document.kind == "KubeVirt"):
        permitted = within(document.value, "spec", "configuration", "permittedHostDevices")
        found |= {
            str(mediated_device.get("resourceName")): "" for mediated_device in each(permitted, "mediatedDevices")
        }
        for pci_device in each(permitted, "pciHostDevices"):
            vendor, _, device = str(pci_device.get("pciVendorSelector") or "").lower().partition(":")
            if vendor == "10de":
                found[str(pci_device.get("resourceName"))] = f"0x{device}"
    return found


def _is_plugins(resource: str) -> bool:
    return resource.removesuffix(SHARED) == GPU or profile_of(resource) is not None
