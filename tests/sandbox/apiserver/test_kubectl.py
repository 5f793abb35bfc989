# SPDX-License-Identifier: Apache-2.0
"""kubectl, unchanged, against the server. Skipped where there is no kubectl."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.faultyserver import FaultyServer

from .binaries import binary

KUBECTL = binary("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="no kubectl in KUBEBUILDER_ASSETS or on the PATH")

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: four, labels: {app: demo}}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: a, image: "a:1"}, {name: b, image: "b:1"}]}
"""


class Kubectl:
    """Runs kubectl with a home of its own."""

    def __init__(self, kubeconfig: Path) -> None:
        self.home = kubeconfig.parent
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "KUBECONFIG": str(kubeconfig)}

    def __call__(self, *arguments: str, stdin: str = "", fails: bool = False, **more: str) -> str:
        assert KUBECTL is not None
        done = subprocess.run(
            [KUBECTL, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={**self.environment, **more},
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stderr or done.stdout
        return done.stderr if fails else done.stdout

    def first_line(self, *arguments: str) -> str:
        """What a command that goes on says first; then it is killed."""
        assert KUBECTL is not None
        command = [KUBECTL, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.kill()
        return line

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))

    def forget_discovery(self) -> None:
        shutil.rmtree(self.home / ".kube" / "cache" / "discovery")


@pytest.fixture(scope="module")
def kubectl(server: FaultyServer, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """For `server`. The tests share what kubectl remembers of the server's kinds."""
    return Kubectl(server.write_kubeconfig(tmp_path_factory.mktemp("kubectl") / "kubeconfig"))


@pytest.fixture(scope="module")
def only_v1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """For a server with the versions that Kubernetes 1.36 serves unasked."""
    with FaultyServer(ApiServerOptions(minor=36)) as server:
        yield Kubectl(server.write_kubeconfig(tmp_path_factory.mktemp("only-v1") / "kubeconfig"))


def test_objects_are_applied_shown_and_deleted(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", stdin=CLAIM) == "resourceclaim.resource.k8s.io/four created\n"
    # The list of requests has no merge key and the server has filled in defaults: a real server prints this too.
    assert kubectl("apply", "-f", "-", stdin=CLAIM) == "resourceclaim.resource.k8s.io/four configured\n"
    header, row = kubectl("get", "resourceclaims").splitlines()
    assert header.split() == ["NAME", "STATE", "AGE"]
    assert row.split()[:2] == ["four", "pending"]
    described = kubectl("describe", "resourceclaim", "four")
    assert "Allocation Mode:" in described
    assert "Events:" in described
    assert "gpu.nvidia.com" in kubectl("get", "resourceclaims.v1.resource.k8s.io", "four", "-o", "yaml")
    assert kubectl("get", "resourceclaims", "-l", "app=other") == ""
    assert "deleted" in kubectl("delete", "resourceclaim", "four")


def test_client_side_apply_merges_lists_by_their_keys(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", stdin=DEPLOYMENT) == "deployment.apps/web created\n"
    assert kubectl("apply", "-f", "-", stdin=DEPLOYMENT) == "deployment.apps/web unchanged\n"
    kubectl(
        "patch", "deployment", "web", "-p", '{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"c:1"}]}}}}'
    )
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("b:1", "b:2"))
    containers = kubectl.json("get", "deployment", "web")["spec"]["template"]["spec"]["containers"]
    images = {container["name"]: container["image"] for container in containers}
    assert images == {"a": "a:1", "b": "b:2", "c": "c:1"}
    kubectl("delete", "deployment", "web")


def test_server_side_apply_reports_conflicts(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", "-f", "-", stdin=DEPLOYMENT)
    other = DEPLOYMENT.replace("a:1", "a:2")
    refused = kubectl("apply", "--server-side", "--field-manager", "other", "-f", "-", stdin=other, fails=True)
    assert 'conflict with "kubectl": .spec.template.spec.containers[name="a"].image' in refused
    kubectl("apply", "--server-side", "--field-manager", "other", "--force-conflicts", "-f", "-", stdin=other)
    kubectl("delete", "deployment", "web")


def test_server_side_apply_takes_over_fields_of_client_side_apply(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    without_b = DEPLOYMENT.replace(', {name: b, image: "b:1"}', "").replace("a:1", "a:2")
    kubectl("apply", "--server-side", "-f", "-", stdin=without_b)
    found = kubectl.json("get", "deployment/web", "--show-managed-fields")
    kubectl("delete", "deployment", "web")
    assert [(entry["name"], entry["image"]) for entry in found["spec"]["template"]["spec"]["containers"]] == [
        ("a", "a:2")
    ]
    managers = [(entry["manager"], entry["operation"]) for entry in found["metadata"]["managedFields"]]
    assert ("kubectl", "Apply") in managers
    assert ("kubectl-client-side-apply", "Update") not in managers


def test_unknown_fields_are_refused_by_the_server(kubectl: Kubectl) -> None:
    wrong = CLAIM.replace("exactly:", "basic:")
    refused = kubectl("create", "-f", "-", stdin=wrong, fails=True)
    assert 'unknown field "spec.devices.requests[0].basic"' in refused


@pytest.mark.parametrize(
    ("command", "version", "kind"),
    [
        *((command, "foo.bar/v1", "Baz") for command in ("apply", "apply --server-side", "create", "replace")),
        ("apply --validate=strict", "resource.k8s.io/v1", "Baz"),
        ("apply", "resource.k8s.io/v1beta1", "ResourceClaim"),
    ],
)
def test_unknown_kind_is_named(only_v1: Kubectl, command: str, version: str, kind: str) -> None:
    manifest = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n"
    refused = only_v1(*command.split(), "-f", "-", stdin=manifest, fails=True)
    assert refused == (
        'error: resource mapping not found for name: "x" namespace: "" from "STDIN": '
        f'no matches for kind "{kind}" in version "{version}"\nensure CRDs are installed first\n'
    )


def test_an_edited_object_is_stored(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "edited", "--from-literal=a=before")
    kubectl("edit", "configmap", "edited", KUBE_EDITOR="sed -i s/before$/after/")
    assert kubectl.json("get", "configmap", "edited")["data"] == {"a": "after"}


CREATED = {
    "namespaces": "create namespace made",
    "configmaps": "create configmap made --from-literal=a=b",
    "secrets": "create secret generic made --from-literal=a=b",
    "serviceaccounts": "create serviceaccount made",
    "roles": "create role made --verb=get --resource=pods",
    "rolebindings": "create rolebinding made --role=made --serviceaccount=default:made",
    "clusterroles": "create clusterrole made --verb=get,list --resource=nodes",
    "clusterrolebindings": "create clusterrolebinding made --clusterrole=made --user=bob",
    "deployments": "create deployment made --image=a --replicas=0",
    "jobs": "create job made --image=a",
    "cronjobs": "create cronjob made --image=a --schedule=@daily",
    "services": "create service clusterip made --tcp=80:8080",
    "priorityclasses": "create priorityclass made --value=5",
    "poddisruptionbudgets": "create poddisruptionbudget made --min-available=1 --selector=a=b",
    "pods": "run made --image=a",
}
"""Resources, and the commands that create an object of them."""


@pytest.fixture(scope="module")
def reached(kubectl: Kubectl) -> str:
    """The name of a pod."""
    kubectl("run", "reached", "--image=busybox")
    return "reached"


@pytest.mark.parametrize("command", ["logs {}", "exec {} -- true", "attach {}"])
def test_command_that_needs_a_program_is_refused_in_one_sentence(kubectl: Kubectl, reached: str, command: str) -> None:
    refused = kubectl(*command.format(reached).split(), fails=True)
    assert refused.strip().endswith(": containers run no programs here")


def test_cron_jobs_and_quotas_have_columns(kubectl: Kubectl) -> None:
    kubectl("create", "cronjob", "nightly", "--image=busybox", "--schedule=0 1 * * *")
    rows = kubectl("get", "all").splitlines()
    (cron_job,) = (row.split() for row in rows if row.startswith("cronjob.batch/nightly "))
    assert cron_job[:-1] == ["cronjob.batch/nightly", "0", "1", "*", "*", "*", "<none>", "False", "0", "<none>"]
    kubectl("create", "quota", "small", "--hard=pods=3,limits.cpu=4")
    assert kubectl("get", "quota").splitlines()[0].split() == ["NAME", "REQUEST", "LIMIT", "AGE"]
    kubectl("delete", "cronjob/nightly", "quota/small")


def test_kubectl_makes_and_describes_objects_of_its_own(kubectl: Kubectl) -> None:
    for command in CREATED.values():
        kubectl(*command.split())
    names = [f"{resource}/made" for resource in CREATED]
    shown = {item["kind"]: item for item in kubectl.json("get", *names)["items"]}
    assert len(shown) == len(CREATED)
    assert shown["Deployment"]["spec"]["replicas"] == 0
    assert kubectl("describe", *names).count("Name:  ") >= len(CREATED)


def test_waiting_and_watching_end(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=CLAIM.replace("four", "waited"))
    status = (
        '{"status":{"allocation":{"devices":{"results":[{"request":"gpu","driver":"d","pool":"p","device":"x"}]}}}}'
    )
    kubectl("patch", "resourceclaim", "waited", "--subresource=status", "--type=merge", "-p", status)
    kubectl(
        "wait",
        "resourceclaim/waited",
        "--for=jsonpath={.status.allocation.devices.results[0].device}=x",
        "--timeout=20s",
    )
    assert "allocated" in kubectl("get", "resourceclaim", "waited")
    kubectl("delete", "resourceclaim", "waited", "--wait=true")
    kubectl("wait", "resourceclaim/waited", "--for=delete", "--timeout=20s")
    kubectl("create", "configmap", "watched")
    assert kubectl.first_line("get", "configmaps", "-w").split() == ["NAME", "DATA", "AGE"]


DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: domains.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: domains, kind: Domain, shortNames: [dom]}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {nodes: {type: integer}}}}}
"""
DOMAIN = """
apiVersion: example.com/v1
kind: Domain
metadata: {name: d}
spec: {nodes: 3}
"""


def test_a_definition_is_established_and_its_objects_shown(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=DEFINITION)
    kubectl("wait", "crd/domains.example.com", "--for=condition=established", "--timeout=20s")
    kubectl("apply", "-f", "-", stdin=DOMAIN)
    assert kubectl("get", "dom", "-o", "jsonpath={.items[0].spec.nodes}") == "3"
    kubectl("delete", "crd", "domains.example.com")
    kubectl.forget_discovery()
    assert "the server doesn't have a resource type" in kubectl("get", "domains", fails=True)


def test_kubectl_asks_about_the_server_and_the_user(kubectl: Kubectl, server: FaultyServer) -> None:
    assert "Server Version: v1.36.0" in kubectl("version")
    assert "resourceslices" in kubectl("api-resources", "--api-group=resource.k8s.io")
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    assert "kubernetes-admin" in kubectl("auth", "whoami")
    assert "deviceClassName" in kubectl("explain", "resourceclaim.spec.devices.requests.exactly")
    assert server.url in kubectl("cluster-info")
    kubectl("create", "serviceaccount", "tokened")
    token = kubectl("create", "token", "tokened").strip()
    assert "system:serviceaccount:default:tokened" in kubectl(
        "auth", "whoami", f"--token={token}", "--kubeconfig", no_user(kubectl)
    )


def no_user(kubectl: Kubectl) -> str:
    """A copy of the kubeconfig without its user's token, which would win over a flag."""
    source = Path(kubectl.environment["KUBECONFIG"])
    copy = source.with_name("no-user")
    shutil.copy(source, copy)
    kubectl("config", "unset", "users", "--kubeconfig", str(copy))
    return str(copy)
