# SPDX-License-Identifier: Apache-2.0
"""Every kind that makes pods: what fits on 4 nodes of 8 GPUs, and what is one copy too large for them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.dryrun.groups import ReferencedObjects, pods_of
from dra_driver.dryrun.kinds import KINDS
from dra_driver.dryrun.podforms import FORMS

from .conftest import DryRun, Write
from .kinds import CLAIM_TEMPLATE, GPUS, MANIFESTS, NO_GPUS, TEMPLATE, one, ray
from .test_report_document import check

JSON = dict[str, Any]
NODES = ("--with-node", "h100x8=4")


def stream(*objects: JSON) -> str:
    return yaml.dump_all(objects, Dumper=yaml.CSafeDumper, sort_keys=False)


@pytest.mark.parametrize("kind", MANIFESTS)
def test_kind_fits_with_four_pods_and_not_with_five(kind: str, dryrun: DryRun, write: Write) -> None:
    for pods, status in ((4, 0), (5, 1)):
        text = stream(*MANIFESTS[kind](pods))
        path = write("manifest.yaml", text + (f"---\n{stream(CLAIM_TEMPLATE)}" if TEMPLATE in text else ""))
        code, out, err = dryrun(*NODES, path, "-o", "json")
        document = json.loads(out)
        if status:  # of five pods, four fit: it has everything that the other document has
            check(document)
        assert code == status, f"{pods} pods: {out[:2000]} {err}"
        assert document["notes"] == []


@pytest.mark.parametrize("kind", [kind for kind in MANIFESTS if kind != "NIMService with claims of its own"])
def test_lint_finds_a_wrong_template_in_every_kind(kind: str, dryrun: DryRun, write: Write) -> None:
    text = stream(*MANIFESTS[kind](2)).replace(TEMPLATE, "eight-gpu") + "---\n" + stream(CLAIM_TEMPLATE)
    path = write("manifest.yaml", text)
    code, out, _ = dryrun("lint", "--built-in", "--strict", path, "-o", "json")
    found = [finding for finding in json.loads(out)["findings"] if finding["rule"] == "claim-not-found"]
    assert code == 1
    assert found, out
    assert "did you mean 'eight-gpus'?" in found[0]["message"]
    line = text.splitlines()[found[0]["line"] - 1]
    assert "eight-gpu" in line or "runtimeRef" in line or "workloadRef" in line, line


def test_manifests_cover_the_table() -> None:
    made = {(value["apiVersion"].rpartition("/")[0], value["kind"]) for make in MANIFESTS.values() for value in make(2)}
    others = {"Pod", "PodTemplate", "DaemonSet", "BroadcastJob", "PodClique", "Configuration"}
    others |= {"RayCronJob", "MXJob", "ServingRuntime", "ClusterServingRuntime", "LLMInferenceServiceConfig"}
    others |= {"ClusterWorkflowTemplate"}
    missing = {key for key in KINDS if key not in made and key[1] not in others}
    assert missing == {("batch.volcano.sh", "CronJob"), ("apps.kruise.io", "StatefulSet")}


def groups(value: JSON, *others: JSON) -> list[tuple[str, int]]:
    return [(group.role, group.count) for group in pods_of(value, ReferencedObjects([value, *others]), FORMS).groups]


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, None),
        ({"minReplicas": 2}, 2),
        ({"replicas": 1, "minReplicas": 2}, 2),
        ({"replicas": 5, "maxReplicas": 3}, 3),
        ({"replicas": 2, "numOfHosts": 4}, 8),
    ],
    ids=str,
)
def test_ray_workers_are_between_their_limits(fields: JSON, count: int | None) -> None:
    spec = ray(1)
    spec["workerGroupSpecs"] = [{"groupName": "gpus", "template": GPUS, **fields}]
    expected = [("head", 1)] if count is None else [("head", 1), ("gpus", count)]
    assert groups(one("ray.io/v1", "RayCluster", spec)[0]) == expected


def test_size_of_a_group_counts_its_leader() -> None:
    spec = {"replicas": 3, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": NO_GPUS, "workerTemplate": GPUS}}
    (value,) = one("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)
    assert groups(value) == [("leader", 3), ("worker", 9)]


def test_kind_of_another_group_is_another_kind(dryrun: DryRun, write: Write) -> None:
    (value,) = MANIFESTS["Volcano Job"](2)
    code, out, _ = dryrun(*NODES, write("job.yaml", stream(CLAIM_TEMPLATE, value)))
    assert code == 0
    assert "Job train, worker, pod 2 of 2" in out


UNKNOWN: JSON = {
    "apiVersion": "example.com/v1",
    "kind": "Trainer",
    "metadata": {"name": "train"},
    "spec": {"parts": [{"size": 1000, "pods": GPUS}]},
}


def test_template_of_an_unknown_kind_is_evaluated_once(dryrun: DryRun, write: Write) -> None:
    code, out, _ = dryrun(*NODES, write("pods.yaml", stream(CLAIM_TEMPLATE, UNKNOWN)), "-o", "json")
    document = json.loads(out)
    check(document)
    assert code == 3
    assert document["fits"]
    assert [one["name"] for one in document["demands"]] == ["Trainer train, spec.parts[0].pods.spec"]
    assert document["notes"][0]["object"].startswith("Trainer train")


def test_template_of_an_unknown_kind_that_fits_nowhere_wins(dryrun: DryRun, write: Write) -> None:
    assert dryrun("--with-node", "a30x4", write("pods.yaml", stream(CLAIM_TEMPLATE, UNKNOWN)))[0] == 1


def test_unknown_kind_without_a_template_is_told(dryrun: DryRun, write: Write) -> None:
    value = {**UNKNOWN, "spec": {"gpus": 8}}
    code, out, _ = dryrun(*NODES, write("pods.yaml", stream(CLAIM_TEMPLATE, value)))
    assert code == 3
    assert "not known  " in out
    assert "Trainer train: its kind is not known" in out


@pytest.mark.parametrize(
    ("version", "kind"),
    [("apiextensions.k8s.io/v1", "CustomResourceDefinition"), ("kyverno.io/v1", "ClusterPolicy"), ("v1", "ConfigMap")],
)
def test_templates_of_schemas_and_policies_are_no_pods(version: str, kind: str, dryrun: DryRun, write: Write) -> None:
    value = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": {"pattern": GPUS}}
    code, out, _ = dryrun(*NODES, write("pods.yaml", stream(CLAIM_TEMPLATE, value)), "-o", "json")
    assert code == 0
    assert len(json.loads(out)["demands"]) == 1


def test_thousand_workers_on_one_node_do_not_fit(dryrun: DryRun, write: Write) -> None:
    path = write("job.yaml", stream(CLAIM_TEMPLATE, *MANIFESTS["PyTorchJob"](1001)))
    code, out, _ = dryrun("--with-node", "h100x8", path)
    assert code == 1
    assert "0 of 1000 fit" in out


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("TrainJob with ClusterTrainingRuntime", "ClusterTrainingRuntime torch"),
        ("Rollout of a Deployment", "Deployment base"),
    ],
)
def test_missing_object_that_has_the_template_is_told(kind: str, names: str, dryrun: DryRun, write: Write) -> None:
    code, out, _ = dryrun(*NODES, write("pods.yaml", stream(MANIFESTS[kind](4)[0])), "-o", "json")
    document = json.loads(out)
    check(document)
    assert code == 3
    assert names in document["notes"][0]["text"]


def test_resources_of_a_job_are_evaluated_without_its_runtime(dryrun: DryRun, write: Write) -> None:
    (value, _) = MANIFESTS["TrainJob with ClusterTrainingRuntime"](5)
    value["spec"]["trainer"]["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": 8}}
    assert dryrun(*NODES, write("pods.yaml", stream(value)))[0] == 1
    value["spec"]["trainer"]["numNodes"] = 4
    assert dryrun(*NODES, write("pods.yaml", stream(value)))[0] == 3


def test_pods_of_workers_are_read_strictly(dryrun: DryRun, write: Write) -> None:
    text = stream(CLAIM_TEMPLATE, *MANIFESTS["RayCluster"](4)).replace("resourceClaims:", "resourceClaim:")
    code, _, err = dryrun(*NODES, write("ray.yaml", text))
    assert code == 2
    assert "spec.workerGroupSpecs[0].template.spec.resourceClaim: unknown field; did you mean 'resourceClaims'?" in err


@pytest.mark.parametrize(("replicas", "text"), [("three", "not a string"), (-1, "must not be less than 0")])
def test_wrong_number_of_copies_is_an_error(replicas: object, text: str, dryrun: DryRun, write: Write) -> None:
    (value,) = MANIFESTS["CloneSet"](1)
    value["spec"]["replicas"] = replicas
    code, _, err = dryrun(*NODES, write("pods.yaml", stream(CLAIM_TEMPLATE, value)))
    assert code == 2
    assert "spec.replicas: " in err
    assert text in err


MACHINE_OF_TYPE: JSON = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachine",
    "metadata": {"name": "vm"},
    "spec": {"instancetype": {"name": "gpus"}, "template": {"spec": {"domain": {"devices": {}}}}},
}
INSTANCE_TYPE: JSON = {
    "apiVersion": "instancetype.kubevirt.io/v1beta1",
    "kind": "VirtualMachineClusterInstancetype",
    "metadata": {"name": "gpus"},
    "spec": {
        "cpu": {"guest": 4},
        "memory": {"guest": "8Gi"},
        "gpus": [{"name": "gpu", "deviceName": "nvidia.com/gpu"}],
        "nodeSelector": {"zone": "a"},
    },
}


def pooled(machine: JSON) -> JSON:
    """A pool of such machines."""
    spec = {"virtualMachineTemplate": {"spec": machine["spec"]}}
    return {"apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool", "metadata": {}, "spec": spec}


@pytest.mark.parametrize("machine", [MACHINE_OF_TYPE, pooled(MACHINE_OF_TYPE)], ids=["machine", "pool"])
def test_instance_type_adds_devices_memory_and_node_selector(machine: JSON) -> None:
    (group,) = pods_of(machine, ReferencedObjects([machine, INSTANCE_TYPE]), FORMS).groups
    resources = group.spec["containers"][0]["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": 1}
    assert resources["requests"] == {"memory": "8Gi"}
    assert group.spec["nodeSelector"] == {"zone": "a"}
    assert group.unknown == ()


def test_instance_type_that_a_volume_names_is_not_known() -> None:
    spec = {**MACHINE_OF_TYPE["spec"], "instancetype": {"inferFromVolume": "boot"}}
    (group,) = pods_of({**MACHINE_OF_TYPE, "spec": spec}, ReferencedObjects(), FORMS).groups
    assert group.unknown == ("its instance type, which may add GPUs, is that of volume boot",)


def test_runtime_patches_are_applied() -> None:
    job, runtime = MANIFESTS["TrainJob with ClusterTrainingRuntime"](2)
    pods = {"spec": {"template": {"spec": {"nodeSelector": {"zone": "a"}}}}}
    patch = {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": pods}]}}}
    job["spec"]["runtimePatches"] = [{"manager": "example.com/a", "trainingRuntimeSpec": patch}]
    (group,) = pods_of(job, ReferencedObjects([job, runtime]), FORMS).groups
    assert group.spec["nodeSelector"] == {"zone": "a"}
    assert group.spec["resourceClaims"]
    assert group.unknown == ()


@pytest.mark.parametrize(("nodes", "counts"), [(None, [1, 3]), (1, [1, 1]), (4, [1, 3])], ids=str)
def test_launcher_that_is_a_node_counts_as_a_node(nodes: int | None, counts: list[int]) -> None:
    job, runtime = MANIFESTS["TrainJob with ClusterTrainingRuntime"](1)
    runtime["spec"]["mlPolicy"] = {"numNodes": 1, "mpi": {"runLauncherAsNode": True}}
    (launcher,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    workers = {"name": "node", "template": {"spec": {**launcher["template"]["spec"], "parallelism": 3}}}
    runtime["spec"]["template"]["spec"]["replicatedJobs"] = [{**launcher, "name": "launcher"}, workers]
    job["spec"]["trainer"] = {"numNodes": nodes} if nodes else {}
    assert [count for _, count in groups(job, runtime)] == counts


def test_scheduler_and_tokenizer_of_a_model_are_evaluated() -> None:
    scheduler = {"replicas": 2, "template": NO_GPUS["spec"], "tokenizer": {"template": GPUS["spec"]}}
    spec = {"template": GPUS["spec"], "router": {"scheduler": scheduler}}
    (value,) = one("serving.kserve.io/v1alpha2", "LLMInferenceService", spec)
    assert groups(value) == [("", 1), ("scheduler", 2), ("tokenizer", 1)]


def test_text_with_braces_is_told_to_be_a_template(dryrun: DryRun, write: Write) -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Release.Name }}-a\n"
    for command in (["fit", "--with-node", "h100x8"], ["lint", "--built-in"], ["migrate"]):
        code, out, err = dryrun(*command, write("pod.yaml", text), "-o", "json")
        assert code == 2
        json.loads(out)
        assert "render it first, for example with 'helm template'" in out + err


def test_templates_of_a_chart_are_one_problem(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    write("chart/Chart.yaml", "name: chart\n")
    for name in "abc":
        write(f"chart/templates/{name}.yaml", "kind: {{ .Values.kind }}\n---\nname: {{ .Values.name }}\n")
    code, out, _ = dryrun("lint", "--built-in", "-f", chart)
    assert code == 2
    assert len(out.splitlines()) == 1
    assert f"run 'helm template {chart}' first (2 other files of this chart are templates, too)" in out
