# SPDX-License-Identifier: Apache-2.0
"""Manifests of every kind that makes pods, after the schemas that the projects publish.

Each maker takes a number of pods, and gives the objects. Each of the pods has a claim for eight GPUs.
"""

from collections.abc import Callable
from typing import Any

JSON = dict[str, Any]
Maker = Callable[[int], list[JSON]]

TEMPLATE = "eight-gpus"
CLAIM_TEMPLATE: JSON = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": TEMPLATE},
    "spec": {
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 8}}]}
        }
    },
}
CLAIMS = [{"name": "gpus", "resourceClaimTemplateName": TEMPLATE}]
USE = {"claims": [{"name": "gpus"}]}
CONTAINER: JSON = {"name": "main", "image": "example.com/train", "resources": USE}
POD: JSON = {"containers": [CONTAINER], "resourceClaims": CLAIMS}
GPUS: JSON = {"spec": POD}
"""A pod template with GPUs."""
NO_GPUS: JSON = {"spec": {"containers": [{"name": "main", "image": "example.com/head"}]}}
"""A pod template without GPUs."""


def one(version: str, kind: str, spec: JSON, **metadata: Any) -> list[JSON]:
    return [{"apiVersion": version, "kind": kind, "metadata": {"name": "train", **metadata}, "spec": spec}]


def ray(pods: int) -> JSON:
    return {
        "headGroupSpec": {"rayStartParams": {}, "template": NO_GPUS},
        "workerGroupSpecs": [
            {
                "groupName": "gpus",
                "replicas": 1,
                "minReplicas": 1,
                "maxReplicas": 9,
                "numOfHosts": pods,
                "rayStartParams": {},
                "template": GPUS,
            }
        ],
    }


def kubeflow(field: str, master: str, worker: str) -> Maker:
    kind = {"pytorch": "PyTorchJob", "tf": "TFJob", "jax": "JAXJob", "paddle": "PaddleJob", "xgb": "XGBoostJob"}[field]

    def make(pods: int) -> list[JSON]:
        types = {master: {"replicas": 1, "template": GPUS}, worker: {"replicas": pods - 1, "template": GPUS}}
        if master == worker:
            types = {worker: {"replicas": pods, "template": GPUS}}
        return one("kubeflow.org/v1", kind, {f"{field}ReplicaSpecs": types})

    return make


def mpi_job(version: str) -> Maker:
    def make(pods: int) -> list[JSON]:
        types = {"Launcher": {"template": NO_GPUS}, "Worker": {"replicas": pods, "template": GPUS}}
        return one(f"kubeflow.org/{version}", "MPIJob", {"slotsPerWorker": 8, "mpiReplicaSpecs": types})

    return make


def runtime(kind: str) -> JSON:
    """A runtime whose node job has a pod for each node."""
    job: JSON = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {**POD, "containers": [{**CONTAINER, "name": "node"}]}}},
    }
    spec = {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}},
    }
    (made,) = one("trainer.kubeflow.org/v1alpha1", kind, spec)
    return {**made, "metadata": {"name": "torch"}}


def train_job(kind: str) -> Maker:
    def make(pods: int) -> list[JSON]:
        spec = {"runtimeRef": {"name": "torch", "kind": kind}, "trainer": {"numNodes": pods}}
        return [*one("trainer.kubeflow.org/v1alpha1", "TrainJob", spec), runtime(kind)]

    return make


def runtime_alone(kind: str) -> Maker:
    def make(pods: int) -> list[JSON]:
        made = runtime(kind)
        made["spec"]["mlPolicy"]["numNodes"] = pods
        return [made]

    return make


def optimization_job(pods: int) -> list[JSON]:
    job = {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 1}}
    spec = {"numTrials": 9, "parallelTrials": pods, "trainJobTemplate": {"spec": job}}
    return [*one("trainer.kubeflow.org/v1alpha1", "OptimizationJob", spec), runtime("ClusterTrainingRuntime")]


def inference_service(pods: int) -> list[JSON]:
    predictor: JSON = {"minReplicas": pods, "resourceClaims": CLAIMS}
    predictor |= {"model": {"modelFormat": {"name": "huggingface"}, "storageUri": "hf://a/b", "resources": USE}}
    return one("serving.kserve.io/v1beta1", "InferenceService", {"predictor": predictor})


