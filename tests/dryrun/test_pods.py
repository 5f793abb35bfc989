# SPDX-License-Identifier: Apache-2.0
"""Pods that the cluster has, pods of DaemonSets and large workloads, and pods that would get devices and not start."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NAMESPACES, NODES, PODS
from tests.support.apiserver import CLAIMS, SLICES

from .conftest import DryRun, Write, gpu, slice_of
from .test_whole_pod import Ask, claim, node, pod, policy, running, several

JSON = dict[str, Any]
TEAM = "pending-team"


@pytest.fixture
def ask(dryrun: DryRun, write: Write) -> Ask:
    return Ask(dryrun, write)


@pytest.fixture(scope="session")  # like the cluster: a worker may run the tests of this module in two parts
def crowded(client: ApiClient, kubeconfig: Path) -> Path:
    """A cluster with a running pod that holds the only GPU of a node, and with pending pods."""
    client.create(NAMESPACES, {"metadata": {"name": TEAM}})
    made = node("crowded-node", "4", labels={"crowded": "yes"})
    client.create(NODES, made)
    client.update(NODES, {**client.get(NODES, "crowded-node"), "status": made["status"]}, subresource="status")
    client.create(SLICES, slice_of("crowded-node", gpu("gpu-0", "crowded")))
    selector = {"cel": {"expression": "device.attributes['gpu.nvidia.com'].productName == 'crowded'"}}
    for name in ("held", "wanted"):
        client.create(CLAIMS, claim(name, selectors=[selector]), TEAM)
    held = client.get(CLAIMS, "held", TEAM)
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "crowded-node", "device": "gpu-0"}
    held["status"] = {"allocation": {"devices": {"results": [result]}}}
    client.update(CLAIMS, held, subresource="status")
    holder = pod("holder", "3", "held", nodeName="crowded-node")
    client.create(PODS, holder, TEAM)
    client.update(PODS, {**client.get(PODS, "holder", TEAM), "status": {"phase": "Running"}}, subresource="status")
    client.create(PODS, pod("hungry", "2", nodeSelector={"crowded": "yes"}), TEAM)
    client.create(PODS, pod("waiting", "1", "wanted", nodeSelector={"crowded": "yes"}), TEAM)
    return kubeconfig


@pytest.mark.cluster
def test_why_a_pod_is_pending_is_one_command(dryrun: DryRun, crowded: Path) -> None:
    code, out, err = dryrun("pod/hungry", "-n", TEAM, "--kubeconfig", crowded)
    assert code == 1, err
    assert f"Pod {TEAM}/hungry" in out
    assert "1 lacks cpu (needs 2, has 1 free)" in out
    code, out, _ = dryrun("pod/waiting", "-n", TEAM, "--kubeconfig", crowded)
    assert code == 1, out
    assert f"in use\n           by {TEAM}/held" in out


@pytest.mark.cluster
def test_a_running_pod_is_reported_with_its_devices_and_counted_once(
    dryrun: DryRun, crowded: Path, write: Write
) -> None:
    again = pod("holder", "3", "held")
    again["metadata"]["namespace"] = TEAM
    for asked in ("pod/holder", write("pod.json", again)):
        code, out, err = dryrun(asked, "-n", TEAM, "--kubeconfig", crowded)
        assert code == 0, out + err
        assert f"running  Pod {TEAM}/holder: on node crowded-node" in out, out + err
        assert "gpu-0" in out
        assert "FREE BEFORE" not in out
    assert f"{TEAM}/holder: on node" in dryrun("pod/holder", "-n", TEAM, "--kubeconfig", crowded, "--devices-only")[1]


def test_a_pending_pod_keeps_the_device_of_a_claim_of_its_own(dryrun: DryRun, write: Write) -> None:
    """Its other claim cannot have the same device, and waiting for its own claim would not help."""
    own = claim("p-gpus")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": True}
    own["metadata"] |= {"namespace": "default", "ownerReferences": [owner]}
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0"}
    own["status"] = {"allocation": {"devices": {"results": [result]}}}
    template = claim("gpus") | {"kind": "ResourceClaimTemplate", "spec": {"spec": own["spec"]}}
    pending = pod("p")
    pending["spec"]["resourceClaims"] = [
        {"name": "own", "resourceClaimTemplateName": "gpus"},
        {"name": "other", "resourceClaimName": "wanted"},
    ]
    pending["status"] = {"resourceClaimStatuses": [{"name": "own", "resourceClaimName": "p-gpus"}]}
    cluster = [node("a"), slice_of("a", gpu("gpu-0")), own, template, claim(), pending]
    code, out, err = dryrun("pod/p", "--slices", write("cluster.json", several(cluster)))
    assert code == 1, out + err
    assert "1 has no free gpu.nvidia.com device" in out, out + err
    assert "wait for" not in out


@pytest.mark.cluster
def test_all_pending_pods_are_explained_and_no_running_one(dryrun: DryRun, crowded: Path) -> None:
    code, out, _ = dryrun("--all-pending", "-n", TEAM, "--kubeconfig", crowded)
    assert code == 1
    assert out.count("fits nowhere  Pod") == 2
    assert "holder:" not in out
    assert out.count(f"fits nowhere  Pod {TEAM}/") <= dryrun("--all-pending", "-A", "--kubeconfig", crowded)[1].count(
        "Pod "
    )
    code, out, _ = dryrun("--all-pending", "-n", "nobody-is-here", "--kubeconfig", crowded)
    assert (code, out) == (0, "no pod is pending in nobody-is-here\n")


@pytest.mark.cluster
def test_a_pod_that_is_not_there_is_an_error(dryrun: DryRun, crowded: Path) -> None:
    code, out, err = dryrun("pod/nobody", "-n", TEAM, "--kubeconfig", crowded)
    assert code == 2, err
    assert out == "", err
    assert f"there is no pod {TEAM}/nobody" in err


def test_pods_of_files_are_found_by_name_too(ask: Ask, dryrun: DryRun, write: Write) -> None:
    files = write("cluster.json", several([node("a"), running("busy", "a", "1"), pod("p", "9")]))
    assert "running  Pod busy: on node a" in dryrun("pod/busy", "--slices", files)[1]
    assert "1 lacks cpu" in dryrun("po/p", "--slices", files)[1]


def daemon_set(**spec: Any) -> JSON:
    made = policy("apps/v1", "DaemonSet", "d")
    made["spec"] = {"template": {"metadata": {"labels": {"app": "d"}}, "spec": {**pod("p", "2")["spec"], **spec}}}
    return made


def test_a_daemon_set_needs_every_matching_node(ask: Ask) -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    cluster = [node("a"), node("b", "1"), node("c", labels={"skip": "yes"}), node("d", taints=[taint])]
    cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    cluster.append(node("e", taints=[cordoned], unschedulable=True))
    term = {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    wanted = daemon_set(affinity={"nodeAffinity": affinity})
    code, out = ask([wanted], *cluster)
    assert code == 1
    for name in ("a", "e"):
        assert f"fits  DaemonSet default/d, pod on {name}: on node {name}\n" in out
    assert "fits nowhere  DaemonSet default/d, pod on b" in out
    assert "1 node: 1 lacks cpu (needs 2, has 1 free)" in out
    assert "pod on c" not in out
    assert "pod on d" not in out
    assert ask([wanted], node("a"), node("e"))[0] == 0
    code, out = ask([daemon_set(nodeSelector={"no": "node"})], *cluster)
    assert code == 2, out
    assert "no node matches its node selector" in out


def test_nodes_without_room_for_a_daemon_set_are_listed(ask: Ask) -> None:
    cluster = [node(f"n{number:02}", "1" if number % 5 == 0 else "4") for number in range(20)]
    code, out = ask([daemon_set()], *cluster)
    assert code == 1
    assert "16 of 20 fit  pods of DaemonSet default/d" in out
    (line,) = (line.strip() for line in out.splitlines() if "lacks" in line)
    assert line == "n00, n05, n10 and 1 more: lacks cpu (needs 2, has 1 free)"


def test_many_replicas_are_summarised(ask: Ask) -> None:
    wanted = policy("apps/v1", "Deployment", "w")
    wanted["spec"] = {"replicas": 100, "template": {"spec": pod("p", "2")["spec"]}}
    code, out = ask([wanted], node("a"), node("b"))
    assert code == 1
    assert "8 of 100 fit  pods of Deployment default/w (each with -o wide)" in out
    assert "on a (4), b (4)" in out
    assert "then:\nfits nowhere  Deployment default/w, pod 9 of 100" in out
    assert out.count("fits nowhere") == 1
    code, out = ask([wanted], node("a"), node("b"), flags=["-o", "wide"])
    assert out.count("fits nowhere") == 1
    assert "fits nowhere  Deployment default/w, pod 9 of 100, and 91 more pods" in out


SHARING = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 0}},
}


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("kind", ["sharing", "unknown"])
def test_a_configuration_that_cannot_be_applied_is_no_fit(by_class: bool, kind: str, ask: Ask) -> None:
    config = SHARING if kind == "sharing" else {**SHARING, "kind": "NoConfig"}
    opaque = {"opaque": {"driver": "gpu.nvidia.com", "parameters": config}}
    wanted = claim()
    device_class = policy("resource.k8s.io/v1", "DeviceClass", "gpu.nvidia.com", "")
    device_class["spec"] = {"config": [opaque]} if by_class else {}
    if not by_class:
        wanted["spec"]["devices"]["config"] = [opaque]
    cluster = [node("a"), slice_of("a", gpu("gpu-0")), device_class]
    code, out = ask([wanted, pod("p", "1", "wanted")], *cluster)
    assert code == 1
    assert "would not start  Pod p: the driver cannot apply its configuration on node a" in out
    assert ("must be 1 to 100, not 0" if kind == "sharing" else "'NoConfig' is not supported") in out
    found = ask.verdict([wanted, pod("p", "1", "wanted")], *cluster)
    assert (found["fits"], found["node"], len(found["problems"])) == (False, "a", 1)
    assert "would not start" in ask([wanted, pod("p", "1", "wanted")], *cluster, flags=["-o", "html"])[1]
