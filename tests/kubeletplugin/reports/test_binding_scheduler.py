# SPDX-License-Identifier: Apache-2.0
"""A pod waits for the plugin's word on its GPU: kube-scheduler, dra-controller and dra-kubeletplugin together."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.devices import AVAILABLE, UNAVAILABLE
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import EVENTS, NODES, PODS
from dra_driver.kube.resource.codec import V1
from dra_driver.names import DRIVER_NAME
from dra_driver.sandbox.loop import CLAIMS, CLASSES, SLICES
from tests.sandbox.controlplane import kubernetes
from tests.support.apiserver import connect
from tests.support.plugin import POOL, Plugin, plugin_on
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

JSON = dict[str, Any]
PATIENCE = 90.0  # kube-scheduler looks every 5 s whether conditions are there, and waits up to 10 s before a next try


def node() -> JSON:
    room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": POOL}, "status": status}


def whole_gpus() -> JSON:
    expression = f"device.driver == '{DRIVER_NAME}' && device.attributes['{DRIVER_NAME}'].type == 'gpu'"
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {"apiVersion": V1.api_version, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": spec}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """Of Kubernetes' own control plane with a Node and a DeviceClass."""
    with kubernetes(tmp_path) as path:
        with connect(path) as client:
            client.create(NODES, node())
            client.create(CLASSES, whole_gpus())
        yield path


@contextmanager
def controller_of(plugin: Plugin) -> Iterator[None]:
    """The publisher of the plugin's node, with the plugin's flags."""
    where = [f"--{name}={plugin.where[name]}" for name in ("simulated-root", "kubelet-plugins-directory-path")]
    command = [sys.executable, "-m", "controller.main", f"--node-name={POOL}", *where, "--poll-interval=1"]
    with (plugin.folder / "controller.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--kubeconfig={plugin.kubeconfig}", *plugin.flags], stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def create_pod(client: ApiClient) -> None:
    """A pod that asks for one whole GPU."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    claim = {"apiVersion": V1.api_version, "kind": "ResourceClaim", "metadata": {"name": "one"}}
    client.create(CLAIMS, {**claim, "spec": {"devices": {"requests": requests}}}, "default")
    spec = {
        "containers": [{"name": "a", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    client.create(PODS, pod, "default")


def waits(client: ApiClient) -> bool:
    """Whether the scheduler has said that it waits."""
    found = [one for one in client.list(EVENTS).items if one["involvedObject"]["name"] == "p"]
    return any(one["reason"] == "BindingConditionsPending" for one in found)


def device(client: ApiClient) -> str:
    """What the claim has."""
    allocation = client.get(CLAIMS, "one", "default").get("status", {}).get("allocation") or {}
    return next((one["device"] for one in allocation.get("devices", {}).get("results", ())), "")


def conditions(client: ApiClient) -> list[str]:
    """What is said of it."""
    found = client.get(CLAIMS, "one", "default").get("status", {}).get("devices") or ()
    return [each["type"] for one in found for each in one["conditions"]]


def node_of(client: ApiClient) -> str:
    return str(client.get(PODS, "p", "default")["spec"].get("nodeName", ""))


@pytest.mark.parametrize("lost", [False, True])
def test_a_pod_is_bound_when_the_plugin_has_agreed(kubeconfig: Path, tmp_path: Path, lost: bool) -> None:
    """To the first device, or to another when that was lost meanwhile."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("gpus: [{bindingConditions: true}]\n", encoding="utf-8")
    with (
        connect(kubeconfig) as client,
        plugin_on(kubeconfig, f"--policy-file={policy}") as plugin,
        controller_of(plugin),
    ):
        wait_for(lambda: client.list(SLICES).items, "slices")
        create_pod(client)
        wait_for(lambda: waits(client), "the scheduler to wait", PATIENCE)
        first = device(client)
        assert (node_of(client), conditions(client)) == ("", [])
        if lost:
            plugin.node.lose_gpu(int(first.removeprefix("gpu-")))
        plugin.start()
        if lost:
            wait_for(lambda: UNAVAILABLE in conditions(client), "the plugin to refuse", PATIENCE)
        wait_for(lambda: node_of(client) == POOL, "the pod to be bound", PATIENCE)
        assert conditions(client) == [AVAILABLE]
        assert (device(client) != first) == lost