def inference_service_of_containers(pods: int) -> list[JSON]:
    return one("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"minReplicas": pods, **POD}})


def inference_service_with_canary(pods: int) -> list[JSON]:
    canary = {"predictor": {"name": "next", "minReplicas": pods - 1, **POD}, "trafficPercent": 10}
    return one("serving.kserve.io/v1beta1", "InferenceService", {"predictor": POD, "canary": [canary]})


def llm_service(pods: int) -> list[JSON]:
    spec = {"model": {"uri": "hf://a/b"}, "replicas": pods, "template": POD}
    return one("serving.kserve.io/v1alpha1", "LLMInferenceService", spec)


def llm_service_of_nodes(pods: int) -> list[JSON]:
    spec: JSON = {"model": {"uri": "hf://a/b"}, "replicas": 1, "template": POD, "worker": POD}
    spec["parallelism"] = {"data": 8 * pods, "dataLocal": 8}
    return one("serving.kserve.io/v1alpha1", "LLMInferenceService", spec)


def llm_service_with_prefill(pods: int) -> list[JSON]:
    spec = {"model": {"uri": "hf://a/b"}, "template": POD, "prefill": {"replicas": pods - 1, "template": POD}}
    return one("serving.kserve.io/v1alpha1", "LLMInferenceService", spec)


def nim(pods: int, **more: Any) -> JSON:
    image = {"repository": "nvcr.io/nim/meta/llama", "tag": "1.0", "pullSecrets": []}
    spec: JSON = {
        "image": image,
        "authSecret": "key",
        "expose": {"service": {"port": 8000}},
        "storage": {"emptyDir": {}},
    }
    return {**spec, "draResources": [{"resourceClaimTemplateName": TEMPLATE}], "replicas": pods, **more}


def nim_service_with_claims_of_its_own(pods: int) -> list[JSON]:
    created = {
        "devices": [
            {
                "name": "gpu",
                "count": 8,
                "attributeSelectors": [{"key": "type", "op": "Equal", "value": {"stringValue": "gpu"}}],
            }
        ]
    }
    return one("apps.nvidia.com/v1alpha1", "NIMService", nim(pods, draResources=[{"claimCreationSpec": created}]))


def pod_clique_set(pods: int) -> list[JSON]:
    clique = {"name": "worker", "spec": {"roleName": "worker", "replicas": pods, "podSpec": POD}}
    return one("grove.io/v1alpha1", "PodCliqueSet", {"replicas": 1, "template": {"cliques": [clique]}})


def pod_clique_set_with_scaling_group(pods: int) -> list[JSON]:
    cliques = [
        {"name": "leader", "spec": {"roleName": "leader", "replicas": 1, "podSpec": NO_GPUS["spec"]}},
        {"name": "worker", "spec": {"roleName": "worker", "replicas": 1, "podSpec": POD}},
    ]
    group = {"name": "group", "replicas": pods, "cliqueNames": ["leader", "worker"]}
    template = {"cliques": cliques, "podCliqueScalingGroups": [group]}
    return one("grove.io/v1alpha1", "PodCliqueSet", {"replicas": 1, "template": template})


def knative_service(pods: int) -> list[JSON]:
    spec = {**POD, "containerConcurrency": 1, "timeoutSeconds": 300}
    template = {"metadata": {"annotations": {"autoscaling.knative.dev/min-scale": str(pods)}}, "spec": spec}
    return one("serving.knative.dev/v1", "Service", {"template": template})


def workflow_spec(pods: int) -> JSON:
    steps = [
        [{"name": "prepare", "template": "gpus"}],
        [{"name": "t", "template": "gpus", "withItems": list(range(pods))}],
    ]
    template = {"name": "gpus", "container": CONTAINER, "resourceClaims": CLAIMS}
    return {"entrypoint": "main", "templates": [{"name": "main", "steps": steps}, template]}


def workflow_of_tasks(pods: int) -> list[JSON]:
    tasks: list[JSON] = [{"name": "first", "template": "gpus"}]
    tasks += [{"name": f"task-{number}", "template": "gpus", "dependencies": ["first"]} for number in range(pods)]
    template = {"name": "gpus", "container": CONTAINER, "resourceClaims": CLAIMS}
    spec = {"entrypoint": "main", "templates": [{"name": "main", "dag": {"tasks": tasks}}, template]}
    return one("argoproj.io/v1alpha1", "Workflow", spec)


MACHINE: JSON = {
    "resourceClaims": CLAIMS,
    "domain": {"devices": {"gpus": [{"name": "gpu", "claimName": "gpus", "requestName": "gpu"}]}, "resources": {}},
}


def workflow_of_scripts(pods: int) -> list[JSON]:
    template = {"name": "gpus", "script": {**CONTAINER, "source": "print(1)"}, "resourceClaims": CLAIMS}
    steps = [[{"name": "t", "template": "gpus", "withItems": list(range(pods))}]]
    spec = {"entrypoint": "main", "templates": [{"name": "main", "steps": steps}, template]}
    return one("argoproj.io/v1alpha1", "Workflow", spec)


def workflow_of_container_sets(pods: int) -> list[JSON]:
    containers = [{"name": "first", "image": "a"}, {**CONTAINER, "dependencies": ["first"]}]
    template = {"name": "gpus", "containerSet": {"containers": containers}, "resourceClaims": CLAIMS}
    steps = [[{"name": "t", "template": "gpus", "withItems": list(range(pods))}]]
    spec = {"entrypoint": "main", "templates": [{"name": "main", "steps": steps}, template]}
    return one("argoproj.io/v1alpha1", "Workflow", spec)


def workflow_with_defaults(pods: int) -> list[JSON]:
    defaults: JSON = {"container": {"resources": USE}, "resourceClaims": CLAIMS}
    steps = [[{"name": "t", "template": "gpus", "withItems": list(range(pods))}]]
    templates = [{"name": "main", "steps": steps}, {"name": "gpus", "container": {"image": "a"}}]
    spec = {"entrypoint": "main", "templateDefaults": defaults, "templates": templates}
    return one("argoproj.io/v1alpha1", "Workflow", spec)


def machine_pool(pods: int) -> list[JSON]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"runStrategy": "Always", "template": {"spec": MACHINE}}}
    spec = {"replicas": pods, "selector": {"matchLabels": {"a": "b"}}, "virtualMachineTemplate": template}
    return one("pool.kubevirt.io/v1beta1", "VirtualMachinePool", spec)


