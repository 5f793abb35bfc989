# SPDX-License-Identifier: Apache-2.0
"""Workloads: which run unchanged, which need a change and what it is, which cannot run and why."""

import json
from typing import Any

import pytest
import yaml

from .build import A100, JSON, T4, Migrate, config, deployment, given, node, plugin, pod, sharing, verdicts

OLD = ("--kubernetes-version", "1.34")
"""A release without DRAExtendedResource."""
TAINTED = node("n", A100, 4, gpu=4, taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])


def container(name: str, count: int = 0, **more: Any) -> JSON:
    return {"name": name, "image": "i", "resources": {"limits": {"nvidia.com/gpu": count, "cpu": 1}}, **more}


def workload(kind: str, spec: JSON) -> JSON:
    """A workload of a kind with this pod spec."""
    version = {"CronJob": "batch/v1", "Job": "batch/v1", "PodTemplate": "v1", "ReplicationController": "v1"}
    found: JSON = {"apiVersion": version.get(kind, "apps/v1"), "kind": kind, "metadata": {"name": "w"}}
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"restartPolicy": "Never", **spec}}
    match kind:
        case "PodTemplate":
            return {**found, "template": template}
        case "CronJob":
            return {**found, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}}
        case "Job" | "ReplicationController":
            return {**found, "spec": {"template": template}}
    return {**found, "spec": {"selector": {"matchLabels": {"app": "w"}}, "template": template}}


@pytest.mark.parametrize(
    "kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "PodTemplate", "ReplicationController"]
)
def test_every_kind_of_workload_is_found_and_gets_its_gpus(migrate: Migrate, kind: str) -> None:
    """Unchanged where DeviceClasses serve the resource, and with a claim where they do not."""
    for options in ((), OLD):
        found = migrate(
            plugin(),
            TAINTED,
            workload(kind, pod()["spec"] | {"tolerations": [{"operator": "Exists"}]}),
            options=("--verify", *options),
        )
        assert verdicts(found) == {f"{kind} w": "needs a change" if options else "runs unchanged"}
        assert [len(devices) for devices in given(found).values()] == [1]


def test_the_change_is_a_claim_with_a_request_for_each_container(migrate: Migrate) -> None:
    asked = pod()
    asked["metadata"]["namespace"] = "team"
    asked["spec"]["initContainers"] = [
        container("first", 1),
        container("large", 3),
        container("sidecar", 1, restartPolicy="Always"),
    ]
    asked["spec"]["containers"] = [container("main", 2), container("idle")]
    found = migrate(plugin(), TAINTED, asked, options=("--verify", *OLD))
    template, changed = found["workloads"][0]["objects"]
    assert template["metadata"] == {"name": "gpu-pod-gpus", "namespace": "team"}
    requests = {one["name"]: one["exactly"] for one in template["spec"]["spec"]["devices"]["requests"]}
    assert requests == {
        "sidecar-gpu": {"deviceClassName": "gpu.nvidia.com"},
        "main-gpu": {"deviceClassName": "gpu.nvidia.com", "count": 2},
        "large-gpu": {"deviceClassName": "gpu.nvidia.com", "count": 3},
    }
    used = {one["name"]: one["resources"] for one in changed["spec"]["initContainers"] + changed["spec"]["containers"]}
    assert used["first"] == {"limits": {"cpu": 1}, "claims": [{"name": "nvidia-gpus", "request": "sidecar-gpu"}]}
    assert used["idle"] == {"limits": {"nvidia.com/gpu": 0, "cpu": 1}}
    assert changed["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert changed["spec"]["resourceClaims"] == [{"name": "nvidia-gpus", "resourceClaimTemplateName": "gpu-pod-gpus"}]
    assert [one["met"] for one in found["needs"]] == [False]
    assert given(found) == {"Pod team/gpu-pod": []}, "six GPUs are wanted, and there are four"


def test_the_change_is_shown_as_a_diff_and_written(migrate: Migrate, tmp_path: Any) -> None:
    found = migrate(plugin(), TAINTED, deployment(1), options=(*OLD, "--write", str(tmp_path / "plan")))
    added = [line for line in found["workloads"][0]["diff"].splitlines() if line[:1] in "+-"]
    assert added[:2] == ["--- Deployment servers", "+++ Deployment servers"]
    assert added[2:4] == ["-          limits:", "-            nvidia.com/gpu: 1"]
    assert "+          - name: nvidia-gpus" in added
    written = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "plan").iterdir()}
    files = ("values", "claim-templates", "workloads", "workloads-before")
    assert written.keys() == {*(f"{name}.yaml" for name in files), "steps.md"}
    objects = [yaml.safe_load(written[f"{name}.yaml"]) for name in ("claim-templates", "workloads")]
    assert objects == found["workloads"][0]["objects"]
    assert yaml.safe_load(written["values.yaml"]) == found["values"]


