# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's GPU Operator: what its ClusterPolicy says, and what has to be changed in it.

The operator creates a DaemonSet again after a deletion, so a component is disabled in the ClusterPolicy. On a single
node, a label disables it. The operator does not change this label. Facts: github.com/NVIDIA/gpu-operator (26.7),
api/nvidia/v1, controllers/state_manager.go and object_controls.go.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..documents import Document, each, within
from ..groups import key_of
from ..report import listed
from .nodes import GpuNode
from .programs import NvidiaDaemonSet, operated_by

JSON = dict[str, Any]

POLICY: Final = ("nvidia.com", "ClusterPolicy")
GPU_CLUSTER: Final = ("nvidia.com", "GPUCluster")
_OWNERS: Final = (POLICY, GPU_CLUSTER, ("nvidia.com", "NVIDIADriver"))
PLUGIN_LABEL: Final = "nvidia.com/gpu.deploy.device-plugin"
SANDBOX_LABEL: Final = "nvidia.com/gpu.deploy.sandbox-device-plugin"
"""With `false`, the operator's DaemonSets of the two device plugins have no pod on the node."""
_DRIVER_ROOT: Final = "/run/nvidia/driver"
_INSTALL_DIR: Final = "/usr/local/nvidia"


@dataclass(frozen=True, slots=True)
class GpuOperator:
    """The operator of the cluster. `spec` is that of its ClusterPolicy, None if only its DaemonSets are known."""

    name: str
    spec: JSON | None

    def enabled(self, component: str, *, default: bool = True) -> bool:
        """Whether the operator manages a component, such as `driver`."""
        value = within(self.spec, component).get("enabled")
        return value if isinstance(value, bool) else default

    @property
    def driver_root(self) -> str:
        """The root of the driver that the operator installs. Empty if it installs none, or if that is not known."""
        if self.spec is None or not self.enabled("driver"):
            return ""
        return str(within(self.spec, "hostPaths").get("driverInstallDir") or _DRIVER_ROOT)

    def chart_values(self) -> JSON:
        """Values of this driver's chart that differ from those in values-gpu-operator.yaml."""
        if self.spec is None:
            return {}
        folder = str(within(self.spec, "toolkit").get("installDir") or _INSTALL_DIR)
        if not self.enabled("toolkit"):
            return {"nvidiaCDIHookPath": ""}
        return {"nvidiaCDIHookPath": f"{folder}/toolkit/nvidia-cdi-hook"} if folder != _INSTALL_DIR else {}

    def changes(self, nodes: Iterable[GpuNode]) -> JSON:
        """The fields to set in the ClusterPolicy's spec. The values of the operator's chart have the same names."""
        changes: JSON = {"devicePlugin": {"enabled": False}} if self.enabled("devicePlugin") else {}
        if any(node.machines for node in nodes) and self.enabled("sandboxWorkloads", default=False):
            changes |= {
                name: {"enabled": False} for name in ("sandboxDevicePlugin", "vfioManager") if self.enabled(name)
            }
        return changes

    def notes(self, nodes: Sequence[GpuNode]) -> Iterator[str]:
        """The effects of the operator's other components on the plan."""
        subject = f"ClusterPolicy {self.name}"
        if self.spec is None:
            yield (
                f"{subject} of the GPU Operator is not in the input: nvidiaDriverRoot, toolkit and migManager are not"
                " known. Add it: kubectl get clusterpolicies.nvidia.com -o yaml"
            )
            return
        install = "install this driver with charts/dra-driver-gpu/values-gpu-operator.yaml before values.yaml"
        again = "the GPU Operator creates its DaemonSets again, so set devicePlugin.enabled=false there, and "
        yield f"{subject}: {again if self.enabled('devicePlugin') else ''}{install}"
        if self.enabled("migManager") and any(gpu is not None for node in nodes for gpu in node.gpus):
            yield (
                f"{subject}: migManager can stay, because the plan keeps its MIG devices (mig: static). Drain a node"
                " before you change its label nvidia.com/mig.config, and disable migManager before you set mig: dynamic"
            )
        upgrade = within(self.spec, "driver", "upgradePolicy")
        if self.enabled("driver") and upgrade.get("autoUpgrade") is False:
            yield (
                f"{subject}: driver.upgradePolicy.autoUpgrade is false: drain a node before its NVIDIA driver is"
                " replaced, because pods with claims can end only while this driver runs"
            )


def operator_of(documents: Sequence[Document], programs: Iterable[NvidiaDaemonSet]) -> GpuOperator | None:
    """The operator, by its ClusterPolicy or by the owner of its DaemonSets. None if there is none."""
    for document in documents:
        if key_of(document.value) == POLICY:
            return GpuOperator(document.name, within(document.value, "spec"))
    names = (operated_by(program) for program in programs)
    return next((GpuOperator(name, None) for name in names if name), None)


def device_plugin_of(operator: GpuOperator, documents: Iterable[Document]) -> Document | None:
    """The DaemonSet of the device plugin that the operator makes, as far as it matters here. None if it makes none."""
    if operator.spec is None or not operator.enabled("devicePlugin"):
        return None
    config = within(operator.spec, "devicePlugin", "config")
    environment = [*each(operator.spec, "devicePlugin", "env")]
    if strategy := within(operator.spec, "mig").get("strategy"):
        environment.append({"name": "MIG_STRATEGY", "value": str(strategy)})
    containers: list[JSON] = [{"name": "nvidia-device-plugin", "image": "k8s-device-plugin", "env": environment}]
    containers[0]["args"] = within(operator.spec, "devicePlugin").get("args") or []
    volumes = []
    namespace = "gpu-operator"
    if name := config.get("name"):
        maps = (
            document.namespace
            for document in documents
            if document.kind == "ConfigMap" and document.name.rpartition("/")[2] == name
        )
        namespace = next(maps, namespace)
        manager = {"CONFIG_FILE_SRCDIR": "/available-configs", "DEFAULT_CONFIG": str(config.get("default") or "")}
        containers.append(
            {"name": "config-manager", "env": [{"name": key, "value": value} for key, value in manager.items()]}
        )
        volumes.append({"name": "available-configs", "configMap": {"name": name}})
    spec = {
        "containers": containers,
        "volumes": volumes,
        "nodeSelector": {PLUGIN_LABEL: "true"},
        "tolerations": [{"operator": "Exists"}],
    }
    reference = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": operator.name, "controller": True}
    metadata = {"name": "nvidia-device-plugin-daemonset", "namespace": namespace, "ownerReferences": [reference]}
    value = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {"template": {"spec": spec}}}
    return Document(value, f"ClusterPolicy {operator.name}")


def is_of_operator(document: Document) -> bool:
    """Whether the operator made the object: its components are no workloads."""
    references = each(document.value, "metadata", "ownerReferences")
    return any(key_of(reference) in _OWNERS for reference in references)


def gpu_cluster_notes(documents: Iterable[Document]) -> Iterator[str]:
    """GPUClusters, with which the operator installs NVIDIA's DRA driver."""
    if names := [document.name for document in documents if key_of(document.value) == GPU_CLUSTER]:
        yield (
            f"GPUCluster {listed(names)} lets the GPU Operator install NVIDIA's DRA driver, which has the same name as"
            " this driver: follow docs/how-to/migrate-from-nvidias-dra-driver.md, and delete the GPUCluster first"
        )
