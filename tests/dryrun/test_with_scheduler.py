# SPDX-License-Identifier: Apache-2.0
"""The same pods to dra-dryrun and to kube-scheduler: where they go, and what is said of those that go nowhere."""

import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dra_driver.dryrun.documents import Document
from dra_driver.dryrun.evaluate import evaluate
from dra_driver.dryrun.inventory import from_cluster
from dra_driver.dryrun.release import Rules, server_of
from dra_driver.dryrun.verdict import Verdict
from dra_driver.dryrun.workload import sort_documents
from dra_driver.kube.api import ApiClient, Connection, Kind, load_credentials
from dra_driver.kube.kinds import NODES, PODS
from dra_driver.sandbox.loop import CLAIMS, CLASSES, SLICES
from dra_driver.scheduler.allocator import Features
from tests.sandbox.apiserver.binaries import binary
from tests.support.apiserver import api_server, connect
from tests.support.waiting import wait_for

from .conftest import gpu, slice_of
from .test_whole_pod import JSON, claim, node, pod

pytestmark = pytest.mark.cluster

RANDOM_PODS = 200
PATIENCE = 60.0
PRIORITIES = Kind("scheduling.k8s.io/v1", "priorityclasses")
HOSTNAME = "kubernetes.io/hostname"


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of an API server with nodes, and kube-scheduler."""
    scheduler = binary("kube-scheduler")
    if scheduler is None:
        pytest.skip("no kube-scheduler in KUBEBUILDER_ASSETS")
    folder = tmp_path_factory.mktemp("scheduler")
    with ExitStack() as stack:
        path = stack.enter_context(api_server(folder))
        with connect(path) as client:
            _create_nodes(client)
        flags = (f"--kubeconfig={path}", "--secure-port=0", "--leader-elect=false")
        with (folder / "kube-scheduler.log").open("wb") as log:
            process = stack.enter_context(subprocess.Popen([scheduler, *flags], stdout=log, stderr=log))
        stack.callback(process.terminate)
        yield path


@pytest.fixture(scope="module")
def features(kubeconfig: Path) -> Features:
    """Those of the scheduler, whose release need not be the default."""
    with connect(kubeconfig) as client:
        return Rules().features(server_of(client, PATIENCE))


def _create_nodes(client: ApiClient) -> None:
    expression = "device.attributes['gpu.nvidia.com'].type == 'gpu'"
    classes: JSON = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}}
    client.create(CLASSES, {**classes, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
    more: list[JSON] = [
        {"labels": {"zone": "x"}},
        {"labels": {"zone": "x"}, "allocatable": {"rdma/ib": "2"}},
        {"labels": {"zone": "y"}, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        {"labels": {"zone": "y"}, "unschedulable": True},
        {"labels": {"zone": "z"}},
        {},
    ]
    for number, one in enumerate(more):
        name = f"node-{number}"
        _create_node(client, node(name, cpu=str(4 + 4 * number), **one))
        client.create(SLICES, slice_of(name, *(gpu(f"gpu-{index}") for index in range(number))))


def _create_node(client: ApiClient, made: JSON) -> None:
    there = client.create(NODES, {**made, "status": {**made["status"], "capacity": made["status"]["allocatable"]}})
    # A new node is tainted as not ready until kubelet says that it is.
    client.update(NODES, {**there, "spec": {**there["spec"], "taints": made["spec"].get("taints", [])}})


def _random_pod(number: int, choose: random.Random) -> list[JSON]:
    """A pod, and the claim that it uses."""
    spec: JSON = {}
    app = choose.choice(["web", "db", "batch"])
    selector = {"labelSelector": {"matchLabels": {"app": app}}}
    key = choose.choice([HOSTNAME, "zone"])
    if choose.random() < 0.3:
        spec["nodeSelector"] = {"zone": choose.choice("xyzn")}
    if choose.random() < 0.3:
        spec["tolerations"] = [{"key": "k", "operator": "Exists"}]
    if choose.random() < 0.2:
        spec["topologySpreadConstraints"] = [
            {"maxSkew": choose.choice([1, 3]), "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **selector}
        ]
    if choose.random() < 0.2:
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key, **selector}]}
        spec["affinity"] = {choose.choice(["podAffinity", "podAntiAffinity"]): rule}
    extended = {"rdma/ib": "1"} if choose.random() < 0.1 else None
    name = f"pod-{number}"
    wanted = f"claim-{number}" if choose.random() < 0.3 else ""
    made = pod(name, choose.choice(["100m", "500m", "2", "15"]), wanted, extended, **spec)
    made["metadata"] = {"name": name, "labels": {"app": app}}
    if choose.random() < 0.15:
        made["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": choose.choice([8080, 8081])}]
    claims = [claim(wanted, choose.randint(1, 4))] if wanted else []
    return [*claims, made]


def _verdict(objects: list[JSON], connection: Connection, features: Features) -> Verdict:
    given = sort_documents([Document(one, "test") for one in objects])
    found = from_cluster(connection, devices_only=False)
    assert found.world is not None
    return evaluate(given.demands, found.objects, features, found.world)[0]


def _decided(client: ApiClient, name: str) -> bool:
    """Whether the scheduler has decided on the pod."""
    found: JSON = client.get(PODS, name, "default")
    conditions = (found.get("status") or {}).get("conditions") or []
    return bool(found["spec"].get("nodeName")) or any(one["type"] == "PodScheduled" for one in conditions)


def _said(found: JSON) -> str:
    conditions: list[dict[str, Any]] = (found.get("status") or {}).get("conditions") or []
    return next(
        (one["message"] for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False"), ""
    )


def test_random_pods_get_the_scheduler_s_own_answer(kubeconfig: Path, features: Features) -> None:
    choose = random.Random(15)
    placed = 0
    with Connection(load_credentials(str(kubeconfig)), "tests") as connection:
        client = ApiClient(connection)
        for number in range(RANDOM_PODS):
            objects = _random_pod(number, choose)
            verdict = _verdict(objects, connection, features)
            assert not verdict.rejects
            for one in objects:
                client.create(CLAIMS if one["kind"] == "ResourceClaim" else PODS, one, "default")
            name = objects[-1]["metadata"]["name"]
            wait_for(partial(_decided, client, name), f"a decision on {name}", PATIENCE)
            found = client.get(PODS, name, "default")
            where = found["spec"].get("nodeName")
            if where:
                placed += 1
                assert where in verdict.fitting, (objects, where, verdict.fitting, verdict.event)
                continue
            assert (verdict.fitting, verdict.event) == ((), _said(found)), objects
            client.delete(PODS, name, "default")
            if len(objects) > 1:
                client.delete(CLAIMS, objects[0]["metadata"]["name"], "default")
    assert RANDOM_PODS / 5 < placed < RANDOM_PODS * 4 / 5


def test_the_scheduler_removes_the_pods_that_were_named(kubeconfig: Path, features: Features) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    wanted = pod("urgent", "2500m", nodeSelector={"crowded": "yes"}, priorityClassName="high")
    del wanted["metadata"]["uid"]
    with Connection(load_credentials(str(kubeconfig)), "tests") as connection:
        client = ApiClient(connection)
        client.create(PRIORITIES, high)
        _create_node(client, node("crowded", "4", labels={"crowded": "yes"}))
        for name, cpu in (("small", "500m"), ("medium", "1"), ("large", "2")):
            client.create(PODS, pod(name, cpu, nodeName="crowded") | {"metadata": {"name": name}}, "default")
        try:
            verdict = _verdict([wanted], connection, features)
            assert verdict.removal is not None
            client.create(PODS, wanted, "default")
            wait_for(partial(_nominated, client, "urgent"), "a nominated node", PATIENCE)
            gone = set(verdict.removal.pods)
            wait_for(lambda: _leaving(client) == gone, "the removal of the pods", PATIENCE)
            assert _nominated(client, "urgent") == verdict.removal.node
        finally:
            client.delete(NODES, "crowded")


def _leaving(client: ApiClient) -> set[str]:
    pods = (one["metadata"] for one in client.list(PODS).items)
    return {f"default/{one['name']}" for one in pods if one.get("deletionTimestamp")}


def _nominated(client: ApiClient, name: str) -> str:
    return str((client.get(PODS, name, "default").get("status") or {}).get("nominatedNodeName") or "")


def test_filter_that_fails_without_the_victims_ends_the_event_as_the_scheduler_does(
    kubeconfig: Path, features: Features
) -> None:
    above = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "above"}, "value": 9}
    failing = claim("failing", 1)
    failing["metadata"]["namespace"] = "default"
    expression = "device.attributes['gpu.nvidia.com'].nosuch == 'x'"
    failing["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    wanted = pod("waiting", "1", "failing", nodeSelector={"tight": "yes"}, priorityClassName="above")
    del wanted["metadata"]["uid"]
    with Connection(load_credentials(str(kubeconfig)), "tests") as connection:
        client = ApiClient(connection)
        client.create(PRIORITIES, above)
        _create_node(client, node("tight", "1", labels={"tight": "yes"}))
        client.create(SLICES, slice_of("tight", gpu("gpu-0")))
        client.create(PODS, pod("below", "1", nodeName="tight") | {"metadata": {"name": "below"}}, "default")
        try:
            verdict = _verdict([failing, wanted], connection, features)
            client.create(CLAIMS, failing, "default")
            client.create(PODS, wanted, "default")
            wait_for(lambda: _said(client.get(PODS, "waiting", "default")), "the scheduler's event", PATIENCE)
            said = _said(client.get(PODS, "waiting", "default"))
            assert "preemption: " in said
            assert (verdict.fitting, verdict.event) == ((), said)
        finally:
            client.delete(NODES, "tight")