def test_gates_that_the_cluster_has_are_enough(migrate: Migrate) -> None:
    gates = "DRAExtendedResource=true,DRAConsumableCapacity=true"
    shared = config(sharing=sharing({"nvidia.com/gpu": 2}))
    found = migrate(shared, node("n", T4, 1), deployment(2), options=("--verify", *OLD, "--feature-gates", gates))
    assert verdicts(found) == {"Deployment servers": "runs unchanged"}
    assert [one["met"] for one in found["needs"]] == [True, True]
    assert [one["fits"] for one in found["verification"]["demands"]] == [True, True]
    without = migrate(shared, node("n", T4, 1), deployment(2), options=("--verify", *OLD))
    assert [one["fits"] for one in without["verification"]["demands"]] == [True, False], "no shares are published"


def test_a_pod_for_a_named_node_has_to_be_scheduled(migrate: Migrate) -> None:
    found = migrate(plugin(), node("n", T4, 1), deployment(1, nodeName="n"), options=("--verify",))
    (one,) = found["workloads"]
    assert (one["verdict"], one["reasons"]) == (
        "needs a change",
        ["nodeName bypasses the scheduler, which allocates the GPUs"],
    )
    assert one["objects"][0]["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "n"}
    assert list(given(found).values()) == [["n/gpu-0"]]


def affinity(key: str) -> JSON:
    term = {"matchExpressions": [{"key": key, "operator": "Exists"}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("spec", "note"),
    [
        ({"nodeSelector": {"nvidia.com/gpu.product": T4}}, "nvidia.com/gpu.product"),
        ({"affinity": affinity("nvidia.com/mig-1g.5gb.count")}, "nvidia.com/mig-1g.5gb.count"),
        ({"nodeSelector": {"nvidia.com/gpu.present": "true", "nvidia.com/mig.config": "x"}}, ""),
        ({"schedulerName": "volcano"}, "its scheduler volcano must know DRA"),
    ],
)
def test_fields_that_must_stay_are_noted(migrate: Migrate, spec: JSON, note: str) -> None:
    (one,) = migrate(plugin(), node("n", T4, 1), pod(**spec))["workloads"]
    assert one["verdict"] == "runs unchanged"
    assert (note in "".join(one["notes"])) if note else not one["notes"]


def test_gpus_that_nobody_requested_are_noted(migrate: Migrate) -> None:
    watching = pod("cpu", name="watching")
    watching["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    found = migrate(plugin(), node("n", T4, 1), watching, pod("cpu", name="other"))
    assert verdicts(found) == {"Pod watching": "runs unchanged"}
    assert "NVIDIA_VISIBLE_DEVICES=all" in found["workloads"][0]["notes"][0]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (pod("nvidia.com/gpu.shared"), "no node offers nvidia.com/gpu.shared (the nodes offer nvidia.com/gpu)"),
        (pod("nvidia.com/mig-1g.5gb"), "no node offers nvidia.com/mig-1g.5gb"),
        (
            pod() | {"metadata": {"name": "p", "ownerReferences": [{"kind": "Node", "name": "n"}]}},
            "it is a static pod",
        ),
    ],
)
def test_workload_that_cannot_run_has_a_reason_and_no_devices(migrate: Migrate, asked: JSON, reason: str) -> None:
    found = migrate(plugin(), node("n", T4, 1), asked, deployment(1), options=("--verify",))
    assert found["code"] == 1
    assert found["workloads"][0]["verdict"] == "cannot run"
    assert found["workloads"][0]["reasons"][0].startswith(reason)
    assert given(found) == {"Deployment servers": ["n/gpu-0"]}


def test_pods_that_others_made_or_that_ended_are_passed_over(migrate: Migrate) -> None:
    made = pod(name="made") | {"spec": {**pod()["spec"], "nodeName": "n"}}
    made["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "servers-1"}]
    ended = pod(name="ended") | {"status": {"phase": "Succeeded"}}
    done = workload("Job", pod()["spec"]) | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    running = pod(name="running") | {"status": {"phase": "Running"}}
    running["spec"]["nodeName"] = "n"
    found = migrate(plugin(), node("n", T4, 2), made, ended, done, running, deployment(1), options=("--verify",))
    assert verdicts(found) == {"Pod running": "runs unchanged", "Deployment servers": "runs unchanged"}
    assert found["workloads"][0]["notes"] == ["nothing creates this pod again after its node was drained"]
    assert [len(devices) for devices in given(found).values()] == [1, 1]


def test_pods_without_gpus_take_their_room_and_other_resources_are_not_ours(migrate: Migrate) -> None:
    busy = {"name": "busy", "resources": {"requests": {"cpu": "63"}}}
    other = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "o"},
        "spec": {"nodeName": "n", "containers": [busy]},
    }
    asked = pod("nvidia.com/hostdev", name="network")
    large = pod()
    large["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "2"
    found = migrate(
        plugin(), node("n", T4, 1), {**other, "status": {"phase": "Running"}}, asked, large, options=("--verify",)
    )
    assert verdicts(found) == {"Pod gpu-pod": "runs unchanged"}
    assert found["verification"]["demands"][0]["summary"] == "1 node: 1 lacks cpu (needs 2, has 1 free)"


def test_a_daemon_set_without_a_node_is_noted(migrate: Migrate) -> None:
    asked = workload("DaemonSet", {**pod()["spec"], "nodeSelector": {"pool": "none"}})
    found = migrate(plugin(), node("n", T4, 1), asked, options=("--verify",))
    assert found["verification"]["demands"] == []
    assert "no node matches" in found["verification"]["inputs"]["notes"][0]


def test_a_class_that_competes_is_noted(migrate: Migrate) -> None:
    other = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "old.example.com"}}
    other["spec"] = {"extendedResourceName": "nvidia.com/gpu"}
    found = migrate(plugin(), node("n", T4, 1), other)
    assert found["planNotes"] == [
        "DeviceClass old.example.com serves nvidia.com/gpu, too: delete it, because the newest class counts"
    ]


