# SPDX-License-Identifier: Apache-2.0
"""The order of the change: steps with commands, what must be true after each of them, and the way back.

A label on a node decides which driver has its GPUs: the device plugin stays away from nodes with the label, and this
driver runs on nodes whose label is `true`. So nodes change one after the other, and each can be changed back.
"""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...kube.resource import ResourceSlice
from ..documents import each, within
from ..report import counted, listed
from .gpu_operator import PLUGIN_LABEL, SANDBOX_LABEL, GpuOperator
from .labels import GKE_ACCELERATOR
from .nodes import GpuNode
from .programs import NvidiaDaemonSet, operated_by
from .workloads import CHANGE, WorkloadFinding

JSON = dict[str, Any]

MARK: Final = "gpu.nvidia.com/dra-driver"
"""The label of nodes: without it, the device plugin has the GPUs; `true` lets this driver run there."""
_LEAVING: Final = "pending"
"""The value of the label while neither of the two has the GPUs."""
_GKE_LABEL: Final = "gke-no-default-nvidia-gpu-device-plugin"
_PRESENT: Final = "nvidia.com/gpu.present"
_SELECTED: Final = (
    _PRESENT,
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    GKE_ACCELERATOR,
    "eks.amazonaws.com/instance-gpu-manufacturer",
    "karpenter.k8s.aws/instance-gpu-manufacturer",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
)
"""Labels by which the chart's DaemonSet finds GPU nodes."""
_CHART: Final = "charts/dra-driver-gpu"
_RELEASE: Final = "dra-driver-gpu"
_SPEC: Final = ("spec", "template", "spec")
_CLAIMS_ON: Final = (
    "kubectl get resourceclaims -A -o jsonpath=\"{.items[?(@.status.allocation.devices.results[0].pool=='$NODE')]"
    '.metadata.name}"'
)
"""Prints the claims with devices of the node: the pool of its devices has the node's name."""
_REPLACED: Final = ("plugin", "mps", "machines")
"""Roles of DaemonSets that have to leave a node."""
WORKLOADS, RECREATED = "workloads", "pods-and-jobs"
"""Names of files: objects that are replaced, and objects that are deleted and created again."""
_ONE_BY_ONE: Final = (
    "  # or object by object, as the changed nodes have room; what Helm or GitOps manages, at its source"
)


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """A step. `checks` must be true before the next step, and `back` undoes the step.

    With `nodes`, the step is done for one node after the other; `$NODE` in its commands is the node.
    """

    title: str
    commands: tuple[str, ...]
    checks: tuple[str, ...]
    back: tuple[str, ...]
    nodes: tuple[str, ...] = ()

    def document(self) -> JSON:
        """The step as in JSON."""
        return {
            "title": self.title,
            "nodes": list(self.nodes),
            "commands": list(self.commands),
            "checks": list(self.checks),
            "back": list(self.back),
        }


