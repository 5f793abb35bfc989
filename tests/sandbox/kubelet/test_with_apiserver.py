# SPDX-License-Identifier: Apache-2.0
"""The kubelet against the sandbox's API server: real HTTP, real watches, real status updates."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sandbox.apiserver import ApiServerOptions
from dra_driver.sandbox.kubelet import Kubelet, KubeletOptions, KubernetesCluster
from tests.support.apiserver import connect
from tests.support.faultyserver import FaultyServer

from .conftest import WriteCdi
from .memory_cluster import NODE, make_pod
from .scripted_plugin import DRIVER, ScriptedPlugin


class Api:
    """What a user, a scheduler and a driver do at the API server in these tests."""

    def __init__(self, kubeconfig: Path) -> None:
        from kubernetes import client, config  # not at the top: every worker would load it

        api = config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]
        self.core = client.CoreV1Api(api)
        self.resource = client.ResourceV1Api(api)

    def add_slice(self, name: str, driver: str = DRIVER) -> None:
        """A slice of the node, with one GPU."""
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": NODE, "pool": pool, "devices": [{"name": "gpu-0"}]}
        self.resource.create_resource_slice(_any({"metadata": {"name": name}, "spec": spec}))

    def slices(self) -> list[str | None]:
        """The names of all slices."""
        return [item.metadata.name for item in self.resource.list_resource_slice().items if item.metadata]

    def run_pod(self, name: str, claim: str) -> tuple[str, str]:
        """A claim, a pod bound to the node that uses it, and the allocation. Returns the uids of claim and pod."""
        request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
        spec = {"devices": {"requests": [request]}}
        made = self.resource.create_namespaced_resource_claim(
            "default", _any({"metadata": {"name": claim}, "spec": spec})
        )
        template = make_pod(name, claim, request="gpu")
        # bound only after the claim is allocated, as a scheduler does it
        body = {"metadata": {"name": name}, "spec": {k: v for k, v in template["spec"].items() if k != "nodeName"}}
        pod = self.core.create_namespaced_pod("default", _any(body))
        assert made.metadata is not None
        assert pod.metadata is not None
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": "gpu-0"}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": pod.metadata.uid}],
        }
        self.resource.patch_namespaced_resource_claim_status(claim, "default", _any({"status": status}))
        binding = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": NODE}}
        self.core.create_namespaced_pod_binding(name, "default", _any(binding), _preload_content=False)
        return str(made.metadata.uid), str(pod.metadata.uid)

    def pod(self, name: str) -> Any:
        return self.core.read_namespaced_pod(name, "default")

    def events(self, reason: str) -> list[tuple[str | None, int | None]]:
        """Message and count of the events of that reason."""
        return [(e.message, e.count) for e in self.core.list_namespaced_event("default").items if e.reason == reason]


def _any(value: Any) -> Any:
    """A plain dictionary where the client's types want a model; it takes both."""
    return value


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(ApiServerOptions(minor=36, tls=False)) as running:
        yield running


@pytest.fixture
def kubeconfig(server: FaultyServer, tmp_path: Path) -> Path:
    """The kubeconfig of the server."""
    return server.write_kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
def cluster(kubeconfig: Path) -> Iterator[KubernetesCluster]:
    """The requests of kubelet to the server."""
    with connect(kubeconfig) as client:
        yield KubernetesCluster(client, node_name=NODE)


def test_pod_runs_and_ends_with_an_api_server(
    options: KubeletOptions, kubeconfig: Path, cluster: KubernetesCluster, root: Path, cdi: WriteCdi
) -> None:
    api = Api(kubeconfig)
    api.add_slice("stale")
    with Kubelet(options, cluster) as kubelet, ScriptedPlugin(root) as plugin:
        kubelet.wait_ready()
        assert api.slices() == []
        node = api.core.read_node(NODE)
        assert node.status is not None
        assert [(c.type, c.status) for c in node.status.conditions or ()] == [("Ready", "True")]

        kubelet.wait_registered(DRIVER)
        claim_uid, pod_uid = api.run_pod("pod", "claim")
        cdi(claim_uid)
        kubelet.wait_pod_running("default", "pod")
        assert plugin.called("Prepare") == [("claim",)]
        container = kubelet.container("default", "pod", "main")
        assert container is not None
        assert container.env["CLAIM"] == claim_uid
        pod = api.pod("pod")
        assert pod.status.phase == "Running"
        assert {c.type: c.status for c in pod.status.conditions}["Ready"] == "True"
        (resource,) = pod.status.container_statuses[0].allocated_resources_status[0].resources
        assert (resource.resource_id, resource.health) == (f"example.com/claim={claim_uid}", "Unknown")

        api.core.delete_namespaced_pod("pod", "default")
        kubelet.wait_pod_gone("default", "pod")
        assert plugin.called("Unprepare") == [("claim",)]
        assert pod_uid not in {p.metadata.uid for p in api.core.list_namespaced_pod("default").items if p.metadata}


def test_failed_prepares_are_counted_in_one_event(
    options: KubeletOptions, kubeconfig: Path, cluster: KubernetesCluster, root: Path
) -> None:
    api = Api(kubeconfig)
    reason = "FailedPrepareDynamicResources"
    with Kubelet(options, cluster) as kubelet, ScriptedPlugin(root) as plugin:
        plugin.prepare = lambda claims: {"claims": {claim.uid: {"error": "no such GPU"} for claim in claims}}
        kubelet.wait_registered(DRIVER)
        api.run_pod("pod", "claim")
        kubelet.wait(lambda: any((count or 0) >= 3 for _, count in api.events(reason)), what="three attempts")
        assert api.pod("pod").status.phase == "Pending"
        ((message, _),) = api.events(reason)
        assert message == (
            "Failed to prepare dynamic resources: prepare dynamic resources: "
            "NodePrepareResources failed for ResourceClaim claim: no such GPU"
        )
        api.core.delete_collection_namespaced_event("default")
        kubelet.wait(lambda: bool(api.events(reason)), what="the Event to be made anew, as it is forgotten in an hour")


def test_the_slices_of_a_lost_driver_go_and_those_of_others_stay(
    options: KubeletOptions, kubeconfig: Path, cluster: KubernetesCluster, root: Path
) -> None:
    api = Api(kubeconfig)
    with Kubelet(options, cluster) as kubelet:
        kubelet.wait_ready()
        with ScriptedPlugin(root):
            kubelet.wait_registered(DRIVER)
            api.add_slice("mine")
            api.add_slice("others", driver="other.example.com")
        kubelet.wait_event("SlicesWiped", DRIVER)
        assert api.slices() == ["others"]


def test_a_watch_that_is_cut_is_begun_again(
    options: KubeletOptions,
    server: FaultyServer,
    kubeconfig: Path,
    cluster: KubernetesCluster,
    root: Path,
    cdi: WriteCdi,
) -> None:
    api = Api(kubeconfig)
    with Kubelet(options, cluster) as kubelet, ScriptedPlugin(root):
        kubelet.wait_registered(DRIVER)
        server.compact()
        server.drop_watches("pods")
        claim_uid, _ = api.run_pod("pod", "claim")
        cdi(claim_uid)
        kubelet.wait_pod_running("default", "pod")
