# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun gangs`: groups of pods in files."""

import json
from typing import Any

import pytest
import yaml

from ..conftest import DryRun, Write, gpu, slice_of

JSON = dict[str, Any]


def template(*requests: JSON, name: str = "gpus") -> JSON:
    made = requests or ({"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}},)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": list(made)}}},
    }


def pod_spec(**fields: Any) -> JSON:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    return {"containers": [{"name": "c", "image": "i"}], "resourceClaims": claims, **fields}


def pod(name: str, group: str = "train", **fields: Any) -> JSON:
    annotations = fields.pop("annotations", {})
    spec = pod_spec(**({"schedulingGroup": {"podGroupName": group}} if group else {}), **fields)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


def pod_group(least: int | None = 2, **fields: Any) -> JSON:
    policy = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"schedulingPolicy": policy, **fields},
    }


def divided(node: str) -> list[JSON]:
    """A GPU that is allocated whole or as two halves, the whole GPU first."""
    slices = [slice_of(node), slice_of(node, gpu("gpu-0"))]
    for slice_ in slices:
        slice_["spec"]["pool"]["resourceSliceCount"] = 2
    slices[0]["metadata"]["name"] = f"{node}-counters"
    del slices[0]["spec"]["devices"]
    slices[0]["spec"]["sharedCounters"] = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    devices = slices[1]["spec"]["devices"]
    devices[0]["consumesCounters"] = [{"counterSet": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    for half in range(2):
        attributes = {"type": {"string": "mig"}, "profile": {"string": "3g.40gb"}}
        taken = [{"counterSet": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
        devices.append({"name": f"gpu-0-half-{half}", "attributes": attributes, "consumesCounters": taken})
    return slices


WHOLE_OR_HALF = {
    "name": "gpu",
    "firstAvailable": [
        {"name": "whole", "deviceClassName": "gpu.nvidia.com"},
        {"name": "half", "deviceClassName": "mig.nvidia.com"},
    ],
}


@pytest.fixture
def ask(dryrun: DryRun, write: Write) -> Any:
    """Asks about objects in a cluster of objects: the exit status and the document."""

    def asked(objects: list[JSON], cluster: list[JSON], *arguments: str) -> tuple[int, JSON]:
        files = (
            write("objects.yaml", yaml.dump_all(objects, Dumper=yaml.CSafeDumper)),
            write("cluster.yaml", yaml.dump_all(cluster, Dumper=yaml.CSafeDumper)),
        )
        status, out, _ = dryrun("gangs", files[0], "--slices", files[1], "-o", "json", *arguments)
        return status, json.loads(out)

    return asked


def nodes_of(answer: JSON) -> list[str | None]:
    return [result["node"] for result in answer["scheduler"]]


def test_group_that_fits_is_scheduled(ask: Any) -> None:
    cluster = [slice_of("node-a", gpu("gpu-0"), gpu("gpu-1"))]
    status, document = ask([template(), pod_group(), pod("p"), pod("q")], cluster)
    (answer,) = document["groups"]
    assert (status, answer["outcome"]) == (0, "scheduled")
    assert nodes_of(answer) == ["node-a", "node-a"]
    assert "GenericWorkload" in answer["notes"][-1]


def test_assignment_that_the_scheduler_misses_is_shown_with_changes(ask: Any) -> None:
    """The situation of kubernetes/kubernetes#138765."""
    status, document = ask([template(WHOLE_OR_HALF), pod_group(), pod("p"), pod("q")], divided("node-a"))
    (answer,) = document["groups"]
    assert (status, answer["outcome"]) == (1, "refused")
    assert answer["message"] == "minCount (2) cannot be satisfied: 1 scheduled, 0 remaining"
    assert answer["scheduler"][1]["message"] == "0/1 nodes are available: 1 cannot allocate all claims."
    devices = [claim["devices"] for placed in answer["assignment"] for claim in placed["claims"]]
    assert devices == [["gpu-0-half-0"], ["gpu-0-half-1"]]
    assert "#138765" in answer["defect"]
    assert [change["kind"] for change in answer["changes"]] == ["alternatives", "selector"]
    assert answer["changes"][0]["text"] == "leave out gpu/whole of firstAvailable in the claims"


def test_defect_of_the_release_is_told_from_the_order_of_the_pods(ask: Any) -> None:
    cluster = divided("node-a")
    cluster[1]["spec"]["devices"][0]["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    objects = [template(WHOLE_OR_HALF), pod_group(), pod("p"), pod("q")]
    status, document = ask(objects, cluster, "--kubernetes-version", "1.36")
    (answer,) = document["groups"]
    assert (status, answer["outcome"]) == (1, "refused")
    assert answer["defect"].startswith("known defects of kube-scheduler 1.36 keep a pod from devices")
    assert answer["changes"] == []
    status, document = ask(objects, cluster, "--kubernetes-version", "1.37")
    assert (status, document["groups"][0]["outcome"]) == (0, "scheduled")


def test_change_that_is_listed_makes_the_scheduler_find_an_assignment(ask: Any) -> None:
    later = {**WHOLE_OR_HALF, "firstAvailable": WHOLE_OR_HALF["firstAvailable"][1:]}
    status, document = ask([template(later), pod_group(), pod("p"), pod("q")], divided("node-a"))
    assert (status, document["groups"][0]["outcome"]) == (0, "scheduled")


def test_group_without_an_assignment_gets_a_proof(ask: Any) -> None:
    cluster = [slice_of("node-a", gpu("gpu-0"))]
    status, document = ask([template(), pod_group(), pod("p"), pod("q")], cluster)
    (answer,) = document["groups"]
    assert status == 1
    assert answer["assignment"] is None
    assert answer["noAssignment"] == "of 2 equal pods, only 1 fit, even without the other pods of the group"
    assert answer["changes"] == []


def test_pods_that_share_a_claim_of_their_group_may_collide(ask: Any) -> None:
    """The situation of kubernetes/kubernetes#140053."""
    shared = pod_group(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpus"}])
    cluster = [slice_of("node-a", gpu("gpu-0"), gpu("gpu-1"))]
    status, document = ask([template(), shared, pod("p"), pod("q")], cluster)
    (answer,) = document["groups"]
    assert (status, answer["outcome"]) == (0, "scheduled")
    assert "#140053" in answer["defect"]
    assert answer["defect"].startswith("pods that share default/train-gpu are bound at the same time")
    assert [change["kind"] for change in answer["changes"]] == ["claims", "claims"]


def test_order_of_pods_is_a_change(ask: Any) -> None:
    large = template({"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}, name="four")
    four = [{"name": "gpu", "resourceClaimTemplateName": "four"}]
    cluster = [slice_of("node-a", *(gpu(f"gpu-{n}") for n in range(4))), slice_of("node-b", gpu("gpu-0"))]
    objects = [template(), large, pod_group(), pod("small"), pod("large", resourceClaims=four)]
    status, document = ask(objects, cluster)
    (answer,) = document["groups"]
    assert (status, answer["outcome"]) == (1, "refused")
    assert answer["changes"][0]["order"] == ["large", "small"]
    assert [change["kind"] for change in answer["changes"]] == ["order", "nodes"]
    expected = "bind pods to nodes with required node affinity: small to node-b, large to node-a"
    assert answer["changes"][1]["text"] == expected


def test_claims_that_need_different_devices_get_different_selectors(ask: Any) -> None:
    cluster = [slice_of("node-a", gpu("gpu-0")), *divided("node-b")]
    objects = [template(WHOLE_OR_HALF), pod_group(3), pod("p"), pod("q"), pod("r")]
    status, document = ask(objects, cluster)
    (answer,) = document["groups"]
    assert (status, answer["outcome"]) == (1, "refused")
    (change,) = answer["changes"]
    assert change["text"] == "let each claim select the type of its devices: p gpu, q mig, r mig"


def test_pods_without_their_group_wait(ask: Any) -> None:
    status, document = ask([template(), pod("p")], [slice_of("node-a", gpu("gpu-0"))])
    (answer,) = document["groups"]
    assert (status, answer["outcome"]) == (1, "waiting")
    assert answer["message"] == 'waiting for pods\'s pod group "train" to appear in scheduling queue'


def test_running_pods_of_a_group_count(ask: Any) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-a"},
        "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}},
    }
    running = pod("r", nodeName="node-a", resourceClaims=[])
    cluster = [node, slice_of("node-a", gpu("gpu-0")), running]
    status, document = ask([template(), pod_group(), pod("p")], cluster)
    (answer,) = document["groups"]
    assert (status, answer["running"], answer["outcome"]) == (0, 1, "scheduled")


def job_set() -> JSON:
    job = {"parallelism": 2, "completions": 2, "template": {"spec": pod_spec()}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "w"},
        "spec": {"replicatedJobs": [{"name": "workers", "replicas": 2, "template": {"spec": job}}]},
    }


def leader_worker_set() -> JSON:
    template_ = {"size": 3, "workerTemplate": {"spec": pod_spec()}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "w"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": template_},
    }


def job(**fields: Any) -> JSON:
    spec = {"parallelism": 3, "completions": 3, "template": {"spec": pod_spec(restartPolicy="Never")}, **fields}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "w"}, "spec": spec}


def volcano_job(**fields: Any) -> JSON:
    tasks = [{"name": "t", "replicas": 4, "template": {"spec": pod_spec()}}]
    meta = {"name": "w"}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"tasks": tasks, **fields},
    }


def workload() -> JSON:
    templates = [{"name": "t", "schedulingPolicy": {"gang": {"minCount": 2}}}]
    spec = {"controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "w"}, "podGroupTemplates": templates}
    return {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": "wl"}, "spec": spec}


def other_group(group: str, version: str) -> JSON:
    spec = {"minMember": 2}
    return {"apiVersion": f"{group}/{version}", "kind": "PodGroup", "metadata": {"name": "train"}, "spec": spec}


@pytest.mark.parametrize(
    ("objects", "groups"),
    [
        pytest.param([job_set()], [(4, 4)], id="JobSet"),
        pytest.param([leader_worker_set()], [(3, 3), (3, 3)], id="LeaderWorkerSet"),
        pytest.param([job(scheduling={"schedulingPolicy": {"gang": {}}})], [(3, 3)], id="Job with a gang"),
        pytest.param(
            [job(scheduling={"schedulingPolicy": {"gang": {"minCount": 2}}})], [(3, 2)], id="minCount of a Job"
        ),
        pytest.param([job(scheduling={"schedulingPolicy": {"basic": {}}})], [(3, None)], id="Job with a basic group"),
        pytest.param([job(), workload()], [(3, 2)], id="Workload of a Job"),
        pytest.param([volcano_job()], [(4, 4)], id="Job of Volcano"),
        pytest.param([volcano_job(minAvailable=3)], [(4, 3)], id="minAvailable"),
        pytest.param(
            [
                other_group("scheduling.volcano.sh", "v1beta1"),
                *(pod(name, "", annotations={"scheduling.k8s.io/group-name": "train"}) for name in "pqr"),
            ],
            [(3, 2)],
            id="PodGroup of Volcano",
        ),
        pytest.param(
            [
                other_group("scheduling.run.ai", "v2alpha2"),
                *(pod(name, "", annotations={"pod-group-name": "train"}) for name in "pq"),
            ],
            [(2, 2)],
            id="PodGroup of KAI Scheduler",
        ),
    ],
)
def test_kinds_make_groups(ask: Any, objects: list[JSON], groups: list[tuple[int, int | None]]) -> None:
    cluster = [slice_of("node-a", *(gpu(f"gpu-{number}") for number in range(8)))]
    status, document = ask([template(), *objects], cluster)
    assert [(answer["pods"], answer["minCount"]) for answer in document["groups"]] == groups
    assert status == 0


def test_claims_of_a_job_are_shared_as_its_policy_says(ask: Any) -> None:
    scheduling = {
        "schedulingPolicy": {"gang": {}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
    }
    status, document = ask([template(), job(scheduling=scheduling)], [slice_of("node-a", gpu("gpu-0"))])
    assert status == 0, "one GPU is enough for all pods"
    assert [len(result["claims"]) for result in document["groups"][0]["scheduler"]] == [1, 0, 0]


def test_pods_of_other_objects_are_a_gang_on_request(ask: Any, dryrun: DryRun, write: Write) -> None:
    cluster = [slice_of("node-a", gpu("gpu-0"), gpu("gpu-1"))]
    status, document = ask([template(), job()], cluster, "--min-count", "2")
    assert [(answer["pods"], answer["minCount"]) for answer in document["groups"]] == [(3, 2)]
    assert status == 0
    file = write("job.yaml", yaml.dump_all([template(), job()], Dumper=yaml.CSafeDumper))
    status, _, err = dryrun("gangs", file)
    assert status == 2
    assert "in no group; --min-count takes the pods of an object as one" in err


def test_groups_take_devices_from_later_groups(ask: Any) -> None:
    cluster = [slice_of("node-a", *(gpu(f"gpu-{number}") for number in range(4)))]
    _, document = ask([template(), leader_worker_set()], cluster)
    assert [answer["outcome"] for answer in document["groups"]] == ["scheduled", "refused"]


def test_pod_that_the_api_server_refuses_is_told(ask: Any) -> None:
    wrong = pod("q", tolerations=[{"operator": "Exists", "value": "x", "key": "k"}])
    status, document = ask([template(), pod_group(), pod("p"), wrong], [slice_of("node-a", gpu("gpu-0"))])
    (answer,) = document["groups"]
    assert (status, answer["outcome"]) == (1, "rejected")
    assert "value must be empty when `operator` is 'Exists'" in answer["rejects"][0]


def test_tables_show_assignment_and_changes(dryrun: DryRun, write: Write) -> None:
    objects = [template(WHOLE_OR_HALF), pod_group(), pod("p"), pod("q"), pod("alone", "")]
    files = (
        write("o.yaml", yaml.dump_all(objects, Dumper=yaml.CSafeDumper)),
        write("c.yaml", yaml.dump_all(divided("node-a"), Dumper=yaml.CSafeDumper)),
    )
    status, out, _ = dryrun("gangs", files[0], "--slices", files[1])
    assert status == 1
    assert "PodGroup default/train: 2 pods, minCount 2: kube-scheduler refuses it" in out
    assert "p    node-a  gpu-0-half-0" in out
    assert "  - leave out gpu/whole of firstAvailable in the claims" in out
    assert "1 object with no group: Pod alone" in out


def test_pods_of_several_schedulers_make_the_verdict_uncertain(ask: Any) -> None:
    cluster = [slice_of("node-a", gpu("gpu-0"), gpu("gpu-1"))]
    status, document = ask([template(), pod_group(), pod("p"), pod("q", schedulerName="other")], cluster)
    assert status == 3
    expected = "the pods of a group need one schedulerName, and these name default-scheduler and other"
    assert document["groups"][0]["unknown"] == [expected]


def test_pods_of_a_group_may_be_in_the_snapshot(dryrun: DryRun, write: Write) -> None:
    objects = [template(), pod("p"), pod("q"), slice_of("node-a", gpu("gpu-0"), gpu("gpu-1"))]
    file, group = (
        write("snapshot.yaml", yaml.dump_all(objects, Dumper=yaml.CSafeDumper)),
        write("group.yaml", pod_group()),
    )
    status, out, _ = dryrun("gangs", group, "podgroup/train", "--slices", file, "-o", "json")
    assert (status, json.loads(out)["groups"][0]["outcome"]) == (0, "scheduled")
    status, _, err = dryrun("gangs", group, "podgroup/other", "--slices", file)
    assert status == 2
    assert "no pending pod belongs to a group" in err


def test_train_job_is_a_group_of_all_its_pods(ask: Any) -> None:
    job_: JSON = {"name": "node", "replicas": 1, "template": {"spec": {"template": {"spec": pod_spec()}}}}
    job_["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    spec = {"mlPolicy": {"numNodes": 3}, "template": {"spec": {"replicatedJobs": [job_]}}}
    version = "trainer.kubeflow.org/v1alpha1"
    runtime = {"apiVersion": version, "kind": "TrainingRuntime", "metadata": {"name": "torch"}, "spec": spec}
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "torch"}
    train_job = {
        "apiVersion": version,
        "kind": "TrainJob",
        "metadata": {"name": "t"},
        "spec": {"runtimeRef": reference},
    }
    cluster = [slice_of("node-a", *(gpu(f"gpu-{number}") for number in range(3)))]
    status, document = ask([template(), runtime, train_job], cluster)
    (answer,) = document["groups"]
    assert (status, answer["pods"], answer["minCount"]) == (0, 3, 3)


def test_claim_that_too_many_pods_share_makes_the_verdict_uncertain(ask: Any) -> None:
    claim = {**template(), "kind": "ResourceClaim", "spec": template()["spec"]["spec"]}
    shared = [{"name": "gpu", "resourceClaimName": "gpus"}]
    many = job(parallelism=257, completions=257, scheduling={"schedulingPolicy": {"gang": {}}})
    many["spec"]["template"]["spec"]["resourceClaims"] = shared
    status, document = ask([claim, many], [slice_of("node-a", gpu("gpu-0"))])
    (answer,) = document["groups"]
    assert (status, answer["outcome"]) == (3, "scheduled")
    assert answer["unknown"][0].startswith("257 pods use claim default/gpus, which can be reserved for 256")
    many["spec"]["scheduling"]["resourceClaims"] = shared
    status, document = ask([claim, many], [slice_of("node-a", gpu("gpu-0"))])
    assert (status, document["groups"][0]["unknown"]) == (0, [])
