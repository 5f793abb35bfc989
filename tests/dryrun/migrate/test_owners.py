# SPDX-License-Identifier: Apache-2.0
"""Objects that a controller of another kind owns: the owner is what has to be changed, and nothing else is written."""

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import Kind
from dra_driver.kube.kinds import NAMESPACES
from tests.dryrun.conftest import DryRun
from tests.support.apiserver import embedded
from tests.support.faultyserver import RequestFault

from .build import A100, JSON, Migrate, given, node, plugin, pod, verdicts
from .test_cluster import install_kind, store

OLD = ("--kubernetes-version", "1.34")
"""A release without DRAExtendedResource."""
NODE = node("n", A100, 8, gpu=8)
TEMPLATE = {"spec": pod()["spec"]}

RAY_CLUSTER: JSON = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "train", "namespace": "ray"},
    "spec": {
        "headGroupSpec": {"template": {"spec": {"containers": [{"name": "head", "image": "ray"}]}}},
        "workerGroupSpecs": [{"groupName": "gpu", "replicas": 2, "template": TEMPLATE}],
    },
}


def owned(value: JSON, version: str, kind: str, name: str, **labels: str) -> JSON:
    """The object as the controller of another object makes it, in its namespace `ray`."""
    reference = {"apiVersion": version, "kind": kind, "name": name, "controller": True, "uid": "u"}
    metadata = {**value["metadata"], "namespace": "ray", "ownerReferences": [reference]}
    labelled = {key.replace("__", "/").replace("_", "-"): text for key, text in labels.items()}
    return {**value, "metadata": {**metadata, "labels": labelled}}


def worker(number: int) -> JSON:
    """A running worker of the RayCluster."""
    made = pod(name=f"train-gpu-{number}") | {"status": {"phase": "Running"}}
    return owned(made, "ray.io/v1", "RayCluster", "train", **{"ray.io__group": "gpu", "ray.io__node_type": "worker"})


def stateful_set() -> JSON:
    spec = {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "serve"}, "spec": spec}


