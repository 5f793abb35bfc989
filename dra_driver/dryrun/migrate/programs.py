# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's DaemonSets, and the configuration of the device plugin on each node.

config-manager, the plugin's sidecar, chooses the configuration: that of the node's label, the default, or a fallback.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from ...process.command import InputError
from ...scheduler.pods import PodDecoder
from ...scheduler.pods.decode import decode_cluster_node
from ...scheduler.pods.node_filters import RequiredAffinity, untolerated
from ..daemons import tolerating
from ..documents import JSON, Document, each, within
from .configs import MigGroup, PluginConfig, environment, parsed, read_mig_configs, read_plugin, words

_CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"
_SPEC: Final = ("spec", "template", "spec")
BARE: Final = "Configuration"
"""The kind that stands for a configuration in a file of its own, with the form of a ConfigMap."""
_OF_GKE: Final = "nvidia-gpu-device-plugin"
_PROGRAMS: Final = {
    "mps-control-daemon": "mps",
    "kubevirt-gpu-device-plugin": "machines",
    "sandbox-device-plugin": "machines",
    "gpu-feature-discovery": "labels",
    "k8s-mig-manager": "mig",
    "k8s-device-plugin": "plugin",
    "nvidia-device-plugin": "plugin",
    _OF_GKE: "plugin",
}
"""What a DaemonSet is for, by a part of its container's command, name or image. The first one counts."""


@dataclass(frozen=True, slots=True)
class NvidiaDaemonSet:
    """A DaemonSet of NVIDIA's: `role` is what its `container` does."""

    document: Document
    role: str
    container: Mapping[str, Any]

    @property
    def is_of_gke(self) -> bool:
        """Whether it is GKE's own device plugin, which reads its settings from the node, and which GKE restores."""
        return self.container.get("name") == _OF_GKE

    def runs_on(self, node: JSON) -> bool:
        """Whether the DaemonSet has a pod on the node. Raises DecodeError."""
        spec = tolerating(within(self.document.value, *_SPEC))
        pod = PodDecoder().decode({"metadata": {"name": "daemon", "namespace": "default"}, "spec": spec})
        there = decode_cluster_node(node)
        return RequiredAffinity(pod).matches(there) and untolerated(there.taints, pod.tolerations) is None

    def config_maps(self) -> list[tuple[str, str]]:
        """Namespace and name of the ConfigMaps without which the pods do not start."""
        namespace = within(self.document.value, "metadata").get("namespace") or "default"
        maps = [within(volume, "configMap") for volume in each(self.document.value, *_SPEC, "volumes")]
        return [
            (namespace, str(config_map["name"]))
            for config_map in maps
            if config_map.get("name") and not config_map.get("optional")
        ]

    def manager(self) -> Mapping[str, str]:
        """The environment of config-manager, empty if it does not run."""
        containers = each(self.document.value, *_SPEC, "containers")
        return next(
            (found for container in containers if "CONFIG_FILE_SRCDIR" in (found := environment(container))), {}
        )


def operated_by(program: NvidiaDaemonSet) -> str:
    """The name of the GPU Operator's ClusterPolicy that has the DaemonSet, empty if it is not one of the operator's."""
    references = each(program.document.value, "metadata", "ownerReferences")
    return next(
        (str(reference.get("name")) for reference in references if reference.get("kind") == "ClusterPolicy"), ""
    )


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


@dataclass(frozen=True, slots=True)
class Choice:
    """The configuration of the plugin on a node, with its name (empty for that of the container alone), and its
    DaemonSet if it is known.
    """

    name: str = ""
    config: PluginConfig = field(default_factory=PluginConfig)
    notes: tuple[str, ...] = ()
    plugin: NvidiaDaemonSet | None = None

    @property
    def known(self) -> bool:
        """Whether a DaemonSet or a configuration of the input says what the plugin does."""
        return bool(self.name) or (self.plugin is not None and not self.plugin.is_of_gke)


class Configurations:
    """All configurations among the documents, and the choice of one for a node."""

    def __init__(self, documents: Iterable[Document], found: Iterable[NvidiaDaemonSet]) -> None:
        every = list(found)
        self._plugins = [program for program in every if program.role == "plugin"]
        mounted = {key for program in every if program.role in ("plugin", "mig") for key in program.config_maps()}
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

    def of(self, node: JSON, *, offers: bool) -> Choice | None:
        """The choice for a node, None if no plugin runs there: the input has DaemonSets of the plugin, none of them has
        a pod on the node, and the node does not offer the plugin's resources. Raises InputError.
        """
        plugin = next((plugin for plugin in self._plugins if plugin.runs_on(node)), None)
        if self._plugins and plugin is None:
            text = "no DaemonSet of the input has a pod on it, but it offers resources of the device plugin"
            return Choice(notes=(f"{text}: it is planned as it shows itself",)) if offers else None
        named = self._named(plugin)
        manager = plugin.manager() if plugin is not None else {}
        container = plugin.container if plugin is not None else {}
        label = manager.get("NODE_LABEL") or _CONFIG_LABEL
        wanted = within(node, "metadata", "labels").get(label, "")
        known = wanted in named or not wanted
        notes = [] if known else [f"its label names the unknown configuration {wanted}, which the plugin ignores"]
        file = PurePosixPath(environment(container).get("CONFIG_FILE", "")).name
        names = [name for name in (wanted, manager.get("DEFAULT_CONFIG", ""), "default", file) if name in named]
        if not names and len(named) > 1 and "empty" not in manager.get("FALLBACK_STRATEGIES", ""):
            notes.append(
                f"its label {label} names no configuration, and none of {', '.join(named)} is the default: the plugin"
                " does not start there, and the node is planned as it shows itself"
            )
        name = names[0] if names else next(iter(named)) if len(named) == 1 else ""
        value, where = named.get(name, ({}, str(plugin.document) if plugin is not None else ""))
        return Choice(name, read_plugin(value, where, container), tuple(notes), plugin)

    def _named(self, plugin: NvidiaDaemonSet | None) -> Mapping[str, tuple[Mapping[str, Any], str]]:
        """The configurations of the plugin by name, with the place of each; all if no DaemonSet is known."""
        keys = plugin.config_maps() if plugin is not None else list(self._maps)
        missing = ["/".join(key) for key in keys if key not in self._maps]
        if missing and plugin is not None:
            raise InputError(f"{plugin.document}: its ConfigMap {missing[0]} is not among the documents")
        return {name: text for key in keys for name, text in self._maps[key].items()}
