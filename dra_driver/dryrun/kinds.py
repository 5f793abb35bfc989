# SPDX-License-Identifier: Apache-2.0
"""The table of known kinds: where their pods are, and how many of them there are at once. It has data only.

fit, lint and migrate read it through `groups`. A kind is known by its API group, because Volcano's Job is not that of
Kubernetes. The fields are those of the CustomResourceDefinitions that the projects publish, and the defaults those of
the definitions, of the webhooks and of the controllers (as of 2026). The version of a kind does not matter: the fields
that are read are the same in all versions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

Form = Literal[
    "template", "spec", "clique", "component", "llm", "machine", "nim", "revision", "rollout", "runtime", "workflow"
]
"""What is at a path of the table, and which function of `podforms` reads it:

- `template` and `spec`: a pod template, or the spec of a pod
- `clique`: the spec of a pod, of which there are more if the clique is in a scaling group
- `component`: a component of an InferenceService; `llm`: the pods of an LLMInferenceService
- `machine`: a machine of KubeVirt; `nim`: the spec of a NIMService
- `revision`: a pod template of Knative; `rollout`: a pod template, or a reference to the Deployment that has it
- `runtime`: the spec of a TrainingRuntime, or of a TrainJob that refers to one
- `workflow`: the spec of an Argo Workflow
"""

_TEMPLATE: Final = "template"

OF_KUBERNETES: Final = frozenset({"", "apps", "batch"})
"""Groups of Kubernetes, whose kinds are known whole."""
WITHOUT_PODS: Final = frozenset(
    {
        *("", "apps", "batch", "autoscaling", "policy", "events.k8s.io", "rbac.authorization.k8s.io"),
        *("admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "certificates.k8s.io"),
        *("authentication.k8s.io", "authorization.k8s.io", "coordination.k8s.io", "discovery.k8s.io"),
        *("flowcontrol.apiserver.k8s.io", "metrics.k8s.io", "networking.k8s.io", "node.k8s.io", "resource.k8s.io"),
        *("scheduling.k8s.io", "storage.k8s.io", "snapshot.storage.k8s.io", "storagemigration.k8s.io"),
        # Configurations of programs, which are not objects
        *("config.k8s.io", "kind.x-k8s.io", "kubeadm.k8s.io", "kubelet.config.k8s.io", "kubeproxy.config.k8s.io"),
        *("kubescheduler.config.k8s.io", "kustomize.config.k8s.io", "apiserver.config.k8s.io", "config.kueue.x-k8s.io"),
        # Networks, certificates, secrets, metrics and policies
        *("gateway.networking.k8s.io", "gateway.networking.x-k8s.io", "policy.networking.k8s.io"),
        *("inference.networking.k8s.io", "inference.networking.x-k8s.io", "k8s.cni.cncf.io", "metallb.io"),
        *("networking.istio.io", "security.istio.io", "telemetry.istio.io", "traefik.io", "cilium.io"),
        *("crd.projectcalico.org", "projectcalico.org", "gateway.envoyproxy.io", "route.openshift.io"),
        *("cert-manager.io", "acme.cert-manager.io", "external-secrets.io", "bitnami.com", "monitoring.coreos.com"),
        *("kyverno.io", "policies.kyverno.io", "templates.gatekeeper.sh", "constraints.gatekeeper.sh"),
        *("security.openshift.io", "image.openshift.io", "config.openshift.io"),
        # Queues, nodes and devices
        *(
            "kueue.x-k8s.io",
            "scheduling.run.ai",
            "scheduling.volcano.sh",
            "bus.volcano.sh",
            "nodeinfo.volcano.sh",
            "topology.volcano.sh",
        ),
        *("karpenter.sh", "karpenter.k8s.aws", "karpenter.azure.com", "karpenter.k8s.gcp", "nfd.k8s-sigs.io"),
        *("resource.nvidia.com", "scheduler.grove.io", "cdi.kubevirt.io", "snapshot.kubevirt.io", "clone.kubevirt.io"),
        *("instancetype.kubevirt.io", "migrations.kubevirt.io", "autoscaling.internal.knative.dev"),
    }
)
"""Groups whose other kinds make no pods that request devices."""
KINDS_WITHOUT_PODS: Final[Mapping[str, frozenset[str]]] = {
    "argoproj.io": frozenset({"AnalysisTemplate", "ClusterAnalysisTemplate", "AppProject", "WorkflowTaskSet"}),
    "apps.nvidia.com": frozenset({"NIMCache"}),
    "grove.io": frozenset({"ClusterTopology", "ClusterTopologyBinding", "PodCliqueScalingGroup"}),
    "keda.sh": frozenset({"ScaledObject", "TriggerAuthentication", "ClusterTriggerAuthentication"}),
    "kubevirt.io": frozenset({"KubeVirt", "VirtualMachineInstanceMigration", "VirtualMachineInstancePreset"}),
    "nvidia.com": frozenset({"ClusterPolicy", "NVIDIADriver"}),
    "serving.kserve.io": frozenset(
        {"ClusterStorageContainer", "LocalModelCache", "LocalModelNode", "LocalModelNodeGroup", "TrainedModel"}
    ),
    "serving.knative.dev": frozenset({"Route", "DomainMapping"}),
}
"""Further kinds that make no pods that request devices, by group."""


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number in a field: `default` if it is not set, but not less than the field `least` and not more than the
    field `most` have, and `plus` added. A path that begins with `/` starts at the object, others at `Pods.of`.
    """

    path: str
    default: int = 1
    least: str = ""
    most: str = ""
    plus: int = 0