def job() -> JSON:
    spec = {"template": {"spec": {**pod()["spec"], "restartPolicy": "Never"}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sim-workers-0"}, "spec": spec}


OWNED: dict[str, tuple[JSON, str, str]] = {
    "StatefulSet of a LeaderWorkerSet": (
        owned(stateful_set(), "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "serve"),
        "LeaderWorkerSet ray/serve",
        "spec.leaderWorkerTemplate.leaderTemplate and spec.leaderWorkerTemplate.workerTemplate",
    ),
    "Job of a JobSet": (
        owned(job(), "jobset.x-k8s.io/v1alpha2", "JobSet", "sim", **{"jobset.sigs.k8s.io__replicatedjob_name": "w"}),
        "JobSet ray/sim",
        "spec.replicatedJobs[name=w].template.spec.template",
    ),
    "Pod of a PyTorchJob": (
        owned(pod(), "kubeflow.org/v1", "PyTorchJob", "bert", **{"training.kubeflow.org__replica_type": "worker"}),
        "PyTorchJob ray/bert",
        "spec.pytorchReplicaSpecs.Worker.template",
    ),
    "Pod of a RayCluster": (
        worker(1),
        "RayCluster ray/train",
        "spec.workerGroupSpecs[groupName=gpu].template",
    ),
    "Pod of an unknown kind": (
        owned(pod(), "example.com/v1", "Training", "bert"),
        "Training ray/bert",
        "where it describes its pods",
    ),
}


@pytest.mark.parametrize(("value", "owner", "place"), OWNED.values(), ids=OWNED)
def test_owner_is_named_with_the_place_and_nothing_is_written_for_the_owned_object(
    dryrun: DryRun, tmp_path: Path, value: JSON, owner: str, place: str
) -> None:
    for number, one in enumerate((plugin(), NODE, value)):
        (tmp_path / f"{number}.json").write_text(json.dumps(one), encoding="utf-8")
    code, out, err = dryrun("migrate", tmp_path, *OLD, "--verify", "-o", "json", "--write", tmp_path / "plan")
    assert code == 3, err
    found = json.loads(out)
    (workload,) = found["workloads"]
    assert (workload["name"], workload["verdict"]) == (owner, "needs a change")
    assert (workload["objects"], workload["diff"]) == ([], "")
    assert f"change {owner}" in workload["reasons"][-1]
    assert place in workload["reasons"][-1]
    assert not (tmp_path / "plan" / "workloads.yaml").exists()
    assert [one["fits"] for one in found["verification"]["demands"]] == [True]
    kind, _, name = owner.partition(" ")
    assert found["notes"][0]["text"].startswith(f"1 {kind} whose objects request GPUs: {name} (not in the input).")


def test_pods_of_a_controller_are_made_again_so_their_note_is_not_that_of_bare_pods(
    dryrun: DryRun, tmp_path: Path
) -> None:
    bare = pod(name="bare") | {"status": {"phase": "Running"}}
    for number, one in enumerate((plugin(), NODE, worker(1), worker(2), bare)):
        (tmp_path / f"{number}.json").write_text(json.dumps(one), encoding="utf-8")
    code, out, _ = dryrun("migrate", tmp_path, "-o", "json")
    assert code == 3
    notes = {one["name"]: one["notes"] for one in json.loads(out)["workloads"]}
    assert notes == {
        "Pod bare": ["nothing creates this pod again after its node was drained"],
        "RayCluster ray/train": ["known by what its controller made: Pod ray/train-gpu-1, Pod ray/train-gpu-2"],
    }


@pytest.mark.parametrize(
    "reference",
    [
        {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "x\nrm -rf ~"},
        {"apiVersion": "ray.io/v1", "kind": "$(reboot)", "name": "x"},
        {"apiVersion": "../../v1", "kind": "RayCluster", "name": "x"},
    ],
)
def test_references_to_objects_that_cannot_exist_are_ignored(migrate: Migrate, reference: JSON) -> None:
    value = pod()
    value["metadata"]["ownerReferences"] = [reference]
    found = migrate(plugin(), NODE, value, options=OLD)
    assert verdicts(found) == {"Pod gpu-pod": "needs a change"}
    assert not any("reboot" in line or "rm -rf" in line for step in found["steps"] for line in step["commands"])


def test_owner_of_an_unknown_kind_is_planned_if_it_has_the_pod_template(dryrun: DryRun, tmp_path: Path) -> None:
    app = {"apiVersion": "example.com/v1", "kind": "App", "metadata": {"name": "app", "namespace": "ray"}}
    template = {"spec": {"containers": [{**pod()["spec"]["containers"][0]}]}}
    made = owned(pod(), "example.com/v1", "App", "app")
    files = [tmp_path / f"{number}.json" for number in range(4)]
    for file, one in zip(files, (plugin(), NODE, made, {**app, "spec": {"template": template}}), strict=True):
        file.write_text(json.dumps(one), encoding="utf-8")
    _, out, err = dryrun("migrate", *files, "-o", "json")
    assert [one["name"] for one in json.loads(out)["workloads"]] == ["App ray/app"], err
    files[3].write_text(json.dumps({**app, "spec": {"gpus": 1}}), encoding="utf-8")
    code, out, _ = dryrun("migrate", *files, "-o", "json")
    assert code == 3
    texts = [one["text"] for one in json.loads(out)["notes"]]
    assert "1 App whose objects request GPUs: ray/app (without a pod template). The plan knows only" in texts[0]


def test_owner_among_the_documents_is_planned_itself(migrate: Migrate) -> None:
    found = migrate(plugin(), NODE, RAY_CLUSTER, worker(1), worker(2), options=(*OLD, "--verify"))
    assert verdicts(found) == {"RayCluster ray/train": "needs a change"}
    template, changed = found["workloads"][0]["objects"]
    assert template["metadata"] == {"name": "train-gpu-gpus", "namespace": "ray"}
    assert "resourceClaims" in changed["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert sum(map(len, given(found).values())) == 2


@pytest.mark.cluster
@pytest.mark.parametrize("allowed", [True, False])
def test_owners_of_other_kinds_are_read_of_a_cluster_if_they_may_be_listed(
    dryrun: DryRun, tmp_path: Path, allowed: bool
) -> None:
    with embedded(tmp_path) as (server, kubeconfig, client):
        for name in ("ray", "nvidia-device-plugin"):
            client.create(NAMESPACES, {"metadata": {"name": name}})
        install_kind(client, "ray.io/v1", "RayCluster")
        ray = client.create(Kind("ray.io/v1", "rayclusters", namespaced=True), RAY_CLUSTER, "ray")
        for one in (plugin(), NODE, worker(1), worker(2)):
            for reference in one["metadata"].get("ownerReferences", ()):
                reference["uid"] = ray["metadata"]["uid"]
            store(client, one)
        if not allowed:
            server.faults.add(RequestFault(verb="list", resource="rayclusters", error=403))
        code, out, err = dryrun("migrate", "--kubeconfig", kubeconfig, "-o", "json", *OLD)
    found: dict[str, Any] = json.loads(out)
    (workload,) = found["workloads"]
    assert workload["name"] == "RayCluster ray/train", err
    assert bool(workload["objects"]) == allowed
    assert code == (0 if allowed else 3)
    texts = [note["text"] for note in found["notes"]]
    assert texts == [] if allowed else "listing raycluster.ray.io is not allowed" in texts[0]
