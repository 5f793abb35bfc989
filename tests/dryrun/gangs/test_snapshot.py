# SPDX-License-Identifier: Apache-2.0
"""A snapshot decides about groups of pods as the cluster does, whether or not its names were replaced."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES, POD_GROUPS, PODS, WORKLOADS, Kind, slices_of, templates_of
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver.users import AUTHENTICATED
from tests.support.apiserver import embedded, kubeconfig_of_user
from tests.support.faultyserver import FaultyServer

from ..conftest import DryRun, Write, gpu, install_classes, slice_of
from ..migrate.test_cluster import install_kind
from .test_command import WHOLE_OR_HALF, divided, job, pod, pod_group, template, workload

JSON = dict[str, Any]
GATES = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}
ALL = ("--all-pending", "-A")
RACK = "example.com/rack"


def node(name: str, **labels: str) -> JSON:
    allocatable = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"allocatable": allocatable}}


def changed(value: JSON, **metadata: str) -> JSON:
    return {**value, "metadata": {**value["metadata"], **metadata}}


def machine(*gpus: str) -> list[JSON]:
    return [node("node-a"), slice_of("node-a", *map(gpu, gpus))]


def pods(*names: str, **fields: Any) -> list[JSON]:
    return [pod(name, **fields) for name in names]


def racks() -> list[JSON]:
    """Two nodes with a GPU each, in different racks."""
    nodes = [node(f"node-{rack}", **{RACK: rack}) for rack in "ab"]
    return [*nodes, *(slice_of(f"node-{rack}", gpu("gpu-0")) for rack in "ab")]


def aged() -> list[JSON]:
    """A small node and a large one. A pod that is older than its large neighbour takes a GPU of the large node."""
    large = template({"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}, name="two")
    two = [{"name": "gpu", "resourceClaimTemplateName": "two"}]
    old = changed(pod("z-small"), creationTimestamp="2026-01-01T00:00:00Z")
    new = changed(pod("a-large", resourceClaims=two), creationTimestamp="2026-01-02T00:00:00Z")
    nodes = [
        node("node-a"),
        slice_of("node-a", gpu("gpu-0"), gpu("gpu-1")),
        node("node-b"),
        slice_of("node-b", gpu("0")),
    ]
    return [large, new, old, *nodes]


SHARED: JSON = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]}
IN_ONE_RACK: JSON = {"schedulingConstraints": {"topology": [{"key": RACK}]}}
NO_GROUPS = {"apiVersion": POD_GROUPS.api_version, "kind": "PodGroupList", "items": []}
SITUATIONS = {
    "scheduled": ([*machine("gpu-0", "gpu-1"), pod_group(), *pods("p", "q")], ["scheduled"]),
    "missed assignment": (
        [*divided("node-a"), template(WHOLE_OR_HALF), node("node-a"), pod_group(), *pods("p", "q")],
        ["refused"],
    ),
    "no assignment": ([*machine("gpu-0"), pod_group(), *pods("p", "q")], ["refused"]),
    "order of pods": ([*aged(), pod_group()], ["refused"]),
    "shared claim": ([*machine("gpu-0"), pod_group(**SHARED), *pods("p", "q")], ["scheduled"]),
    "running pod": (
        [*machine("gpu-0"), pod_group(), *pods("p"), pod("r", nodeName="node-a", resourceClaims=[])],
        ["scheduled"],
    ),
    "basic group": ([*machine("gpu-0"), pod_group(None), *pods("p", "q")], ["scheduled"]),
    "one rack": ([*racks(), pod_group(**IN_ONE_RACK), *pods("p", "q")], ["refused"]),
    "any rack": ([*racks(), pod_group(), *pods("p", "q")], ["scheduled"]),
    "composite group": (
        [*machine("gpu-0"), pod_group(1, parentCompositePodGroupName="all"), *pods("p")],
        ["scheduled"],
    ),
    "other scheduler": (
        [*machine("gpu-0", "gpu-1"), pod_group(), pod("p"), pod("q", schedulerName="other")],
        ["scheduled"],
    ),
    "no PodGroup": ([*machine("gpu-0"), NO_GROUPS, *pods("p")], ["waiting"]),
    "Workload without PodGroup": ([*machine("gpu-0"), NO_GROUPS, workload(), *pods("p")], ["waiting"]),
    "PodGroups not saved": ([*machine("gpu-0"), *pods("p")], ["not known"]),
    "groups of one name": (
        [
            *machine("gpu-0", "gpu-1"),
            *(changed(value, namespace=name) for name in "ab" for value in (template(), *pods("p"))),
            changed(pod_group(1), namespace="a"),
            changed(pod_group(2), namespace="b"),
        ],
        ["scheduled", "waiting"],
    ),
}


def without_names(group: JSON) -> object:
    """The answer about a group, but for names. Names of devices stay in a snapshot."""
    placed = [
        (result["node"] is not None, [claim["devices"] for claim in result["claims"]])
        for answer in ("scheduler", "assignment")
        for result in group[answer] or ()
    ]
    numbers = [group[field] for field in ("outcome", "pods", "running", "minCount", "isDecided", "condition")]
    texts = [bool(group[field]) for field in ("message", "defect", "noAssignment", "topologyKey")]
    changes = [change["kind"] for change in group["changes"]]
    return numbers, texts, changes, placed, len(group["notes"]), len(group["unknown"])


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_decision_about_a_group_on_a_snapshot_is_the_clusters(
    situation: str, dryrun: DryRun, write: Write
) -> None:
    objects, outcomes = SITUATIONS[situation]
    known = {(value["kind"], value["metadata"]["name"]) for value in objects if "metadata" in value}
    cluster = objects if ("ResourceClaimTemplate", "gpus") in known else [*objects, template()]

    def ask(items: Sequence[JSON]) -> tuple[int, JSON]:
        file = write("cluster.json", {"apiVersion": "v1", "kind": "List", "items": items})
        status, out, _ = dryrun("gangs", *ALL, "--slices", file, "-o", "json")
        return status, json.loads(out)

    def saved(*flags: str) -> list[JSON]:
        file = write("cluster.json", {"apiVersion": "v1", "kind": "List", "items": cluster})
        status, out, _ = dryrun("snapshot", "--slices", file, "-o", "json", *flags)
        assert status == 0
        items: list[JSON] = json.loads(out)["items"]
        return items

    status, expected = ask(cluster)
    assert [group["outcome"] for group in expected["groups"]] == outcomes
    assert ask(saved()) == (status, expected)
    nameless = saved("--anonymise")
    assert '"train"' not in json.dumps(nameless)
    found_status, found = ask(nameless)
    assert found_status == status
    assert [*map(without_names, found["groups"])] == [*map(without_names, expected["groups"])]


def fill(client: ApiClient) -> None:
    """Two GPUs on one node, and a template for one."""
    install_classes(client)
    client.create(NODES, node("node-a"))
    client.create(slices_of(V1), slice_of("node-a", gpu("gpu-0"), gpu("gpu-1")))
    client.create(templates_of(V1), template(), "default")


@pytest.mark.cluster
def test_answers_about_groups_from_a_snapshot_are_those_from_the_live_cluster(
    dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    with embedded(tmp_path, minor=37, gates=GATES) as (_, kubeconfig, client):
        fill(client)
        client.create(POD_GROUPS, pod_group(3), "default")
        client.create(WORKLOADS, workload(), "default")
        for value in (*pods("p", "q"), pod("r", nodeName="node-a", resourceClaims=[]), pod("s", "absent")):
            client.create(PODS, value, "default")
        live = ("--kubeconfig", kubeconfig)
        saved = write("saved.json", dryrun("snapshot", *live, "-o", "json")[1])
        release = ("--kubernetes-version", "1.37")  # a snapshot does not tell it
        asked = (("podgroup/train",), ALL, (write("job.json", job()),))
        answers = [groups(dryrun("gangs", *ask, *live, *release, "-o", "json")) for ask in asked]
        fit = [json.loads(dryrun("pod/p", *place, *release, "-o", "json")[1]) for place in (live, ("--slices", saved))]
    assert [group["outcome"] for _, found in answers for group in found] == [
        *("scheduled", "scheduled", "waiting", "scheduled")
    ]
    assert answers[2][1][0]["minCount"] == 2, "the minimum of the Workload"
    again = [groups(dryrun("gangs", *ask, "--slices", saved, *release, "-o", "json")) for ask in asked]
    where = f"nor in {saved}"
    assert json.loads(json.dumps(again).replace(where, "nor in the cluster")) == json.loads(json.dumps(answers))
    assert fit[1]["demands"] == fit[0]["demands"]


@pytest.mark.parametrize(
    ("saved", "outcome"),
    [
        pytest.param([{"apiVersion": "v1", "kind": "PodList", "items": []}], "not known", id="pods only"),
        pytest.param([{"apiVersion": "v1", "kind": "PodList", "items": []}, NO_GROUPS], "waiting", id="also groups"),
        pytest.param([], "waiting", id="only devices"),
    ],
)
def test_group_that_may_be_in_the_cluster_of_a_snapshot_is_unknown(
    saved: list[JSON], outcome: str, dryrun: DryRun, write: Write
) -> None:
    cluster = write("cluster.json", {"apiVersion": "v1", "kind": "List", "items": [*machine("gpu-0"), *saved]})
    asked = write("asked.json", {"apiVersion": "v1", "kind": "List", "items": [template(), pod("p")]})
    _, (answer,) = groups(dryrun("gangs", asked, "--slices", cluster, "-o", "json"))
    assert answer["outcome"] == outcome


def test_workload_of_a_file_replaces_that_of_the_cluster(dryrun: DryRun, write: Write) -> None:
    stored = write("cluster.json", {"apiVersion": "v1", "kind": "List", "items": [*machine("gpu-0"), workload()]})
    smaller = workload()
    smaller["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]["minCount"] = 1
    objects = {"apiVersion": "v1", "kind": "List", "items": [template(), job()]}
    for items, least in ((objects["items"], 2), ([*objects["items"], smaller], 1)):
        asked = write("asked.json", {**objects, "items": items})
        _, (answer,) = groups(dryrun("gangs", asked, "--slices", stored, "-o", "json"))
        assert answer["minCount"] == least


def groups(result: tuple[int, str, str]) -> tuple[int, list[JSON]]:
    return result[0], json.loads(result[1])["groups"]


def kinds_in(text: str) -> dict[str, str]:
    """The kinds of a snapshot with their versions."""
    return {value["kind"]: value["apiVersion"] for value in json.loads(text)["items"]}


@pytest.mark.cluster
@pytest.mark.parametrize("is_forbidden", [True, False], ids=["list is forbidden", "list is allowed"])
def test_pod_groups_that_may_not_be_listed_are_unknown_in_the_snapshot(
    is_forbidden: bool, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    """The right to list Workloads is another one."""
    with embedded(tmp_path, minor=37, gates=GATES, rbac=True) as (server, _, client):
        fill(client)
        client.create(POD_GROUPS, pod_group(), "default")
        for value in pods("p", "q"):
            client.create(PODS, value, "default")
        listed = ["priorityclasses", "workloads", *(() if is_forbidden else ("podgroups",))]
        config = config_of(server, client, listed, tmp_path)
        status, text, err = dryrun("snapshot", "--kubeconfig", config, "-o", "json")
    assert status == 0, err
    said = "note: not in the snapshot, as listing them is not allowed: podgroups\n"
    assert (said in err) == is_forbidden, err
    assert ("PodGroup" in kinds_in(text)) != is_forbidden
    assert kinds_in(text)["WorkloadList"] == "scheduling.k8s.io/v1beta1"
    status, (answer,) = groups(dryrun("gangs", *ALL, "--slices", write("saved.json", text), "-o", "json"))
    assert (status, answer["outcome"]) == ((3, "not known") if is_forbidden else (0, "scheduled"))


def config_of(server: FaultyServer, client: ApiClient, listed: Sequence[str], folder: Path) -> Path:
    """The kubeconfig of a user who may list only these resources of scheduling.k8s.io, and all other objects."""
    others = ("", "policy", "resource.k8s.io", "node.k8s.io", "storage.k8s.io")
    rules: list[dict[str, Any]] = [{"apiGroups": [group], "resources": ["*"], "verbs": ["*"]} for group in others]
    rules.append({"apiGroups": ["scheduling.k8s.io"], "resources": list(listed), "verbs": ["list"]})
    return kubeconfig_of_user(server, client, folder, rules, (AUTHENTICATED,))


@pytest.mark.cluster
def test_cluster_without_these_kinds_needs_no_rights_for_them(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    with embedded(tmp_path, minor=36, rbac=True) as (server, _, client):
        fill(client)
        config = config_of(server, client, ["priorityclasses"], tmp_path)
        status, text, err = dryrun("snapshot", "--kubeconfig", config, "-o", "json")
        assert (status, err) == (0, "")
        found = kinds_in(text)
        assert found["PodGroupList"] == found["WorkloadList"] == "scheduling.k8s.io/v1beta1"
        status, out, _ = dryrun("gangs", write("job.json", job()), "--min-count", 2, "--kubeconfig", config)
    assert status == 0, out


@pytest.mark.cluster
def test_older_versions_are_saved_as_they_are_served(dryrun: DryRun, tmp_path: Path) -> None:
    """v1alpha1 of Kubernetes 1.35 has Workloads of another form, which are not read."""
    with embedded(tmp_path, minor=36) as (_, kubeconfig, client):
        install_kind(client, "scheduling.k8s.io/v1alpha1", "Workload", namespaced=True)
        install_kind(client, "scheduling.k8s.io/v1alpha2", "PodGroup", namespaced=True)
        groups_of_36 = Kind("scheduling.k8s.io/v1alpha2", "podgroups", namespaced=True)
        client.create(groups_of_36, {**pod_group(), "apiVersion": groups_of_36.api_version}, "default")
        old = {"metadata": {"name": "w"}, "spec": {"podGroups": [{"name": "g", "policy": {"gang": {"minCount": 2}}}]}}
        client.create(Kind("scheduling.k8s.io/v1alpha1", "workloads", namespaced=True), old, "default")
        status, text, err = dryrun("snapshot", "--kubeconfig", kubeconfig, "-o", "json")
    assert (status, err) == (0, "")
    assert kinds_in(text)["PodGroup"] == "scheduling.k8s.io/v1alpha2"
    assert "Workload" not in kinds_in(text)
    assert "WorkloadList" in kinds_in(text)