@dataclass(frozen=True, slots=True)
class Pods:
    """Equal pods of an object. `of` is the path of what describes them: `[]` is each item of a list, `{}` each value of
    a mapping. `template` is the path of the template in the object, and `instead` the path that is used if the first is
    not set.

    `copies` are factors of their number. `role` names them: a field there, the key of the mapping, or else this text.
    `optional` pods may be missing. `each_node`: one on each node that matches.
    """

    of: str
    template: str = ""
    copies: tuple[Number, ...] = ()
    role: str = ""
    form: Form = "template"
    instead: str = ""
    optional: bool = False
    each_node: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """A kind. `reusable` objects make no pods themselves: they are evaluated as if one object used them, unless an
    object of the documents does so.
    """

    pods: tuple[Pods, ...]
    reusable: bool = False


_REPLICAS: Final = (Number("replicas"),)
_JOB_PODS: Final = (Number("parallelism", most="completions"),)
"""A Job never has more pods at once than are to complete."""
_OF_JOB: Final = (Number("replicas"), Number("template.spec.parallelism", most="template.spec.completions"))
_RAY: Final = (
    Pods("headGroupSpec", _TEMPLATE, role="head"),
    Pods(
        "workerGroupSpecs[]",
        _TEMPLATE,
        (Number("replicas", 0, least="minReplicas", most="maxReplicas"), Number("numOfHosts")),
        role="groupName",
    ),
)
_SUBMITTER: Final = Pods("", "submitterPodTemplate", role="submitter", optional=True)
_LWS: Final = (
    Pods(
        "",
        "leaderWorkerTemplate.leaderTemplate",
        _REPLICAS,
        role="leader",
        instead="leaderWorkerTemplate.workerTemplate",
    ),
    Pods(
        "",
        "leaderWorkerTemplate.workerTemplate",
        (*_REPLICAS, Number("leaderWorkerTemplate.size", plus=-1)),
        role="worker",
    ),
)
_JOB_SET: Final = (Pods("replicatedJobs[]", "template.spec.template", _OF_JOB, role="name"),)
_VOLCANO: Final = (Pods("tasks[]", _TEMPLATE, (Number("replicas", 0),), role="name"),)
_MACHINE: Final = Pods("spec.template.spec", form="machine")


def _at(path: str, pods: tuple[Pods, ...], *, optional: bool = False) -> tuple[Pods, ...]:
    """The same pods in a part of another object."""
    return tuple(replace(pod, of=f"{path}.{pod.of}".rstrip("."), optional=pod.optional or optional) for pod in pods)


def _workload(*copies: Number, each_node: bool = False) -> WorkloadKind:
    """A kind with one template in the usual place."""
    return WorkloadKind((Pods("spec", _TEMPLATE, copies, each_node=each_node),))


