# SPDX-License-Identifier: Apache-2.0
"""Workloads get pods: on the embedded API server, with two stand-in kubelets that run them."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, Kind, NotFoundError
from dra_driver.kube.kinds import DAEMON_SETS, DEPLOYMENTS, JOBS, NAMESPACES, NODES, PODS, REPLICA_SETS, STATEFUL_SETS
from dra_driver.sandbox.apiserver import ApiServerOptions
from dra_driver.sandbox.controlplane import control_loop
from dra_driver.sandbox.kubelet import Kubelet, KubeletOptions, KubernetesCluster
from dra_driver.sandbox.kubelet.model import RUN_SECONDS
from dra_driver.sandbox.workloads.owned import share
from tests.support.apiserver import connect
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.waiting import wait_for

JSON = dict[str, Any]
NODE_NAMES = ("node-1", "node-2")


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyServer]:
    with FaultyServer(ApiServerOptions(tls=False)) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(server: FaultyServer) -> Iterator[ApiClient]:
    """A client of a server with the stand-in controllers and two nodes."""
    options = ApiServerOptions()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dra-")))
        kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
        client = stack.enter_context(connect(kubeconfig))
        loop = stack.enter_context(control_loop(kubeconfig, "1.36", options.release()))
        loop.start()
        stack.callback(loop.stop)
        for name in NODE_NAMES:
            kubelet = Kubelet(
                KubeletOptions(name, folder / name, folder / "cdi"), KubernetesCluster(client, node_name=name)
            )
            stack.enter_context(kubelet).wait_ready()
        yield client


@pytest.fixture
def client(cluster: ApiClient) -> Iterator[ApiClient]:
    """Its client. A test leaves nothing."""
    yield cluster
    for kind in (DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, DAEMON_SETS, JOBS, PODS):
        for item in cluster.list(kind, namespace="default").items:
            with suppress(NotFoundError):  # it has gone with its owner
                cluster.delete(kind, item["metadata"]["name"], "default")
    wait_for(lambda: not cluster.list(PODS, namespace="default").items, "the pods to be gone")


def template(image: str = "a:1", **spec: Any) -> JSON:
    return {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": image}], **spec}}


def create(client: ApiClient, kind: Kind, name: str = "w", **spec: Any) -> JSON:
    """A workload of a template; `spec` may replace that."""
    selector = {} if kind == JOBS else {"selector": {"matchLabels": {"app": "w"}}}
    names = {DEPLOYMENTS: "Deployment", STATEFUL_SETS: "StatefulSet", DAEMON_SETS: "DaemonSet", JOBS: "Job"}
    value = {
        "apiVersion": kind.api_version,
        "kind": names[kind],
        "metadata": {"name": name},
        "spec": {"template": template(**({"restartPolicy": "Never"} if kind == JOBS else {})), **selector, **spec},
    }
    return client.create(kind, value, "default")


def change(client: ApiClient, kind: Kind, **spec: Any) -> None:
    client.patch(kind, "w", {"spec": spec}, namespace="default")


def pods(client: ApiClient) -> dict[str, JSON]:
    return {pod["metadata"]["name"]: pod for pod in client.list(PODS, namespace="default").items}


def images(client: ApiClient) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in pods(client).values())


def status(client: ApiClient, kind: Kind) -> JSON:
    found: JSON = client.get(kind, "w", "default").get("status") or {}
    return found


def has(client: ApiClient, kind: Kind, **counts: Any) -> Callable[[], bool]:
    """Whether the status is of the last generation and has these fields."""

    def is_so() -> bool:
        one = client.get(kind, "w", "default")
        found = one.get("status") or {}
        seen = kind == JOBS or found.get("observedGeneration") == one["metadata"]["generation"]
        return seen and all(found.get(key) == value for key, value in counts.items())

    return is_so


def ready(client: ApiClient, kind: Kind, count: int) -> None:
    """Wait until that many pods are there, updated and ready."""
    counts = {"replicas": count, "updatedReplicas": count, "readyReplicas": count, "availableReplicas": count}
    wait_for(has(client, kind, **counts), f"{count} ready pods")


def test_a_deployment_gets_pods_through_a_replica_set(client: ApiClient) -> None:
    made = create(client, DEPLOYMENTS, replicas=3)
    ready(client, DEPLOYMENTS, 3)
    (replica_set,) = client.list(REPLICA_SETS, namespace="default").items
    (owner,) = replica_set["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Deployment", made["metadata"]["uid"], True)
    for pod in pods(client).values():
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("ReplicaSet", replica_set["metadata"]["uid"])
        assert pod["spec"]["nodeName"] in NODE_NAMES
    conditions = {condition["type"]: condition["reason"] for condition in status(client, DEPLOYMENTS)["conditions"]}
    assert conditions == {"Available": "MinimumReplicasAvailable", "Progressing": "NewReplicaSetAvailable"}


def test_a_deployment_is_scaled(client: ApiClient) -> None:
    create(client, DEPLOYMENTS, replicas=1)
    ready(client, DEPLOYMENTS, 1)
    change(client, DEPLOYMENTS, replicas=3)
    ready(client, DEPLOYMENTS, 3)
    change(client, DEPLOYMENTS, replicas=1)
    wait_for(lambda: len(pods(client)) == 1, "two pods to go")
    ready(client, DEPLOYMENTS, 1)


@pytest.mark.parametrize(
    "strategy", [{"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, {"type": "Recreate"}]
)
def test_a_changed_template_replaces_the_pods(client: ApiClient, strategy: JSON) -> None:
    create(client, DEPLOYMENTS, replicas=2, strategy=strategy)
    ready(client, DEPLOYMENTS, 2)
    change(client, DEPLOYMENTS, template=template("a:2"))
    wait_for(lambda: images(client) == ["a:2", "a:2"], "two new pods")
    ready(client, DEPLOYMENTS, 2)
    # back to the first template: its ReplicaSet is used again, as the newest revision
    change(client, DEPLOYMENTS, template=template("a:1"))
    wait_for(lambda: images(client) == ["a:1", "a:1"], "two old pods")
    sets = client.list(REPLICA_SETS, namespace="default").items
    revisions = {item["metadata"]["annotations"]["deployment.kubernetes.io/revision"] for item in sets}
    assert revisions == {"2", "3"}


def test_old_pods_stay_until_new_ones_can_run(client: ApiClient) -> None:
    create(client, DEPLOYMENTS, replicas=2, strategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    ready(client, DEPLOYMENTS, 2)
    change(client, DEPLOYMENTS, template=template("a:2", nodeSelector={"zone": "nowhere"}))
    wait_for(has(client, DEPLOYMENTS, replicas=3, updatedReplicas=1, availableReplicas=2), "one pod that waits")
    assert images(client) == ["a:1", "a:1", "a:2"]
    change(client, DEPLOYMENTS, replicas=1)
    wait_for(lambda: images(client) == ["a:1", "a:2"], "no more pods than may be")


def test_a_paused_deployment_is_not_rolled_out(client: ApiClient) -> None:
    create(client, DEPLOYMENTS, replicas=1)
    ready(client, DEPLOYMENTS, 1)
    change(client, DEPLOYMENTS, paused=True, template=template("a:2"))
    wait_for(has(client, DEPLOYMENTS, replicas=1, updatedReplicas=0), "the change to be seen")
    assert images(client) == ["a:1"]
    change(client, DEPLOYMENTS, paused=False)
    wait_for(lambda: images(client) == ["a:2"], "the new pod")


def test_no_more_old_replica_sets_are_kept_than_asked_for(client: ApiClient) -> None:
    create(client, DEPLOYMENTS, replicas=1, revisionHistoryLimit=1)
    for number in (2, 3, 4):
        ready(client, DEPLOYMENTS, 1)
        change(client, DEPLOYMENTS, template=template(f"a:{number}"))
        wait_for(lambda image=f"a:{number}": images(client) == [image], "the new pod")  # type: ignore[misc]
    wait_for(lambda: len(client.list(REPLICA_SETS, namespace="default").items) == 2, "old ReplicaSets to go")


def test_workload_without_permission_for_pods_does_not_stop_others(client: ApiClient, server: FaultyServer) -> None:
    meta = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "closed"}}
    client.create(NAMESPACES, meta)
    fault = server.faults.add(RequestFault(verb="create", resource="pods", namespace="closed", error=403))
    try:
        value = client.create(DEPLOYMENTS, create(client, DEPLOYMENTS) | {"metadata": {"name": "w"}}, "closed")
        assert value["metadata"]["namespace"] == "closed"
        ready(client, DEPLOYMENTS, 1)
        wait_for(lambda: fault.hits, "a refused pod")
    finally:
        server.faults.remove(fault)
        client.delete(NAMESPACES, "closed")


def test_a_stateful_set_makes_its_pods_one_after_the_other(client: ApiClient) -> None:
    create(client, STATEFUL_SETS, replicas=3, serviceName="s")
    ready(client, STATEFUL_SETS, 3)
    found = pods(client)
    assert sorted(found) == ["w-0", "w-1", "w-2"]
    started = [found[name]["metadata"]["creationTimestamp"] for name in sorted(found)]
    assert started == sorted(started)
    assert found["w-1"]["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"
    assert (found["w-1"]["spec"]["hostname"], found["w-1"]["spec"]["subdomain"]) == ("w-1", "s")
    change(client, STATEFUL_SETS, replicas=1)
    wait_for(lambda: list(pods(client)) == ["w-0"], "the last ones to go")


def test_the_next_pod_of_a_stateful_set_waits_for_the_one_before(client: ApiClient) -> None:
    create(client, STATEFUL_SETS, replicas=2, serviceName="s", template=template(nodeSelector={"zone": "nowhere"}))
    wait_for(has(client, STATEFUL_SETS, replicas=1), "the first pod, which waits")
    assert list(pods(client)) == ["w-0"]
    client.delete(STATEFUL_SETS, "w", "default")
    wait_for(lambda: not pods(client), "the pod to go with its owner")
    scattered = template(nodeSelector={"zone": "nowhere"})
    create(client, STATEFUL_SETS, replicas=2, serviceName="s", podManagementPolicy="Parallel", template=scattered)
    wait_for(lambda: sorted(pods(client)) == ["w-0", "w-1"], "both at once")


def test_a_stateful_set_is_updated_down_to_its_partition(client: ApiClient) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    create(client, STATEFUL_SETS, replicas=2, serviceName="s", updateStrategy=strategy)
    ready(client, STATEFUL_SETS, 2)
    change(client, STATEFUL_SETS, template=template("a:2"))
    wait_for(lambda: images(client) == ["a:1", "a:2"], "the last pod to be replaced")
    wait_for(has(client, STATEFUL_SETS, updatedReplicas=1, currentReplicas=1, readyReplicas=2), "the counts")
    change(client, STATEFUL_SETS, updateStrategy={"rollingUpdate": {"partition": 0}})
    wait_for(lambda: images(client) == ["a:2", "a:2"], "the first one to be replaced, too")
    ready(client, STATEFUL_SETS, 2)
    found = status(client, STATEFUL_SETS)
    assert found["currentRevision"] == found["updateRevision"]


def daemons(count: int, **more: int | None) -> JSON:
    fields = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
    return {**dict.fromkeys(fields, count), **more}


def test_a_daemon_set_has_a_pod_on_every_node(client: ApiClient) -> None:
    create(client, DAEMON_SETS)
    wait_for(has(client, DAEMON_SETS, **daemons(2)), "a pod on each node")
    assert {pod["spec"]["nodeName"] for pod in pods(client).values()} == set(NODE_NAMES)
    change(client, DAEMON_SETS, template=template("a:2"))
    wait_for(lambda: images(client) == ["a:2", "a:2"], "new pods on both")


def zone(client: ApiClient, node: str, name: str | None) -> None:
    client.patch(NODES, node, {"metadata": {"labels": {"zone": name}}})


def test_a_daemon_set_keeps_to_the_nodes_that_it_selects(client: ApiClient) -> None:
    create(client, DAEMON_SETS, template=template(nodeSelector={"zone": "a"}))
    wait_for(has(client, DAEMON_SETS, desiredNumberScheduled=0), "no node to be selected")
    try:
        for node in NODE_NAMES:
            zone(client, node, "a")
        wait_for(has(client, DAEMON_SETS, **daemons(2)), "a pod on both")
        zone(client, "node-2", None)
        wait_for(lambda: [pod["spec"]["nodeName"] for pod in pods(client).values()] == ["node-1"], "one to go")
        term = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        change(client, DAEMON_SETS, template=template(nodeSelector=None, affinity={"nodeAffinity": required}))
        wait_for(lambda: [pod["spec"].get("nodeName") for pod in pods(client).values()] == ["node-2"], "the other node")
    finally:
        zone(client, "node-1", None)


def test_pods_of_a_daemon_set_run_on_cordoned_nodes_but_not_on_tainted_ones(client: ApiClient) -> None:
    for node, spec in (
        ("node-1", {"unschedulable": True}),
        ("node-2", {"taints": [{"key": "k", "effect": "NoSchedule"}]}),
    ):
        client.patch(NODES, node, {"spec": spec})
    try:
        create(client, DEPLOYMENTS, name="other", replicas=1)
        create(client, DAEMON_SETS)
        wait_for(has(client, DAEMON_SETS, **daemons(1)), "a pod on the cordoned node")
        # The Deployment's pod fits nowhere.
        wait_for(lambda: {pod["spec"].get("nodeName") for pod in pods(client).values()} == {"node-1", None}, "two pods")
    finally:
        for node in NODE_NAMES:
            client.patch(NODES, node, {"spec": {"unschedulable": None, "taints": None}})


QUICK = {"metadata": {"annotations": {RUN_SECONDS: "0.1"}}}


def job_template(**spec: Any) -> JSON:
    return {**template(restartPolicy="Never", **spec), **QUICK}


def finished(client: ApiClient, kind: str) -> Callable[[], bool]:
    return lambda: any(condition["type"] == kind for condition in status(client, JOBS).get("conditions") or ())


def test_a_job_is_complete_when_enough_pods_have_succeeded(client: ApiClient) -> None:
    create(client, JOBS, completions=3, parallelism=2, template=job_template())
    wait_for(finished(client, "Complete"), "the Job to be complete")
    found = status(client, JOBS)
    assert (found["succeeded"], found["active"], found["failed"]) == (3, 0, 0)
    assert found["startTime"] <= found["completionTime"]
    assert {pod["status"]["phase"] for pod in pods(client).values()} == {"Succeeded"}
    client.delete(PODS, next(iter(pods(client))), "default")
    wait_for(lambda: len(pods(client)) == 2, "a pod to be gone")
    assert status(client, JOBS) == found


def test_an_indexed_job_has_one_success_for_each_index(client: ApiClient) -> None:
    create(client, JOBS, completions=3, parallelism=3, completionMode="Indexed", template=job_template())
    wait_for(finished(client, "Complete"), "the Job to be complete")
    annotations = [pod["metadata"]["annotations"] for pod in pods(client).values()]
    assert sorted(each["batch.kubernetes.io/job-completion-index"] for each in annotations) == ["0", "1", "2"]


def test_a_job_without_completions_ends_with_its_last_pod(client: ApiClient) -> None:
    create(client, JOBS, parallelism=2, template=job_template())
    wait_for(finished(client, "Complete"), "the Job to be complete")
    assert len(pods(client)) == 2


def test_a_job_that_fails_too_often_gives_up(client: ApiClient) -> None:
    create(client, JOBS, backoffLimit=1, template=template(restartPolicy="Never", nodeSelector={"zone": "nowhere"}))

    def fail_one() -> bool:
        for name, pod in pods(client).items():
            if pod["status"]["phase"] == "Pending":
                body = {"status": {"phase": "Failed"}}
                client.patch(PODS, name, body, namespace="default", subresource="status")
        return finished(client, "Failed")()

    wait_for(fail_one, "the Job to fail")
    assert status(client, JOBS)["failed"] == 2


def test_a_suspended_job_runs_when_it_is_resumed(client: ApiClient) -> None:
    create(client, JOBS, suspend=True, template=job_template())
    wait_for(finished(client, "Suspended"), "the Job to be suspended")
    assert not pods(client)
    change(client, JOBS, suspend=False)
    wait_for(finished(client, "Complete"), "the Job to be complete")


@pytest.mark.parametrize(
    ("value", "up", "expected"),
    [(3, True, 3), ("25%", True, 3), ("25%", False, 2), ("0%", True, 0), (None, False, 0), ("100%", False, 10)],
)
def test_a_share_is_a_number_or_a_percentage(value: int | str | None, up: bool, expected: int) -> None:
    assert share(value, 10, up=up) == expected