def machines(kind: str) -> Maker:
    def make(pods: int) -> list[JSON]:
        spec: JSON = {"runStrategy": "Always", "template": {"spec": MACHINE}} if kind == "VirtualMachine" else MACHINE
        return [
            {**one("kubevirt.io/v1", kind, spec)[0], "metadata": {"name": f"vm-{number}"}} for number in range(pods)
        ]

    return make


def rollout_of_deployment(pods: int) -> list[JSON]:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "base"}
    rollout = one("argoproj.io/v1alpha1", "Rollout", {"replicas": pods, "workloadRef": reference})
    base = one("apps/v1", "Deployment", {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": GPUS})
    return [*rollout, {**base[0], "metadata": {"name": "base"}}]


SELECTOR: JSON = {"matchLabels": {"app": "train"}}
JOB: JSON = {"template": {"spec": {**POD, "restartPolicy": "Never"}}}

MANIFESTS: dict[str, Maker] = {
    "Deployment": lambda pods: one("apps/v1", "Deployment", {"replicas": pods, "selector": SELECTOR, "template": GPUS}),
    "ReplicaSet": lambda pods: one("apps/v1", "ReplicaSet", {"replicas": pods, "selector": SELECTOR, "template": GPUS}),
    "StatefulSet": lambda pods: one(
        "apps/v1", "StatefulSet", {"replicas": pods, "selector": SELECTOR, "template": GPUS}
    ),
    "ReplicationController": lambda pods: one("v1", "ReplicationController", {"replicas": pods, "template": GPUS}),
    "Job": lambda pods: one("batch/v1", "Job", {"parallelism": pods, **JOB}),
    "CronJob": lambda pods: one(
        "batch/v1", "CronJob", {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"parallelism": pods, **JOB}}}
    ),
    "RayCluster": lambda pods: one("ray.io/v1", "RayCluster", ray(pods)),
    "RayJob": lambda pods: one("ray.io/v1", "RayJob", {"entrypoint": "python a.py", "rayClusterSpec": ray(pods)}),
    "RayService": lambda pods: one("ray.io/v1", "RayService", {"serveConfigV2": "", "rayClusterConfig": ray(pods)}),
    "PyTorchJob": kubeflow("pytorch", "Master", "Worker"),
    "TFJob": kubeflow("tf", "Chief", "Worker"),
    "JAXJob": kubeflow("jax", "Worker", "Worker"),
    "PaddleJob": kubeflow("paddle", "Master", "Worker"),
    "XGBoostJob": kubeflow("xgb", "Master", "Worker"),
    "MPIJob v1": mpi_job("v1"),
    "MPIJob v2beta1": mpi_job("v2beta1"),
    "TrainJob with ClusterTrainingRuntime": train_job("ClusterTrainingRuntime"),
    "TrainJob with TrainingRuntime": train_job("TrainingRuntime"),
    "ClusterTrainingRuntime": runtime_alone("ClusterTrainingRuntime"),
    "OptimizationJob": optimization_job,
    "JobSet": lambda pods: one(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {"replicatedJobs": [{"name": "workers", "replicas": pods, "template": {"spec": {"parallelism": 1, **JOB}}}]},
    ),
    "LeaderWorkerSet": lambda pods: one(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"replicas": 1, "leaderWorkerTemplate": {"size": pods, "workerTemplate": GPUS}},
    ),
    "LeaderWorkerSet with leaders": lambda pods: one(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"replicas": pods, "leaderWorkerTemplate": {"size": 2, "leaderTemplate": NO_GPUS, "workerTemplate": GPUS}},
    ),
    "Volcano Job": lambda pods: one(
        "batch.volcano.sh/v1alpha1",
        "Job",
        {"minAvailable": pods, "tasks": [{"name": "worker", "replicas": pods, "template": GPUS}]},
    ),
    "Kueue Workload": lambda pods: one(
        "kueue.x-k8s.io/v1beta1", "Workload", {"podSets": [{"name": "main", "count": pods, "template": GPUS}]}
    ),
    "InferenceService": inference_service,
    "InferenceService with a canary": inference_service_with_canary,
    "InferenceService of containers": inference_service_of_containers,
    "LLMInferenceService": llm_service,
    "LLMInferenceService of nodes": llm_service_of_nodes,
    "LLMInferenceService with prefill": llm_service_with_prefill,
    "NIMService": lambda pods: one("apps.nvidia.com/v1alpha1", "NIMService", nim(pods)),
    "NIMService of nodes": lambda pods: one(
        "apps.nvidia.com/v1alpha1",
        "NIMService",
        nim(1, multiNode={"parallelism": {"pipeline": pods, "tensor": 8}}),
    ),
    "NIMService with claims of its own": nim_service_with_claims_of_its_own,
    "NIMPipeline": lambda pods: one(
        "apps.nvidia.com/v1alpha1", "NIMPipeline", {"services": [{"name": "llm", "enabled": True, "spec": nim(pods)}]}
    ),
    "PodCliqueSet": pod_clique_set,
    "PodCliqueSet with a scaling group": pod_clique_set_with_scaling_group,
    "Knative Service": knative_service,
    "Workflow": lambda pods: one("argoproj.io/v1alpha1", "Workflow", workflow_spec(pods)),
    "Workflow of tasks": workflow_of_tasks,
    "Workflow of scripts": workflow_of_scripts,
    "Workflow of container sets": workflow_of_container_sets,
    "Workflow with defaults of templates": workflow_with_defaults,
    "WorkflowTemplate": lambda pods: one("argoproj.io/v1alpha1", "WorkflowTemplate", workflow_spec(pods)),
    "CronWorkflow": lambda pods: one(
        "argoproj.io/v1alpha1", "CronWorkflow", {"schedule": "0 0 * * *", "workflowSpec": workflow_spec(pods)}
    ),
    "VirtualMachine": machines("VirtualMachine"),
    "VirtualMachineInstance": machines("VirtualMachineInstance"),
    "VirtualMachineInstanceReplicaSet": lambda pods: one(
        "kubevirt.io/v1",
        "VirtualMachineInstanceReplicaSet",
        {"replicas": pods, "selector": SELECTOR, "template": {"spec": MACHINE}},
    ),
    "VirtualMachinePool": machine_pool,
    "CloneSet": lambda pods: one(
        "apps.kruise.io/v1alpha1", "CloneSet", {"replicas": pods, "selector": SELECTOR, "template": GPUS}
    ),
    "Rollout": lambda pods: one(
        "argoproj.io/v1alpha1", "Rollout", {"replicas": pods, "selector": SELECTOR, "template": GPUS}
    ),
    "Rollout of a Deployment": rollout_of_deployment,
    "ScaledJob": lambda pods: one(
        "keda.sh/v1alpha1", "ScaledJob", {"jobTargetRef": {"parallelism": pods, **JOB}, "triggers": []}
    ),
}
