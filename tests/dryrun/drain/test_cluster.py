# SPDX-License-Identifier: Apache-2.0
"""A drain of a cluster: the pods that it names are evicted when its rules are applied, and the way back ends it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.api import ApiClient, newest_taint_rules
from dra_driver.kube.kinds import NODES, PODS
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from dra_driver.sandbox.controlplane import controllers
from dra_driver.sandbox.loop import CLAIMS, CLASSES, SLICES, ControlLoop
from tests.dryrun.conftest import DryRun
from tests.sandbox.test_scheduler import container, create_claim, create_pod, device_class, node
from tests.sandbox.test_taintevictions import slice_of
from tests.support.apiserver import connect
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]
PATIENCE = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ApiClient, Path]]:
    """An API server of 1.37 with all stand-ins, and its kubeconfig; node-1 has gpu-0 and gpu-1."""
    with ExitStack() as stack:
        options = ApiServerOptions(minor=37)
        kubeconfig = stack.enter_context(ApiServer(options)).write_kubeconfig(tmp_path / "kubeconfig")
        client = stack.enter_context(connect(kubeconfig))
        client.create(NODES, node("node-1"))
        client.create(CLASSES, device_class("gpu", "nvidia.com/gpu"))
        client.create(SLICES, slice_of("gpu-0", "gpu-1"))
        rules = newest_taint_rules(client)
        assert rules is not None
        loop = ControlLoop(client, controllers(client, "1.37", options.release(), rules), [rules])
        loop.start()
        stack.callback(loop.stop)
        yield client, kubeconfig


def start(client: ApiClient, name: str) -> None:
    create_claim(client, name, deviceClassName="gpu")
    create_pod(client, name, container("c"), resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
    wait_for(lambda: client.get(PODS, name, "default")["spec"].get("nodeName"), f"{name} to be bound", PATIENCE)


def alive(client: ApiClient) -> set[str]:
    return {pod["metadata"]["name"] for pod in client.list(PODS).items if not pod["metadata"].get("deletionTimestamp")}


def device_of(client: ApiClient, name: str) -> str:
    """The device of a claim; empty if it has none."""
    allocation = (client.get(CLAIMS, name, "default").get("status") or {}).get("allocation") or {}
    return "".join(result["device"] for result in allocation.get("devices", {}).get("results", ()))


def test_named_pods_are_evicted_and_the_way_back_frees_the_device(
    cluster: tuple[ApiClient, Path], dryrun: DryRun
) -> None:
    client, kubeconfig = cluster
    where = newest_taint_rules(client)
    assert where is not None
    start(client, "first")
    start(client, "second")
    assert device_of(client, "first") == "gpu-0"
    _, out, err = dryrun("drain", "node-1/0", "--kubeconfig", kubeconfig)
    assert "default/first" in err
    assert "default/second" not in err
    (rule,) = yaml.safe_load_all(out)
    assert rule["apiVersion"] == where.api_version
    client.create(where, {name: value for name, value in rule.items() if name in ("metadata", "spec")})
    wait_for(lambda: alive(client) == {"second"}, "the pod that the drain names to leave", PATIENCE)
    wait_for(lambda: not device_of(client, "first"), "its claim to be released", PATIENCE)
    create_claim(client, "third", deviceClassName="gpu")
    create_pod(client, "third", container("c"), resourceClaims=[{"name": "gpu", "resourceClaimName": "third"}])
    _, out, err = dryrun("drain", "--undo", "--kubeconfig", kubeconfig)
    assert "can start then: 1 pod" in err
    (again,) = yaml.safe_load_all(out)
    client.delete(where, again["metadata"]["name"])
    wait_for(lambda: device_of(client, "third") == "gpu-0", "the third pod to get the device", PATIENCE)
