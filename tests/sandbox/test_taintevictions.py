# SPDX-License-Identifier: Apache-2.0
"""Device taints in the sandbox: pods leave tainted devices, and new pods do not get them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, newest_taint_rules
from dra_driver.kube.kinds import NODES, PODS
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from dra_driver.sandbox.controlplane import control_loop
from dra_driver.sandbox.loop import CLAIMS, CLASSES, SLICES
from tests.support.apiserver import connect
from tests.support.waiting import wait_for

from .test_scheduler import container, create_claim, create_pod, device_class, node

JSON = dict[str, Any]
KEY = "example.com/drain"
PATIENCE = 60.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ApiClient]:
    """An API server of 1.37 with all stand-ins; node-1 has gpu-0, gpu-1 and gpu-2."""
    with ExitStack() as stack:
        options = ApiServerOptions(minor=37)
        server = stack.enter_context(ApiServer(options))
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        found = stack.enter_context(connect(kubeconfig))
        found.create(NODES, node("node-1"))
        found.create(CLASSES, device_class("gpu", "nvidia.com/gpu"))
        found.create(SLICES, slice_of("gpu-0", "gpu-1", "gpu-2"))
        loop = stack.enter_context(control_loop(kubeconfig, "1.37", options.release()))
        loop.start()
        stack.callback(loop.stop)
        yield found


def slice_of(*devices: str) -> JSON:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "node-1"},
        "spec": {
            "nodeName": "node-1",
            "driver": "gpu.nvidia.com",
            "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": name} for name in devices],
        },
    }


def create_rule(client: ApiClient, device: str, effect: str = "NoExecute") -> JSON:
    where = newest_taint_rules(client)
    assert where is not None
    selector = {"driver": "gpu.nvidia.com", "pool": "node-1", "device": device}
    spec = {"deviceSelector": selector, "taint": {"key": KEY, "effect": effect}}
    return client.create(where, {"metadata": {"name": f"drain-{device}"}, "spec": spec})


def start(client: ApiClient, name: str, **exactly: Any) -> None:
    """Creates a pod with a claim of its own, and waits until it has a node."""
    create_claim(client, name, deviceClassName="gpu", **exactly)
    claims = [{"name": "gpu", "resourceClaimName": name}]
    create_pod(client, name, container("c"), resourceClaims=claims)
    wait_for(lambda: client.get(PODS, name, "default")["spec"].get("nodeName"), f"{name} to be bound", PATIENCE)


def names(client: ApiClient) -> set[str]:
    return {pod["metadata"]["name"] for pod in client.list(PODS).items if not pod["metadata"].get("deletionTimestamp")}


def test_rule_gets_the_time_of_its_taint(client: ApiClient) -> None:
    assert create_rule(client, "gpu-0")["spec"]["taint"]["timeAdded"]


def test_only_pods_on_the_tainted_device_are_evicted(client: ApiClient) -> None:
    start(client, "first")
    start(client, "second")
    create_rule(client, "gpu-0")
    wait_for(lambda: names(client) == {"second"}, "the first pod to leave", PATIENCE)


def test_pod_that_tolerates_the_taint_stays(client: ApiClient) -> None:
    start(client, "tolerating", tolerations=[{"key": KEY, "operator": "Exists", "effect": "NoExecute"}])
    start(client, "second")
    create_rule(client, "gpu-0")
    create_rule(client, "gpu-1")
    wait_for(lambda: names(client) == {"tolerating"}, "the second pod to leave", PATIENCE)


def test_pod_leaves_after_the_time_that_it_tolerates(client: ApiClient) -> None:
    start(client, "tolerating", tolerations=[{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}])
    create_rule(client, "gpu-0")
    wait_for(lambda: not names(client), "the pod to leave", PATIENCE)


def test_new_pod_gets_no_tainted_device(client: ApiClient) -> None:
    create_rule(client, "gpu-0", "NoSchedule")
    start(client, "new")
    (claim,) = client.list(CLAIMS).items
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-1"