@dataclass(frozen=True, slots=True)
class Change:
    """The input of the steps: the nodes with the slices that the driver will publish there, NVIDIA's DaemonSets, the
    operator, the verdicts, and the names of the files of the plan.
    """

    nodes: Sequence[GpuNode]
    slices: Sequence[ResourceSlice]
    programs: Sequence[NvidiaDaemonSet]
    operator: GpuOperator | None
    findings: Sequence[WorkloadFinding]
    files: Sequence[str]

    def steps(self) -> Iterator[MigrationStep]:
        """All steps, in their order."""
        yield self._installation()
        yield from self._withdrawals()
        groups = self._groups()
        for nodes in groups:
            kind = ", the first node of its kind" if len(nodes) > 1 else ""
            yield self._of_nodes(nodes[:1], f"Change {nodes[0].name}{kind}")
        yield from self._workloads()
        for nodes in groups:
            if len(nodes) > 1:
                names = listed([node.name for node in nodes[1:]])
                yield self._of_nodes(nodes[1:], f"Change the other nodes of this kind, one after the other: {names}")
        yield self._end()

    def _groups(self) -> list[list[GpuNode]]:
        """The nodes by what they have, the smallest group first, so that little is at stake in the beginning."""
        groups: dict[str, list[GpuNode]] = defaultdict(list)
        for node in self.nodes:
            way = self._switch(node), _is_selected(node)
            groups[repr((node.product, node.gpus, node.machines, node.config, way))].append(node)
        return sorted(groups.values(), key=len)

    def _installation(self) -> MigrationStep:
        commands = ["kubectl get nodes,daemonsets,configmaps,resourcequotas -A -o yaml > before-the-change.yaml"]
        checks = [f"kubectl get daemonsets -n {_RELEASE}: 0 desired pods for each DaemonSet"]
        back = [f"helm uninstall {_RELEASE} -n {_RELEASE}"]
        commands.append(self._helm(marked=True))
        if "device-classes.yaml" in self.files:
            commands.append("kubectl apply -f device-classes.yaml")
            back.append("kubectl delete -f device-classes.yaml")
        checks.append("kubectl get deviceclasses: the classes are there; pods still get GPUs from the device plugin")
        title = "Install the driver for nodes that have the label, which no node has yet"
        return MigrationStep(title, tuple(commands), tuple(checks), tuple(back))

    def _helm(self, *, marked: bool) -> str:
        """The installation, for marked nodes only or for all nodes with GPUs."""
        operator = f" --values {_CHART}/values-gpu-operator.yaml" if self.operator is not None else ""
        key = MARK.replace(".", r"\.")
        mark = f" --set-string 'kubeletPlugin.nodeSelector.{key}=true'" if marked else ""
        return (
            f"helm upgrade --install {_RELEASE} {_CHART} --namespace {_RELEASE} --create-namespace"
            f" --set image.repository=REGISTRY/{_RELEASE}{operator} --values values.yaml{mark}"
        )

    def _withdrawals(self) -> Iterator[MigrationStep]:
        """Let the DaemonSets that are not of a provider or an operator leave nodes with the label."""
        for program in self._own_daemon_sets():
            namespace, _, name = program.document.name.rpartition("/")
            spec = within(program.document.value, *_SPEC)
            patch, old = (
                shlex.quote(json.dumps({"spec": {"template": {"spec": {"affinity": affinity}}}}))
                for affinity in (_away(spec), spec.get("affinity"))
            )
            where = f"daemonset {name} -n {namespace or 'default'} --type merge"
            yield MigrationStep(
                f"Keep DaemonSet {program.document.name} away from nodes that have the label",
                (f"kubectl patch {where} -p {patch}",),
                (
                    f"kubectl rollout status daemonset {name} -n {namespace or 'default'}: rolled out, with a pod on"
                    " each node as before",
                ),
                (f"kubectl patch {where} -p {old}",),
            )

    def _own_daemon_sets(self) -> list[NvidiaDaemonSet]:
        own = [program for program in self.programs if program.role in _REPLACED and not operated_by(program)]
        return [program for program in own if not program.is_of_gke]

    def _of_nodes(self, nodes: Sequence[GpuNode], title: str) -> MigrationStep:
        leave, stay = self._switch(nodes[0])
        present = () if _is_selected(nodes[0]) else (f"kubectl label node $NODE {_PRESENT}=true",)
        published = self._published(nodes[0])
        show = "kubectl get node $NODE -o jsonpath='{.status.allocatable}'"
        resources = ", ".join(f"{name}: {count}" for name, count in nodes[0].resources().items())
        emptied = (
            "kubectl cordon $NODE",
            f"kubectl drain $NODE --ignore-daemonsets --delete-emptydir-data{self._bare()}",
        )
        daemons = tuple(self._daemon_pods())
        return MigrationStep(
            title,
            (
                *emptied,
                f"kubectl label node $NODE {MARK}={_LEAVING}",
                *leave,
                f"{show}  # repeat until it has no nvidia.com resources, or 0 of each",
                *daemons,
                *present,
                f"kubectl label node $NODE {MARK}=true --overwrite",
                "kubectl get resourceslices --field-selector spec.nodeName=$NODE  # repeat until they are there",
                "kubectl uncordon $NODE",
            ),
            (
                "kubectl get resourceslices --field-selector spec.nodeName=$NODE -o"
                " jsonpath='{range .items[*].spec.devices[*]}{.name}{\"\\n\"}{end}' | wc -l:"
                f" {sum(published.values())}, which are {_text(published)}",
                "kubectl get pods -A --field-selector spec.nodeName=$NODE: pods with GPUs are Running there, and"
                " kubectl get resourceclaims -A shows their claims",
            ),
            (
                *emptied,
                f"{_CLAIMS_ON}  # repeat until no claim has devices of the node",
                f"kubectl label node $NODE {MARK}={_LEAVING} --overwrite",
                "kubectl get resourceslices --field-selector spec.nodeName=$NODE  # repeat until there are none",
                *daemons,
                *stay,
                f"kubectl label node $NODE {MARK}-",
                f"{show}  # repeat until it has {resources or 'the resources of before'}",
                "kubectl uncordon $NODE",
            ),
            tuple(node.name for node in nodes),
        )

    def _switch(self, node: GpuNode) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The commands by which the device plugin leaves a node and comes back, besides the label of all nodes."""
        of_machines = (program for program in self.programs if program.role == "machines" and node.machines)
        plugin = node.plugin or next(of_machines, None)
        if plugin is not None and operated_by(plugin):
            label = f"kubectl label node $NODE {PLUGIN_LABEL if plugin.role == 'plugin' else SANDBOX_LABEL}"
            return (f"{label}=false --overwrite",), (f"{label}=true --overwrite",)
        if GKE_ACCELERATOR in within(node.value, "metadata", "labels") and (plugin is None or plugin.is_of_gke):
            return (f"kubectl label node $NODE {_GKE_LABEL}=true",), (f"kubectl label node $NODE {_GKE_LABEL}-",)
        if plugin is None:
            text = "the device plugin on $NODE, which is in no DaemonSet of the input (a service of the node's image?)"
            return (f"# stop {text}",), (f"# start {text}",)
        return (), ()

    def _bare(self) -> str:
        """A remark if pods have to be deleted by hand."""
        bare = any(
            finding.document.kind == "Pod" and finding.owner is None and finding.requests for finding in self.findings
        )
        return "  # delete the pods by hand that nothing creates again: it refuses them" if bare else ""

    def _daemon_pods(self) -> Iterator[str]:
        """The deletion of the pods of DaemonSets with GPUs, which a drain leaves on the node."""
        for finding in self.findings:
            labels = within(finding.document.value, "spec", "selector", "matchLabels")
            if finding.document.kind == "DaemonSet" and finding.requests and labels:
                selector = ",".join(f"{key}={value}" for key, value in labels.items())
                where = f"-n {finding.document.namespace} -l {selector} --field-selector spec.nodeName=$NODE"
                yield f"kubectl delete pods {where}  # of {finding.name}, which are not drained"

    def _published(self, node: GpuNode) -> Mapping[str, int]:
        """The number of devices of each type that the driver will publish on the node."""
        own = (published for published in self.slices if published.node_name == node.name)
        types = (device.attributes.get("type") for published in own for device in published.devices)
        return Counter(str(name) for name in types)

    def _workloads(self) -> Iterator[MigrationStep]:
        """Change the workloads, as the first nodes have room for them."""
        by_hand = [finding for finding in self.findings if finding.verdict == CHANGE and finding.changed is None]
        checks = ["kubectl get pods -A: no pod with GPUs is Pending for lack of devices"]
        commands = [f"# by hand, {finding.name}: {finding.reasons[-1]}" for finding in by_hand]
        back = ["# undo the changes by hand"] if by_hand else []
        if "claim-templates.yaml" in self.files:
            commands.append("kubectl apply -f claim-templates.yaml")
        for name, force in ((WORKLOADS, ""), (RECREATED, " --force")):
            if f"{name}.yaml" in self.files:
                commands.append(f"kubectl replace{force} -f {name}.yaml{_ONE_BY_ONE}")
                back.append(f"kubectl replace{force} -f {name}-before.yaml")
        if commands:
            yield MigrationStep("Change the workloads", tuple(commands), tuple(checks), tuple(back))

    def _end(self) -> MigrationStep:
        """The device plugin has no node any more: remove it, and let the driver run on new nodes."""
        commands: list[str] = []
        back: list[str] = []
        if self.operator is not None and (changes := self.operator.changes(self.nodes)):
            policy = f"kubectl patch clusterpolicies.nvidia.com {self.operator.name} --type merge"
            before = {name: {"enabled": True} for name in changes}
            commands.append(f"{policy} -p '{json.dumps({'spec': changes})}'")
            commands.append("# set operator-values.yaml in the operator's Helm release as well, if it has one")
            back.append(f"{policy} -p '{json.dumps({'spec': before})}'")
        for program in self._own_daemon_sets():
            namespace, _, name = program.document.name.rpartition("/")
            where = f"daemonset {name} -n {namespace or 'default'}"
            commands.append(f"kubectl delete {where}  # or uninstall the Helm release that it belongs to")
            back.append(f"install {where} again, and keep it away from nodes with the label as in its step")
        if any(GKE_ACCELERATOR in within(node.value, "metadata", "labels") for node in self.nodes):
            labels = f"gcloud container node-pools update POOL --cluster CLUSTER --node-labels=LABELS,{_GKE_LABEL}=true"
            commands.append(f"{labels}  # LABELS: the pool's other labels; new nodes get the label, too")
            back.append(labels.replace(f",{_GKE_LABEL}=true", ""))
        commands.append(self._helm(marked=False))
        back.insert(0, self._helm(marked=True))
        return MigrationStep(
            "Remove the device plugin, and let the driver run on every node with GPUs",
            tuple(commands),
            (
                f"kubectl get daemonsets -n {_RELEASE}: as many ready pods as there are nodes with GPUs"
                f" ({counted(len(self.nodes), 'node')} of the plan)",
                "kubectl get nodes -o custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu:"
                " none or 0 for each node of the plan",
            ),
            tuple(back),
        )


def _away(spec: JSON) -> JSON:
    """The affinity of a pod template, and that nodes must not have the label."""
    expression = {"key": MARK, "operator": "DoesNotExist"}
    affinity = within(spec, "affinity")
    terms = each(affinity, "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    changed = [{**term, "matchExpressions": [*each(term, "matchExpressions"), expression]} for term in terms or [{}]]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": changed}}
    return {**affinity, "nodeAffinity": {**within(affinity, "nodeAffinity"), **required}}


def _is_selected(node: GpuNode) -> bool:
    """Whether the chart's DaemonSet finds the node."""
    return not within(node.value, "metadata", "labels").keys().isdisjoint(_SELECTED)


def _text(published: Mapping[str, int]) -> str:
    return " and ".join(f"{count} of type {name}" for name, count in published.items()) or "none"


def as_markdown(steps: Sequence[MigrationStep]) -> str:
    """The steps as a page."""
    lines = ["# The change", "", "Do a step only if the checks of the step before it are true. `$NODE` is the node."]
    for number, step in enumerate(steps, start=1):
        lines += ["", f"## {number}. {step.title}", ""]
        if step.nodes:
            lines += [f"For each node, to the end: {', '.join(step.nodes)}", ""]
        lines += [
            *(f"    {line}" for line in step.commands),
            "",
            "Go on if:",
            "",
            *(f"- {line}" for line in step.checks),
        ]
        lines += ["", "The way back:", "", *(f"    {line}" for line in step.back)]
    return "\n".join(lines) + "\n"