def test_people_read_the_same(migrate: Migrate, dryrun: Any, tmp_path: Any) -> None:
    found = migrate(plugin(), TAINTED, deployment(1), pod("nvidia.com/gpu.shared"))
    code, out, _ = dryrun("migrate", tmp_path / "cluster", "--verify")
    assert code == found["code"] == 1
    lines = out.splitlines()
    assert lines[2].split("  ")[0] == "n"
    assert lines[2].endswith(f"4 x {A100}  -              nvidia.com/gpu 4")
    for line in (
        "to remove: DaemonSet nvidia-device-plugin/nvdp",
        "runs unchanged  Deployment servers  nvidia.com/gpu 1",
        "cannot run  Pod gpu-pod  nvidia.com/gpu.shared 1",
        "  no node offers nvidia.com/gpu.shared (the nodes offer nvidia.com/gpu)",
        "values.yaml:",
        "      extendedResourceName: nvidia.com/gpu",
    ):
        assert line in lines
    assert any(line.startswith("fits nowhere  Deployment servers") for line in lines), "the node's taint keeps it away"
    documents = [dryrun("migrate", tmp_path / "cluster", "-o", output)[1] for output in ("yaml", "json")]
    assert yaml.safe_load(documents[0]) == json.loads(documents[1])


def test_devices_of_other_drivers_are_there(migrate: Migrate) -> None:
    network: JSON = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "net.example.com"}}
    network["spec"] = {"selectors": [{"cel": {"expression": "device.driver == 'net.example.com'"}}]}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    slices = {"driver": "net.example.com", "nodeName": "n", "pool": pool, "devices": [{"name": "nic-0"}]}
    devices = {"requests": [{"name": "nic", "exactly": {"deviceClassName": "net.example.com"}}]}
    template = {"metadata": {"name": "nic"}, "kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": devices}}}
    found = migrate(
        plugin(),
        node("n", T4, 1),
        network,
        {**network, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": slices},
        {**network, **template},
        pod(resourceClaims=[{"name": "nic", "resourceClaimTemplateName": "nic"}]),
        options=("--verify",),
    )
    assert given(found) == {"Pod gpu-pod": ["n/nic-0", "n/gpu-0"]}


def test_objects_that_were_not_evaluated_are_named(dryrun: Any, tmp_path: Any) -> None:
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {"runtimeRef": {"name": "torch"}},
    }
    files = []
    for name, value in (("plugin", plugin()), ("node", node("n", T4, 1, gpu=1)), ("job", job)):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(value), encoding="utf-8")
    code, out, err = dryrun("migrate", *files, "-o", "json")
    assert code == 3, err
    found = json.loads(out)
    (note,) = found["notes"]
    assert note["object"] == "TrainJob team/train"
    assert note["file"] == str(files[-1])
    assert note["line"] == 1
    assert note["text"].startswith("ClusterTrainingRuntime torch, which has its pod templates, is not among the files")
    assert found["planNotes"] == []
