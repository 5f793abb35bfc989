# SPDX-License-Identifier: Apache-2.0
"""The sandbox's scheduler records what devices take of their node, so that later pods find less."""

from pathlib import Path
from typing import Any

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES, PODS
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from dra_driver.sandbox.loop import CLAIMS, CLASSES, SLICES
from dra_driver.sandbox.scheduler import Scheduler
from dra_driver.scheduler.allocator import Features
from tests.support.apiserver import connect

from .test_scheduler import container, device_class, node

JSON = dict[str, Any]
GATES = {"DRANodeAllocatableResources": True}


def create(client: ApiClient, name: str) -> None:
    """A pod whose container uses a claim for one device, and requests one cpu."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    claim = {"apiVersion": V1.api_version, "kind": "ResourceClaim", "metadata": {"name": name}}
    client.create(CLAIMS, {**claim, "spec": {"devices": {"requests": requests}}}, "default")
    resources = {"requests": {"cpu": "1"}, "claims": [{"name": "c"}]}
    spec = {
        "containers": [{**container("a"), "resources": resources}],
        "resourceClaims": [{"name": "c", "resourceClaimName": name}],
    }
    client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, "default")


def test_pods_and_their_devices_fill_a_node(tmp_path: Path) -> None:
    taken = {"cpu": {"mapping": {"deviceMultiplier": "2"}, "overhead": {"perPod": "500m", "perContainer": "250m"}}}
    spec = {
        "nodeName": "node-1",
        "driver": "gpu.nvidia.com",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{index}", "nodeAllocatableResources": taken} for index in range(4)],
    }
    slices: JSON = {"apiVersion": V1.api_version, "kind": "ResourceSlice", "metadata": {"name": "node-1"}, "spec": spec}
    with (
        ApiServer(ApiServerOptions(minor=37, gates=GATES, tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        for kind, value in ((NODES, node("node-1")), (SLICES, slices), (CLASSES, device_class("gpu", "a.com/gpu"))):
            client.create(kind, value)
        scheduler = Scheduler(client, Features.from_gates(GATES, release="1.37"))
        for name in ("p", "q", "r"):
            create(client, name)
            scheduler.step()
        scheduler.close()
        pods = {pod["metadata"]["name"]: pod for pod in client.list(PODS).items}
    assert pods["p"]["status"]["nodeAllocatableResourceClaimStatuses"] == [
        {
            "resourceClaimName": "p",
            "containers": ["a"],
            "mapping": [{"name": "cpu", "quantity": "2"}],
            "overhead": [{"name": "cpu", "perPod": "500m", "perContainer": "250m"}],
        }
    ]
    assert [name for name, one in pods.items() if one["spec"].get("nodeName")] == ["p", "q"], "8 cpus, 3.75 for each"
    (condition,) = pods["r"]["status"]["conditions"]
    assert "Insufficient cpu" in condition["message"]
