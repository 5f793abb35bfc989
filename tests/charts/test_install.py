# SPDX-License-Identifier: Apache-2.0
"""Install, upgrade, rollback and uninstall by Helm, on an API server (a real one with KUBEBUILDER_ASSETS)."""

import contextlib
import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import helm_python
import pytest
import yaml

from dra_driver.kube.api import ApiClient, Connection, Kind, load_credentials
from dra_driver.kube.kinds import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEFINITIONS,
    DEPLOYMENTS,
    LEASES,
    NAMESPACES,
    PODS,
    ROLES,
    SERVICE_ACCOUNTS,
    classes_of,
    templates_of,
)
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from tests.support.apiserver import api_server, connect

from . import rendering
from .policies import delete
from .rendering import JSON, find, merged, render

CHART = str(rendering.CHART)
VALUES: JSON = {"simulatedNode": "a30x4", "webhook": {"enabled": False}}
OTHERS_DEFINITIONS: JSON = {"resources": {"computeDomains": {"installCRDs": False}}}
NEWER = ("podMonitor", "serviceMonitor", "resourceQuota", "policy", "featureGates", "cleanup", "test", "logFormat")
"""What a chart could be without."""
KINDS = {
    "CustomResourceDefinition": DEFINITIONS,
    "ConfigMap": CONFIG_MAPS,
    "ServiceAccount": SERVICE_ACCOUNTS,
    "Secret": Kind("v1", "secrets", namespaced=True),
    "Pod": PODS,
    "DaemonSet": DAEMON_SETS,
    "Deployment": DEPLOYMENTS,
    "Lease": LEASES,
    "Role": ROLES,
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings", namespaced=True),
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "DeviceClass": classes_of(V1),
    "ResourceClaimTemplate": templates_of(V1),
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


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a server with TLS, without which Helm sends no token."""
    with api_server(tmp_path_factory.mktemp("apiserver"), tls=True) as path:
        yield path


@pytest.fixture(scope="module")
def client(kubeconfig: Path) -> Iterator[ApiClient]:
    with connect(kubeconfig) as connected:
        yield connected


@pytest.fixture
def helm(kubeconfig: Path, client: ApiClient) -> Iterator[tuple[helm_python.Config, str]]:
    """Helm, and a new namespace to install to."""
    namespace = f"gpus-{uuid.uuid4().hex[:8]}"
    client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    with helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace) as config:
        yield config, namespace
        with contextlib.suppress(helm_python.HelmNotFoundError):  # where the test has done so
            config.uninstall("release")
    remove_definitions(client)


def remove_definitions(client: ApiClient) -> None:
    """Delete the definitions, which Helm keeps."""
    for one in render(VALUES):
        if one["kind"] == "CustomResourceDefinition":
            delete(client, KINDS["CustomResourceDefinition"], one["metadata"]["name"])


def test_an_uninstall_leaves_the_definitions_and_no_other_object(
    helm: tuple[helm_python.Config, str], client: ApiClient
) -> None:
    config, namespace = helm
    before = left(client, namespace)
    config.install(CHART, "release", VALUES, namespace=namespace)
    there = {name for name, _ in left(client, namespace) - before if name != "Secret"}
    assert there == {one["kind"] for one in render(VALUES)} - {"Pod", "ResourceClaimTemplate"}
    config.uninstall("release")
    kept = left(client, namespace) - before
    assert {kind for kind, _ in kept} == {"CustomResourceDefinition"}
    config.install(CHART, "release", VALUES, namespace=namespace)  # the definitions are still this release's
    assert kept < left(client, namespace)


@pytest.mark.skipif(shutil.which("helm") is None, reason="no helm")
def test_definitions_of_nvidias_chart_are_taken_over(
    helm: tuple[helm_python.Config, str], client: ApiClient, kubeconfig: Path
) -> None:
    """As values.yaml says. They were installed from a folder `crds`, without Helm's annotations."""
    config, namespace = helm
    for one in render(VALUES):
        if one["kind"] == "CustomResourceDefinition":
            theirs = {**one, "metadata": {"name": one["metadata"]["name"]}}
            client.create(KINDS["CustomResourceDefinition"], theirs)
    with pytest.raises(helm_python.HelmError, match="exists and cannot be imported"):
        config.install(CHART, "release", VALUES, namespace=namespace)
    command = ["helm", "upgrade", "--install", "release", CHART, "--kubeconfig", str(kubeconfig)]
    for more in (["--take-ownership"], []):
        arguments = [*command, "--namespace", namespace, "--set", "simulatedNode=a30x4", *more]
        subprocess.run(arguments, check=True, timeout=60, capture_output=True)
    config.uninstall("release")
    config.install(CHART, "release", merged(VALUES, OTHERS_DEFINITIONS), namespace=namespace)


def test_a_second_release_needs_classes_that_are_not_its_own(
    helm: tuple[helm_python.Config, str], client: ApiClient
) -> None:
    """Two releases may drive different nodes; whose the DeviceClasses are is then to be said."""
    config, namespace = helm
    config.install(CHART, "release", VALUES, namespace=namespace)
    with pytest.raises(helm_python.HelmError, match="exists and cannot be imported"):
        config.install(CHART, "second", VALUES, namespace=namespace)
    with contextlib.suppress(helm_python.HelmNotFoundError):
        config.uninstall("second")
    others = {"deviceClasses": {"create": False}, "resources": {"computeDomains": {"enabled": False}}}
    config.install(CHART, "second", merged(VALUES, others), namespace=namespace)
    assert len(client.list(KINDS["DaemonSet"], namespace=namespace).items) == 2
    config.uninstall("second")
    for one in render(VALUES):
        if one["kind"] == "DeviceClass":
            client.get(KINDS["DeviceClass"], one["metadata"]["name"])


def test_an_upgrade_from_an_older_chart_reuses_its_values_and_replaces_its_definitions(
    helm: tuple[helm_python.Config, str], client: ApiClient, tmp_path: Path
) -> None:
    """There are no values for what is newer. Helm does not upgrade the definitions of its folder `crds`."""
    config, namespace = helm
    older = tmp_path / "dra-driver-gpu"
    shutil.copytree(CHART, older)
    values = yaml.safe_load((older / "values.yaml").read_text(encoding="utf-8"))
    for key in NEWER:
        del values[key]
    (older / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    path = older / "files/crds/computedomaincliques.yaml"
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    fields = value["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["daemons"]["items"]["properties"]
    expected = set(fields)
    del fields["domainState"]
    path.write_text(yaml.safe_dump(value), encoding="utf-8")

    def stored() -> set[str]:
        found = client.get(KINDS["CustomResourceDefinition"], value["metadata"]["name"])
        schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return set(schema["properties"]["daemons"]["items"]["properties"])

    config.install(str(older), "release", VALUES, namespace=namespace)
    assert stored() == set(fields)
    config.upgrade(CHART, "release", {"logVerbosity": 4}, reuse_values=True)
    assert stored() == expected
    (daemonset,) = client.list(KINDS["DaemonSet"], namespace=namespace).items
    told = {one["name"]: one.get("value") for one in daemonset["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert told["LOG_VERBOSITY"] == "4"
    assert told["SIMULATED_NODE"] == VALUES["simulatedNode"]


def test_manifests_can_be_applied_twice_without_helm(kubeconfig: Path, client: ApiClient) -> None:
    """As `helm template --no-hooks | kubectl apply --server-side -f -` and Argo CD do; the second changes nothing."""
    namespace = f"gpus-{uuid.uuid4().hex[:8]}"
    client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    objects = [one for one in render(VALUES, namespace=namespace) if not is_hook(one)]
    places = [(KINDS[one["kind"]], one["metadata"]["name"], one["metadata"].get("namespace", "")) for one in objects]
    with Connection(load_credentials(str(kubeconfig)), "tests") as connection:

        def apply() -> list[str]:
            versions = []
            for one, (kind, name, where) in zip(objects, places, strict=True):
                path = f"{kind.path(where, name)}?fieldManager=kubectl"
                body = json.dumps(one).encode()
                answer = connection.request("PATCH", path, body=body, content_type="application/apply-patch+yaml")
                assert answer.status in (200, 201), answer.data
                meta = json.loads(answer.data)["metadata"]
                # The API server writes the status of a definition at some time.
                versions.append(
                    str(meta["generation"]) if kind.plural.startswith("customres") else meta["resourceVersion"]
                )
            return versions

        try:
            assert apply() == apply()
        finally:
            for kind, name, where in places:
                delete(client, kind, name, where)


def is_hook(value: JSON) -> bool:
    """Whether Helm makes an object for a while only."""
    return "helm.sh/hook" in (value["metadata"].get("annotations") or {})


def test_upgrade_and_rollback_keep_running_pods_where_only_the_policy_changes(
    helm: tuple[helm_python.Config, str], client: ApiClient
) -> None:
    """Also after the last step before an uninstall, which replaces the driver's pods."""
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
    config.upgrade(CHART, "release", merged(VALUES, {"cleanup": {"enabled": True}}))
    (only,) = client.list(KINDS["DaemonSet"], namespace=namespace).items
    assert only["metadata"]["name"].endswith("-cleanup")
    config.rollback("release", version=1)
    assert template() == first
    assert policy().strip() == "{}"


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
    client.create(DEFINITIONS, definition)
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
            client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpus"}})
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
    [(33, ("v1beta1",), "v1beta1"), (33, ("v1beta1", "v1beta2"), "v1beta2"), (32, None, None)],
)
def test_the_version_of_the_api_is_the_newest_that_the_server_has(
    minor: int, served: tuple[str, ...] | None, expected: str | None, tmp_path: Path
) -> None:
    """The other tests install on servers with v1."""
    options = ApiServerOptions(minor=minor, resource_versions=served)
    with ApiServer(options) as server:
        path = server.write_kubeconfig(tmp_path / "kubeconfig")
        with connect(path) as client, helm_python.Config(kubeconfig_path=path, namespace="gpus") as config:
            client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpus"}})
            if expected is None:
                with pytest.raises(helm_python.HelmError, match="the cluster serves no version of"):
                    config.install(CHART, "release", VALUES, namespace="gpus")
                return
            config.install(CHART, "release", VALUES, namespace="gpus")
            assert len(client.list(Kind(f"resource.k8s.io/{expected}", "deviceclasses")).items) == 5
