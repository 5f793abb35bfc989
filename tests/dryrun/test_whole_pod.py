# SPDX-License-Identifier: Apache-2.0
"""Whole pods: what nodes lack besides devices, what the API server refuses, and how much of a cluster is known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, Kind
from dra_driver.kube.kinds import NODES, PODS
from dra_driver.sandbox.apiserver.users import User
from tests.support.apiserver import SLICES, embedded

from .conftest import DryRun, Write, gpu, install_classes, slice_of
from .test_report_document import check

JSON = dict[str, Any]

RBAC = "rbac.authorization.k8s.io/v1"


def node(name: str, cpu: str = "8", **more: Any) -> JSON:
    allocatable = {"cpu": cpu, "memory": "32Gi", "pods": "110", **more.pop("allocatable", {})}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **more.pop("labels", {})}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta,
        "spec": more,
        "status": {"allocatable": allocatable},
    }


def running(name: str, on: str, cpu: str, **more: Any) -> JSON:
    return pod(name, cpu, nodeName=on, **more) | {"status": {"phase": "Running"}}


def pod(name: str, cpu: str = "1", claim: str = "", extended: JSON | None = None, **more: Any) -> JSON:
    resources: JSON = {"requests": {"cpu": cpu, **(extended or {})}, "limits": extended or {}}
    container: JSON = {"name": "c", "image": "i", "resources": resources}
    spec: JSON = {"containers": [container], **more}
    if claim:
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimName": claim}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": name}, "spec": spec}


def claim(name: str = "wanted", count: int = 1, **more: Any) -> JSON:
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": count, **more}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def policy(version: str, kind: str, name: str, namespace: str = "default", **more: Any) -> JSON:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **more}


def several(items: Sequence[JSON]) -> JSON:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


class Ask:
    """Asks about objects in a cluster of objects."""

    def __init__(self, dryrun: DryRun, write: Write) -> None:
        self._dryrun = dryrun
        self._write = write

    def __call__(self, wanted: Sequence[JSON], *cluster: JSON, flags: Sequence[str] = ()) -> tuple[int, str]:
        slices = self._write("cluster.json", several(cluster))
        code, out, err = self._dryrun("--slices", slices, self._write("wanted.json", several(wanted)), *flags)
        return code, out + err

    def verdict(self, wanted: Sequence[JSON], *cluster: JSON) -> JSON:
        _, out = self(wanted, *cluster, flags=("-o", "json"))
        found: JSON = json.loads(out)
        check(found)
        return found["demands"][0]  # type: ignore[no-any-return]


@pytest.fixture
def ask(dryrun: DryRun, write: Write) -> Ask:
    return Ask(dryrun, write)


def test_refusals_for_cpu_and_devices_are_in_one_line(ask: Ask) -> None:
    small = [node("a"), slice_of("a", gpu("gpu-0")), running("busy", "a", "4500m")]
    full = [one for name in ("b", "c") for one in (node(name), slice_of(name))]
    code, out = ask([claim(), pod("p", "8", "wanted")], *small, *full)
    assert code == 1
    assert "3 nodes: 1 lacks cpu (needs 8, has 3.5 free), 2 have no gpu.nvidia.com device" in out
    assert "ask for 3.5 cpu instead of 8 (then on a)" in out
    assert "the scheduler says: 0/3 nodes are available: 1 Insufficient cpu, 2 cannot allocate all claims." in out


def test_amounts_of_memory_are_told_apart(ask: Ask) -> None:
    wanted = pod("p")
    wanted["spec"]["containers"][0]["resources"]["requests"]["memory"] = "32Gi"
    taken = running("busy", "a", "0")
    taken["spec"]["containers"][0]["resources"]["requests"]["memory"] = "1500Ki"
    _, out = ask([wanted], node("a"), taken)
    assert "1 lacks memory (needs 34359738368, has 34358202368 free)" in out
    assert "ask for 32766Mi memory instead of 32Gi (then on a)" in out
    taken["spec"]["containers"][0]["resources"]["requests"]["memory"] = "8Gi"
    assert "1 lacks memory (needs 32Gi, has 24Gi free)" in ask([wanted], node("a"), taken)[1]


def test_replicas_share_the_free_cpu_of_nodes(ask: Ask) -> None:
    wanted = {**pod("p", "5"), "kind": "Deployment", "apiVersion": "apps/v1"}
    wanted["spec"] = {"replicas": 3, "template": {"metadata": {"labels": {"app": "p"}}, "spec": wanted["spec"]}}
    code, out = ask([wanted], node("a"), node("b"), running("busy", "a", "1"))
    assert code == 1
    assert "pod 1 of 3: on node a, and on 1 other node" in out
    assert "pod 2 of 3: on node b\n" in out
    assert "2 nodes: 2 lack cpu (need 5, have at most 3 free)" in out


@pytest.mark.parametrize("flags", [[], ["--devices-only"]])
def test_advice_to_wait_names_only_claims_that_the_cluster_has_allocated(flags: list[str], ask: Ask) -> None:
    held = claim("real")
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-1"}
    held["status"] = {"allocation": {"devices": {"results": [result]}}}
    cluster = [node("a"), slice_of("a", gpu("gpu-0"), gpu("gpu-1")), held]
    wanted = [claim("first"), pod("p", "1", "first"), claim("second"), pod("q", "1", "second")]
    code, out = ask(wanted, *cluster, flags=flags)
    assert code == 1
    assert "wait for claim real (then on a)" in out
    assert "wait for claim first" not in out
    assert "wait for claim" not in ask(wanted, node("a"), slice_of("a", gpu("gpu-0")), flags=flags)[1]


def test_with_devices_only_nothing_else_counts(ask: Ask) -> None:
    cluster = [node("a", cpu="1"), slice_of("a", gpu("gpu-0"))]
    assert ask([claim(), pod("p", "8", "wanted")], *cluster)[0] == 1
    code, out = ask([claim(), pod("p", "8", "wanted")], *cluster, flags=["--devices-only"])
    assert code == 0, out
    assert "only devices are evaluated, as asked" in out


def test_a_snapshot_without_nodes_decides_devices_and_says_so(ask: Ask) -> None:
    code, out = ask([claim(), pod("p", "8", "wanted")], slice_of("a", gpu("gpu-0")))
    assert code == 0
    assert "only devices are evaluated: no node of" in out
    code, out = ask([claim(), pod("p", "1", "wanted")], slice_of("a", gpu("gpu-0")), node("a"))
    assert "its nodes are taken to be idle" in out


@pytest.mark.parametrize(
    ("spec", "said", "change"),
    [
        ({"unschedulable": True}, "1 is cordoned", "uncordon a (then on a)"),
        (
            {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
            "1 has taint k=v:NoSchedule, which the pod does not tolerate",
            "tolerate the node's taint k=v:NoSchedule (then on a)",
        ),
        (
            {"labels": {"zone": "x"}},
            "1 does not match the pod's node selector or affinity",
            "remove nodeSelector zone=z (then on a)",
        ),
    ],
)
def test_nodes_refuse_for_reasons_of_their_own(spec: JSON, said: str, change: str, ask: Ask) -> None:
    selector: JSON = {"nodeSelector": {"zone": "z"}} if "labels" in spec else {}
    code, out = ask([pod("p", **selector)], node("a", **spec))
    assert code == 1
    assert f"1 node: {said}" in out
    assert change in out


def test_resources_of_device_plugins_count_beside_claims(ask: Ask) -> None:
    wanted = [claim(), pod("p", "1", "wanted", {"rdma/ib": "1"})]
    with_ib = [node("a", allocatable={"rdma/ib": "2"}), slice_of("a", gpu("gpu-0"))]
    assert ask(wanted, *with_ib)[0] == 0
    code, out = ask(wanted, node("a"), slice_of("a", gpu("gpu-0")))
    assert code == 1, out
    assert "1 lacks rdma/ib (needs 1, has 0 free)" in out


def test_a_resource_comes_from_a_device_plugin_or_from_slices(ask: Ask) -> None:
    name = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}}
    name["spec"] = {"extendedResourceName": "nvidia.com/gpu"}
    plugin = [node("a", allocatable={"nvidia.com/gpu": "1"})]
    slices = [node("b"), slice_of("b", gpu("gpu-0"))]
    found = ask.verdict([pod("p", extended={"nvidia.com/gpu": "1"})], *plugin, *slices, name)
    assert found["fittingNodes"] == ["a", "b"]


def test_a_pod_that_the_scheduler_fails_to_bind_is_told_so(ask: Ask) -> None:
    name = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}}
    name["spec"] = {"extendedResourceName": "nvidia.com/gpu"}
    cluster = [node("a", allocatable={"nvidia.com/gpu": "1"}), slice_of("a", gpu("gpu-0")), name]
    wanted = [claim(), pod("p", "1", "wanted", {"nvidia.com/gpu": "1"})]
    code, out = ask(wanted, *cluster)
    assert code == 1
    assert "the claim is correct: known defect of kube-scheduler 1.37: a claim for extended resources" in out
    code, out = ask(wanted, *cluster, node("b"), slice_of("b", gpu("gpu-0"), gpu("gpu-1")))
    assert code == 0
    assert "on node b\n  known defect of kube-scheduler 1.37" in out


def test_quotas_are_said_first_and_add_up(ask: Ask) -> None:
    quota = policy("v1", "ResourceQuota", "few", spec={"hard": {"pods": "1"}})
    code, out = ask([pod("p"), pod("q")], node("a"), quota)
    assert code == 1
    assert "fits  Pod p: on node a" in out
    said = 'not admitted  Pod q: pods "q" is forbidden: exceeded quota: few, requested: pods=1, used: pods=1, limited:'
    assert f"{said} pods=1" in out
    claims = policy(
        "v1", "ResourceQuota", "none", spec={"hard": {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "0"}}
    )
    found = ask.verdict([claim()], node("a"), slice_of("a", gpu("gpu-0")), claims)
    assert found["rejects"][0].startswith('resourceclaims.resource.k8s.io "wanted" is forbidden: exceeded quota: none')


def test_a_namespace_that_does_not_exist_takes_no_pod(ask: Ask) -> None:
    cluster = [node("a"), slice_of("a", gpu("gpu-0")), policy("v1", "Namespace", "team", "")]
    wanted = pod("p", claim="wanted")
    objects = [one | {"metadata": {**one["metadata"], "namespace": "other"}} for one in (claim(), wanted)]
    assert ask.verdict(objects, *cluster)["rejects"] == ['namespaces "other" not found']
    assert ask.verdict(objects, *cluster, policy("v1", "Namespace", "other", ""))["fits"]
    assert ask.verdict(objects, *cluster[:2])["fits"], "namespaces are not known"


def test_limits_and_priorities_are_those_of_the_cluster(ask: Ask) -> None:
    limit = {"type": "Container", "max": {"cpu": "2"}}
    found = ask.verdict([pod("p", "4")], node("a"), policy("v1", "LimitRange", "small", spec={"limits": [limit]}))
    path = "spec.containers[0].resources"  # the limit range gives the container a limit of 2
    assert found["rejects"] == [
        f'Pod "p" is invalid: {path}.requests: Invalid value: "4": must be less than or equal to cpu limit of 2'
    ]
    limited = pod("p", "4")
    limited["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "4"}
    found = ask.verdict([limited], node("a"), policy("v1", "LimitRange", "small", spec={"limits": [limit]}))
    assert found["rejects"] == ['pods "p" is forbidden: maximum cpu usage per Container is 2, but limit is 4']
    low = policy("scheduling.k8s.io/v1", "PriorityClass", "low", "", value=1)
    found = ask.verdict([pod("p", priorityClassName="high")], node("a"), low)
    assert found["rejects"] == ['pods "p" is forbidden: no PriorityClass with name high was found']
    found = ask.verdict([pod("p", priorityClassName="high")], node("a"))
    assert (found["fits"], found["notes"]) == (
        True,
        ["its priority is taken to be 0: no PriorityClass is known", "the pod asks for no devices"],
    )


def test_access_for_administrators_needs_a_namespace_for_them(ask: Ask) -> None:
    wanted = [claim(adminAccess=True)]
    cluster = [node("a"), slice_of("a", gpu("gpu-0"))]
    space: JSON = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    found = ask.verdict(wanted, *cluster, space)
    assert "the `resource.kubernetes.io/admin-access: true` label on the containing namespace" in found["rejects"][0]
    space["metadata"]["labels"] = {"resource.kubernetes.io/admin-access": "true"}
    assert ask.verdict(wanted, *cluster, space)["fits"]


def test_whom_the_scheduler_would_remove(ask: Ask) -> None:
    high = policy("scheduling.k8s.io/v1", "PriorityClass", "high", "", value=1000)
    low = running("low", "a", "6", priority=0)
    found = ask.verdict([pod("p", "4", priorityClassName="high")], node("a"), low, high)
    assert found["preemption"] == {"node": "a", "pods": ["default/low"]}
    assert found["summary"] == "1 node: 1 lacks cpu (needs 4, has 2 free)"
    wanted = [pod("p", "4", priorityClassName="high")]
    _, page = ask(wanted, node("a"), low, high, flags=["-o", "html"])
    assert "To make room, the scheduler would remove from a: default/low" in page


def test_a_pod_is_not_counted_beside_itself(ask: Ask) -> None:
    assert ask.verdict([pod("p", "6")], node("a"), running("p", "a", "6"))["fits"]
    assert not ask.verdict([pod("p", "6")], node("a"), running("q", "a", "6"))["fits"]


def test_flags_change_the_nodes_that_are_evaluated(ask: Ask) -> None:
    cluster = [node("a"), running("busy", "a", "6")]
    assert ask([pod("p", "6")], *cluster)[0] == 1
    assert ask([pod("p", "6")], *cluster, flags=["--without-claims"])[0] == 0
    code, out = ask([pod("p", "6")], *cluster, flags=["--with-node", "a30x4"])
    assert code == 0, out
    assert "simulating additional nodes with enough cpu, memory and other resources for every pod" in out
    assert ask([pod("p", "1")], *cluster, node("b"), flags=["--drain", "a"])[1].count("on node b\n") == 1


@pytest.mark.parametrize(("spread", "idle"), [(False, 6), (True, 5)])
def test_copies_need_room_for_the_whole_pod(spread: bool, idle: int, ask: Ask) -> None:
    rule = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    selected = {"labelSelector": {"matchLabels": {"app": "p"}}}
    wanted = pod("p", "2", topologySpreadConstraints=[{**rule, **selected}] if spread else [])
    wanted["metadata"]["labels"] = {"app": "p"}
    cluster = [node("a"), node("b", "4"), running("busy", "a", "1")]
    code, out = ask([wanted], *cluster, flags=["--replicas", "max"])
    assert code == 0
    assert f"copies of Pod p: 5 now, {idle} with nothing in use" in out
    quota = policy("v1", "ResourceQuota", "few", spec={"hard": {"requests.cpu": "6"}})
    assert (
        "copies of Pod p: 2 now, 3 with nothing in use"
        in ask([wanted], *cluster, quota, flags=["--replicas", "max"])[1]
    )


def test_gates_keep_a_pod_from_being_scheduled(ask: Ask) -> None:
    found = ask.verdict([pod("p", schedulingGates=[{"name": "g"}])], node("a"))
    assert (found["fits"], found["summary"]) == (False, "waiting for scheduling gates: [g]")


@pytest.mark.cluster
def test_the_whole_pod_in_a_live_cluster(dryrun: DryRun, write: Write, client: ApiClient, kubeconfig: Path) -> None:
    made = node("whole-pod-node", labels={"whole": "pod"})
    client.create(NODES, made)
    client.update(NODES, {**client.get(NODES, "whole-pod-node"), "status": made["status"]}, subresource="status")
    client.create(SLICES, slice_of("whole-pod-node", gpu("gpu-0")))
    client.create(PODS, {**running("busy", "whole-pod-node", "500m")}, "default")
    wanted = several([claim(), pod("p", "9", "wanted", nodeSelector={"whole": "pod"})])
    code, out, err = dryrun("--kubeconfig", kubeconfig, write("wanted.json", wanted))
    assert code == 1, err
    assert "1 lacks cpu (needs 9, has 7.5 free)" in out
    assert dryrun("--kubeconfig", kubeconfig, write("wanted.json", wanted), "--devices-only")[0] == 0


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("may_list", "said", "code"),
    [
        (
            ["nodes", "pods", "namespaces", "persistentvolumes", "persistentvolumeclaims", "limitranges"],
            "not considered, as listing them is not allowed: resourcequotas, poddisruptionbudgets,",
            1,
        ),
        (["nodes"], "only devices are evaluated: listing pods is not allowed", 3),
    ],
)
def test_rights_that_are_missing_are_named(
    may_list: list[str], said: str, code: int, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    with embedded(tmp_path, rbac=True) as (server, _, client):
        install_classes(client)
        made = node("a")
        client.create(NODES, made)
        client.update(NODES, {**client.get(NODES, "a"), "status": made["status"]}, subresource="status")
        client.create(SLICES, slice_of("a", gpu("gpu-0")))
        rules: list[JSON] = [{"apiGroups": [""], "resources": may_list, "verbs": ["list"]}]
        rules.append({"apiGroups": ["resource.k8s.io"], "resources": ["*"], "verbs": ["list"]})
        rules.append({"nonResourceURLs": ["/apis/*"], "verbs": ["get"]})
        client.create(Kind(RBAC, "clusterroles"), {"metadata": {"name": "some"}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "some"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "someone"}
        binding = {"metadata": {"name": "some"}, "roleRef": role, "subjects": [subject]}
        client.create(Kind(RBAC, "clusterrolebindings"), binding)
        token = server.add_user(User("someone"))
        config = server.write_kubeconfig(tmp_path / "someone", token=token)
        wanted = write("wanted.json", several([claim(), pod("p", "9", "wanted")]))
        found, out, err = dryrun("--kubeconfig", config, wanted)
        assert found == code, out + err
        assert said in out, out + err
        assert sum("allowed" in line for line in out.splitlines()) == 1


@pytest.mark.parametrize(("scheduler", "noted"), [("", False), ("default-scheduler", False), ("volcano", True)])
def test_a_pod_of_another_scheduler_has_a_note(scheduler: str, noted: bool, dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", slice_of("a", gpu("gpu-0")))
    more: JSON = {"schedulerName": scheduler} if scheduler else {}
    wanted = pod("train", claim="wanted", **more)
    file = write("pod.json", several([claim(), wanted]))
    code, out, _ = dryrun("--slices", slices, file)
    assert code == 0
    assert ("the pod names the scheduler volcano, and this is the verdict of kube-scheduler's" in out) == noted


def affinity(kind: str, key: str = "zone") -> JSON:
    """A pod affinity or anti-affinity for pods of the application `db`."""
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": key}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


RULE = "affinity rule (pods with app=db, in the same zone)"


@pytest.mark.parametrize(
    ("kind", "labels", "pods", "said"),
    [
        ("podAffinity", ({}, {}), [], f"2 fail the pod's {RULE}: no node has the label zone"),
        ("podAffinity", ({"zone": "x"}, {}), [], f"1 fails the pod's {RULE}: no pod on any node matches"),
        ("podAffinity", ({"zone": "x"}, {}), [], f"1 lacks the label zone of the pod's {RULE}"),
        (
            "podAffinity",
            ({"zone": "x"}, {"zone": "y", "full": "yes"}),
            ["b"],
            f"1 fails the pod's {RULE}: the pods that match are elsewhere by zone",
        ),
        ("podAntiAffinity", ({"zone": "x"}, {"zone": "x"}), ["b"], f"2 have a pod that matches the pod's anti-{RULE}"),
    ],
    ids=["no label", "no pod", "one label", "elsewhere", "anti"],
)
def test_the_rule_of_pod_affinity_that_a_node_fails_is_named(
    kind: str, labels: tuple[JSON, JSON], pods: list[str], said: str, ask: Ask
) -> None:
    nodes = [node(name, labels=own) for name, own in zip("ab", labels, strict=True)]
    others = [running("db", name, "7900m" if kind == "podAffinity" else "1") for name in pods]
    for other in others:
        other["metadata"]["labels"] = {"app": "db"}
    code, out = ask([pod("p", "1", **affinity(kind))], *nodes, *others)
    assert code == 1, out
    assert said in out


def test_missing_devices_are_told_with_both_numbers(ask: Ask) -> None:
    wanted = claim()
    wanted["spec"]["devices"]["requests"][0]["exactly"]["count"] = 7
    _, out = ask([wanted, pod("p", "1", "wanted")], node("a"), slice_of("a", gpu("gpu-0"), gpu("gpu-1")))
    assert "1 has only 2 gpu.nvidia.com devices of the 7 that the pod needs" in out


@pytest.mark.parametrize("output", ["wide", "html"])
def test_pods_of_a_workload_that_do_not_fit_for_the_same_reasons_are_told_once(output: str, ask: Ask) -> None:
    wanted = {**pod("p", "3"), "kind": "Deployment", "apiVersion": "apps/v1"}
    wanted["spec"] = {"replicas": 60, "template": {"metadata": {"labels": {"app": "p"}}, "spec": wanted["spec"]}}
    _, out = ask([wanted], node("a"), flags=("-o", output))
    assert "Deployment p, pod 3 of 60, and 57 more pods" in out
    assert "pod 4 of 60" not in out
    assert out.count("the scheduler says" if output == "wide" else "The scheduler says") == 1


@pytest.mark.parametrize("output", ["wide", "html"])
def test_devices_of_a_running_pod_name_its_claim_once(output: str, ask: Ask) -> None:
    held = claim("mine")
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0"}
    held["status"] = {"allocation": {"devices": {"results": [result]}}}
    here = running("p", "a", "1")
    here["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "mine"}]
    slices = [node("a"), slice_of("a", gpu("gpu-0"), gpu("gpu-1")), held, here]
    _, out = ask([{**pod("p", "1", "mine")}], *slices, flags=("-o", output))
    assert "on no other node" not in out
    if output == "wide":
        assert "  gpu-0  whole  * mine" in [line.rstrip() for line in out.splitlines()]
    else:
        assert out.count("<span>mine</span>") == 1
        assert "Devices that it has" in out