def _kubeflow(field: str) -> WorkloadKind:
    """A kind of the Training Operator: a mapping from the names of replica types to their templates."""
    return WorkloadKind((Pods(f"spec.{field}{{}}", _TEMPLATE, _REPLICAS),))


_MPI: Final = WorkloadKind(
    (
        Pods("spec.mpiReplicaSpecs.Launcher", _TEMPLATE, _REPLICAS, role="launcher"),
        Pods("spec.mpiReplicaSpecs.Worker", _TEMPLATE, (Number("replicas", 0),), role="worker", optional=True),
    )
)
_COMPONENTS: Final = (
    Pods("spec.predictor", form="component", role="predictor"),
    Pods("spec.canary[]", "predictor", form="component", role="canary"),
    Pods("spec.transformer", form="component", role="transformer", optional=True),
    Pods("spec.explainer", form="component", role="explainer", optional=True),
)
_SCHEDULER: Final = (
    Pods("spec.router.scheduler", _TEMPLATE, (Number("replicas"),), form="spec", role="scheduler", optional=True),
    Pods("spec.router.scheduler.tokenizer", _TEMPLATE, form="spec", role="tokenizer", optional=True),
)

KINDS: Final[Mapping[tuple[str, str], WorkloadKind]] = {
    # Kubernetes
    ("", "Pod"): WorkloadKind((Pods("", form="template"),)),
    ("", "PodTemplate"): WorkloadKind((Pods("", _TEMPLATE),), reusable=True),
    ("", "ReplicationController"): _workload(*_REPLICAS),
    ("apps", "Deployment"): _workload(*_REPLICAS),
    ("apps", "ReplicaSet"): _workload(*_REPLICAS),
    ("apps", "StatefulSet"): _workload(*_REPLICAS),
    ("apps", "DaemonSet"): _workload(each_node=True),
    ("batch", "Job"): _workload(*_JOB_PODS),
    ("batch", "CronJob"): WorkloadKind((Pods("spec.jobTemplate.spec", _TEMPLATE, _JOB_PODS),)),
    # Ray
    ("ray.io", "RayCluster"): WorkloadKind(_at("spec", _RAY)),
    ("ray.io", "RayJob"): WorkloadKind(
        (*_at("spec.rayClusterSpec", _RAY, optional=True), *_at("spec", (_SUBMITTER,))),
    ),
    ("ray.io", "RayService"): WorkloadKind(_at("spec.rayClusterConfig", _RAY)),
    ("ray.io", "RayCronJob"): WorkloadKind(
        (*_at("spec.jobTemplate.rayClusterSpec", _RAY, optional=True), *_at("spec.jobTemplate", (_SUBMITTER,))),
    ),
    # Kubeflow
    ("kubeflow.org", "PyTorchJob"): _kubeflow("pytorchReplicaSpecs"),
    ("kubeflow.org", "TFJob"): _kubeflow("tfReplicaSpecs"),
    ("kubeflow.org", "JAXJob"): _kubeflow("jaxReplicaSpecs"),
    ("kubeflow.org", "PaddleJob"): _kubeflow("paddleReplicaSpecs"),
    ("kubeflow.org", "XGBoostJob"): _kubeflow("xgbReplicaSpecs"),
    ("kubeflow.org", "MXJob"): _kubeflow("mxReplicaSpecs"),
    ("kubeflow.org", "MPIJob"): _MPI,
    ("trainer.kubeflow.org", "TrainJob"): WorkloadKind((Pods("spec", form="runtime"),)),
    ("trainer.kubeflow.org", "OptimizationJob"): WorkloadKind(
        (
            Pods(
                "spec.trainJobTemplate.spec",
                form="runtime",
                copies=(Number("/spec.parallelTrials", most="/spec.numTrials"),),
            ),
        )
    ),
    ("trainer.kubeflow.org", "TrainingRuntime"): WorkloadKind((Pods("spec", form="runtime"),), reusable=True),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): WorkloadKind((Pods("spec", form="runtime"),), reusable=True),
    # Groups of pods
    ("jobset.x-k8s.io", "JobSet"): WorkloadKind(_at("spec", _JOB_SET)),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): WorkloadKind(_at("spec", _LWS)),
    ("batch.volcano.sh", "Job"): WorkloadKind(_at("spec", _VOLCANO)),
    ("batch.volcano.sh", "CronJob"): WorkloadKind(_at("spec.jobTemplate.spec", _VOLCANO)),
    ("kueue.x-k8s.io", "Workload"): WorkloadKind((Pods("spec.podSets[]", _TEMPLATE, (Number("count"),), role="name"),)),
    ("grove.io", "PodCliqueSet"): WorkloadKind(
        (
            Pods(
                "spec.template.cliques[]",
                "spec.podSpec",
                (Number("/spec.replicas", 0), Number("spec.replicas")),
                role="name",
                form="clique",
            ),
        )
    ),
    ("grove.io", "PodClique"): WorkloadKind((Pods("spec", "podSpec", _REPLICAS, form="spec"),)),
    # Serving
    ("serving.kserve.io", "InferenceService"): WorkloadKind(_COMPONENTS),
    ("serving.kserve.io", "ServingRuntime"): WorkloadKind((Pods("spec", form="spec"),), reusable=True),
    ("serving.kserve.io", "ClusterServingRuntime"): WorkloadKind((Pods("spec", form="spec"),), reusable=True),
    ("serving.kserve.io", "LLMInferenceService"): WorkloadKind(
        (
            Pods("spec", form="llm"),
            *_SCHEDULER,
        )
    ),
    ("serving.kserve.io", "LLMInferenceServiceConfig"): WorkloadKind(
        (Pods("spec", form="llm", optional=True), *_SCHEDULER),
        reusable=True,
    ),
    ("apps.nvidia.com", "NIMService"): WorkloadKind((Pods("spec", form="nim"),)),
    ("apps.nvidia.com", "NIMPipeline"): WorkloadKind((Pods("spec.services[]", "spec", form="nim", role="name"),)),
    ("serving.knative.dev", "Service"): WorkloadKind((Pods("spec", _TEMPLATE, form="revision"),)),
    ("serving.knative.dev", "Configuration"): WorkloadKind((Pods("spec", _TEMPLATE, form="revision"),)),
    # Workflows
    ("argoproj.io", "Workflow"): WorkloadKind((Pods("spec", form="workflow"),)),
    ("argoproj.io", "CronWorkflow"): WorkloadKind((Pods("spec.workflowSpec", form="workflow"),)),
    ("argoproj.io", "WorkflowTemplate"): WorkloadKind((Pods("spec", form="workflow"),), reusable=True),
    ("argoproj.io", "ClusterWorkflowTemplate"): WorkloadKind((Pods("spec", form="workflow"),), reusable=True),
    # Virtual machines
    ("kubevirt.io", "VirtualMachine"): WorkloadKind((_MACHINE,)),
    ("kubevirt.io", "VirtualMachineInstance"): WorkloadKind((Pods("spec", form="machine"),)),
    ("kubevirt.io", "VirtualMachineInstanceReplicaSet"): WorkloadKind(
        (replace(_MACHINE, copies=(Number("/spec.replicas"),)),)
    ),
    ("pool.kubevirt.io", "VirtualMachinePool"): WorkloadKind(
        (
            Pods(
                "spec.virtualMachineTemplate.spec.template.spec",
                form="machine",
                copies=(Number("/spec.replicas"),),
            ),
        )
    ),
    # Kinds like those of Kubernetes
    ("apps.kruise.io", "CloneSet"): _workload(*_REPLICAS),
    ("apps.kruise.io", "StatefulSet"): _workload(*_REPLICAS),
    ("apps.kruise.io", "DaemonSet"): _workload(each_node=True),
    ("apps.kruise.io", "BroadcastJob"): _workload(each_node=True),
    ("argoproj.io", "Rollout"): WorkloadKind((Pods("spec", form="rollout", copies=_REPLICAS),)),
    ("keda.sh", "ScaledJob"): WorkloadKind((Pods("spec.jobTargetRef", _TEMPLATE, _JOB_PODS),)),
}
"""The kinds that make pods, by API group (without the version) and kind."""
