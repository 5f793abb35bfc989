# SPDX-License-Identifier: Apache-2.0
"""Install, upgrade, rollback and uninstall by Helm, on an API server (a real one with KUBEBUILDER_ASSETS)."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import helm_python
import pytest

from dra_driver.cluster import ApiClient, Kind
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from tests.support.apiserver import connect

from . import rendering
from .rendering import JSON, find, merged, render

CHART = str(rendering.CHART)
VALUES: JSON = {"simulatedNode": "a30x4", "webhook": {"enabled": False}}
KINDS = {
    "ConfigMap": Kind("v1", "configmaps", namespaced=True),
    "ServiceAccount": Kind("v1", "serviceaccounts", namespaced=True),
    "Secret": Kind("v1", "secrets", namespaced=True),
    "Pod": Kind("v1", "pods", namespaced=True),
    "DaemonSet": Kind("apps/v1", "daemonsets", namespaced=True),
    "Deployment": Kind("apps/v1", "deployments", namespaced=True),
    "Lease": Kind("coordination.k8s.io/v1", "leases", namespaced=True),
    "Role": Kind("rbac.authorization.k8s.io/v1", "roles", namespaced=True),
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings", namespaced=True),
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "DeviceClass": Kind("resource.k8s.io/v1", "deviceclasses"),
    "ResourceClaimTemplate": Kind("resource.k8s.io/v1", "resourceclaimtemplates", namespaced=True),
    "ValidatingAdmissionPolicy": Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings"),
}


def left(client: ApiClient, namespace: str) -> set[tuple[str, str]]:
    """What is Helm's of these kinds in the namespace, and in none: (kind, name)."""
    return {
        (name, one["metadata"]["name"])
        for name, kind in KINDS.items()
        for one in client.list(kind, namespace=namespace).items
        if {"Helm", "helm"} & set((one["metadata"].get("labels") or {}).values())
    }


@pytest.fixture
def helm(kubeconfig: Path, client: ApiClient) -> Iterator[tuple[helm_python.Config, str]]:
    """Helm, and a new namespace to install to."""
    namespace = f"gpus-{uuid.uuid4().hex[:8]}"
    client.create(Kind("v1", "namespaces"), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    with helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace) as config:
        yield config, namespace
        with contextlib.suppress(helm_python.HelmNotFoundError):  # where the test has done so
            config.uninstall("release")


def test_an_uninstall_leaves_no_object(helm: tuple[helm_python.Config, str], client: ApiClient) -> None:
    config, namespace = helm
    before = left(client, namespace)
    config.install(CHART, "release", VALUES, namespace=namespace)
    there = {name for name, _ in left(client, namespace) - before if name != "Secret"}
    assert there == {one["kind"] for one in render(VALUES)} - {"Pod", "ResourceClaimTemplate"}
    config.uninstall("release")
    assert left(client, namespace) == before


def test_upgrade_and_rollback_keep_running_pods_where_only_the_policy_changes(
    helm: tuple[helm_python.Config, str], client: ApiClient
) -> None:
    config, namespace = helm
    name = find(render(VALUES), "DaemonSet")["metadata"]["name"]

    def template() -> JSON:
        found: JSON = client.get(KINDS["DaemonSet"], name, namespace)["spec"]["template"]
        return found

    def policy() -> str:
        (one,) = (
            one
            for one in client.list(KINDS["ConfigMap"], namespace=namespace).items
            if "policy" in one["metadata"]["name"]
        )
        return str(one["data"]["policy.yaml"])

    config.install(CHART, "release", VALUES, namespace=namespace)
    first = template()
    config.upgrade(CHART, "release", merged(VALUES, {"policy": {"gpus": [{"mig": "dynamic"}]}}))
    assert "mig: dynamic" in policy()
    assert template() == first
    config.upgrade(CHART, "release", merged(VALUES, {"logVerbosity": 4}))
    assert template() != first
    config.rollback("release", version=1)
    assert template() == first
    assert policy().strip() == "{}"


def test_the_last_step_before_an_uninstall_replaces_the_drivers_pods(
    helm: tuple[helm_python.Config, str], client: ApiClient
) -> None:
    config, namespace = helm
    config.install(CHART, "release", VALUES, namespace=namespace)
    config.upgrade(CHART, "release", merged(VALUES, {"cleanup": {"enabled": True}}))
    (only,) = client.list(KINDS["DaemonSet"], namespace=namespace).items
    assert only["metadata"]["name"].endswith("-cleanup")


def cluster_policy(client: ApiClient, enabled: bool) -> None:
    """The GPU Operator's kind, and one that says whether it installs the driver."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterpolicies.nvidia.com"},
        "spec": {
            "group": "nvidia.com",
            "scope": "Cluster",
            "names": {"plural": "clusterpolicies", "kind": "ClusterPolicy", "listKind": "ClusterPolicyList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    client.create(Kind("apiextensions.k8s.io/v1", "customresourcedefinitions"), definition)
    value = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": {"driver": {"enabled": enabled}},
    }
    client.create(Kind("nvidia.com/v1", "clusterpolicies"), value)


@pytest.mark.parametrize(("enabled", "root"), [(True, "/run/nvidia/driver"), (False, "/")])
def test_the_gpu_operators_driver_container_is_found(enabled: bool, root: str, tmp_path: Path) -> None:
    with ApiServer(ApiServerOptions()) as server:
        path = server.write_kubeconfig(tmp_path / "kubeconfig")
        with connect(path) as client, helm_python.Config(kubeconfig_path=path, namespace="gpus") as config:
            cluster_policy(client, enabled)
            client.create(
                Kind("v1", "namespaces"), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpus"}}
            )
            config.install(CHART, "release", {}, namespace="gpus")
            (daemonset,) = client.list(KINDS["DaemonSet"]).items
            paths = {
                one["name"]: one["hostPath"]["path"]
                for one in daemonset["spec"]["template"]["spec"]["volumes"]
                if "hostPath" in one
            }
            assert paths["driver-root"] == root


@pytest.mark.parametrize(
    ("minor", "served", "expected"),
    [(33, ("v1beta1",), "v1beta1"), (33, ("v1beta1", "v1beta2"), "v1beta2"), (34, None, "v1"), (32, None, None)],
)
def test_the_version_of_the_api_is_the_newest_that_the_server_has(
    minor: int, served: tuple[str, ...] | None, expected: str | None, tmp_path: Path
) -> None:
    options = ApiServerOptions(minor=minor, resource_versions=served)
    with ApiServer(options) as server:
        path = server.write_kubeconfig(tmp_path / "kubeconfig")
        with connect(path) as client, helm_python.Config(kubeconfig_path=path, namespace="gpus") as config:
            client.create(
                Kind("v1", "namespaces"), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpus"}}
            )
            if expected is None:
                with pytest.raises(helm_python.HelmError, match="the cluster serves no version of"):
                    config.install(CHART, "release", VALUES, namespace="gpus")
                return
            config.install(CHART, "release", VALUES, namespace="gpus")
            assert len(client.list(Kind(f"resource.k8s.io/{expected}", "deviceclasses")).items) == 3
