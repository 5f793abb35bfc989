# SPDX-License-Identifier: Apache-2.0
"""What the API server offers: as a table, and asked of servers of several releases with and without permissions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient, Connection, Kind, load_credentials
from dra_driver.kube.kinds import NODES, slices_of
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServerOptions
from kubeletplugin.check.cluster import (
    PERMITTED,
    WANTED,
    ClusterFacts,
    NodeVersions,
    Permission,
    ask_cluster,
    cluster_findings,
)
from kubeletplugin.finding import Level
from tests.support.faultyserver import FaultyServer, RequestFault

from .support import levels, of_level, only

pytestmark = pytest.mark.cluster

GOOD = ClusterFacts(
    server="https://api:6443",
    version="v1.36.2",
    served=("v1",),
    gates={"DRAPartitionableDevices": True, "DRADeviceTaints": True, "DRAConsumableCapacity": True},
    node=NodeVersions("v1.36.2", "containerd://2.1.4", "6.18", "Debian"),
)


def test_a_cluster_in_good_order_passes() -> None:
    checks = ["api server", "resource.k8s.io", "feature gates", "permissions", "node"]
    assert levels(cluster_findings(GOOD, "node-a")) == [(check, "pass") for check in checks]


@pytest.mark.parametrize(
    ("change", "check", "level", "says"),
    [
        ({"version": "v1.31.4"}, "api server", "fail", "older than 1.32"),
        ({"version": "v1.38.0"}, "api server", "warn", "newer than 1.37"),
        ({"version": "dev"}, "api server", "warn", "'dev'"),
        ({"served": ()}, "resource.k8s.io", "fail", "not served"),
        ({"served": ("v1alpha3",)}, "resource.k8s.io", "fail", "only v1alpha3"),
        ({"gates": {"DRAPartitionableDevices": False}}, "feature gates", "warn", "MIG devices cannot be created"),
        ({"denied": ("create resourceslices", "get nodes")}, "permissions", "fail", "create resourceslices, get nodes"),
        ({"node": None, "untold": {"node": "the name of the Node is unknown"}}, "node", "warn", "the name of the Node"),
        ({"untold": {"feature gates": "403"}}, "feature gates", "warn", "403"),
        ({"untold": {"permissions": "404"}}, "permissions", "warn", "404"),
        ({"untold": {"resource.k8s.io": "403"}}, "resource.k8s.io", "warn", "403"),
    ],
)
def test_problem_is_named_with_a_remedy(change: dict[str, object], check: str, level: str, says: str) -> None:
    findings = cluster_findings(replace(GOOD, **change), "node-a")  # type: ignore[arg-type]
    found = only(one for one in findings if one.check == check)
    assert str(found.level) == level
    assert says in found.text
    assert bool(found.remedy)


@contextmanager
def server(options: ApiServerOptions, folder: Path) -> Iterator[tuple[FaultyServer, Path]]:
    """A server with the Node node-a, and its administrator's kubeconfig."""
    with FaultyServer(options) as running:
        kubeconfig = running.write_kubeconfig(folder / "admin")
        with Connection(load_credentials(str(kubeconfig)), "tests") as connection:
            metadata = {"name": "node-a", "annotations": {"k3s.io/node-args": '["agent"]', "rke2.io/node-args": "no"}}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
            client = ApiClient(connection)
            made = client.create(NODES, node)
            made["status"] = {
                "nodeInfo": {"kubeletVersion": "v1.36.0", "containerRuntimeVersion": "containerd://2.1.4"}
            }
            client.update(NODES, made, subresource="status")
        yield running, kubeconfig


@pytest.mark.parametrize(
    ("options", "gates"),
    [
        (ApiServerOptions(minor=36), [True, True, True]),
        (ApiServerOptions(minor=37), [True, True, True]),
        (ApiServerOptions(minor=34), [False, False, False]),
        (ApiServerOptions(minor=34, gates={"DRAPartitionableDevices": True}), [True, False, False]),
        (ApiServerOptions(minor=35, gates={"DRADeviceTaints": True}), [False, True, False]),
        (ApiServerOptions(minor=33, resource_versions=("v1beta1", "v1beta2")), [False, False, False]),
    ],
    ids=lambda one: f"1.{one.minor}" if isinstance(one, ApiServerOptions) else "",
)
def test_gates_are_found_by_what_the_server_keeps(tmp_path: Path, options: ApiServerOptions, gates: list[bool]) -> None:
    with server(options, tmp_path) as (_, kubeconfig):
        facts = ask_cluster(str(kubeconfig), "node-a", in_pod=False)
    assert list(facts.gates.values()) == gates
    assert facts.untold == {}
    assert facts.node is not None
    assert facts.node.runtime == "containerd://2.1.4"
    assert facts.node.arguments == {"k3s": ("agent",)}
    assert not of_level(cluster_findings(facts, "node-a"), Level.FAIL)


def test_a_server_without_the_api_is_told_from_one_that_cannot_be_asked(tmp_path: Path) -> None:
    with server(ApiServerOptions(minor=32, resource_versions=()), tmp_path) as (_, kubeconfig):
        findings = cluster_findings(ask_cluster(str(kubeconfig), "node-a", in_pod=False), "node-a")
        assert of_level(findings, Level.FAIL) == ["resource.k8s.io"]


def test_nothing_is_left_on_the_server(tmp_path: Path) -> None:
    with server(ApiServerOptions(), tmp_path) as (_, kubeconfig):
        ask_cluster(str(kubeconfig), "node-a", in_pod=False)
        with Connection(load_credentials(str(kubeconfig)), "tests") as connection:
            assert ApiClient(connection).list(slices_of(V1)).items == []


def grant(kubeconfig: Path, rules: list[dict[str, list[str]]]) -> None:
    """Give the driver's service account these rules."""
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": "driver"}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "driver"}
    with Connection(load_credentials(str(kubeconfig)), "tests") as connection:
        client = ApiClient(connection)
        client.create(
            Kind(f"{group}/v1", "clusterroles"),
            {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "driver"}, "rules": rules},
        )
        client.create(
            Kind(f"{group}/v1", "clusterrolebindings"),
            {
                "apiVersion": f"{group}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "driver"},
                "roleRef": role,
                "subjects": [subject],
            },
        )


def rule(one: Permission) -> dict[str, list[str]]:
    """A rule of a role."""
    names = {"resourceNames": [one.name]} if one.name else {}
    return {"apiGroups": [one.group], "resources": [one.resource], "verbs": list(one.verbs), **names}


ALL_RULES = [rule(one) for one in (*PERMITTED, *WANTED)]
NO_NODES = [rule for rule in ALL_RULES if rule["resources"] != ["nodes"]]
NO_SLICES = [rule for rule in ALL_RULES if rule["resources"] != ["resourceslices"]]
NO_EVENTS = [rule for rule in ALL_RULES if rule["resources"] != ["events"]]


@pytest.mark.parametrize(
    ("rules", "denied", "reduced", "untold"),
    [
        (ALL_RULES, (), (), set[str]()),
        (NO_NODES, ("get nodes",), (), {"node"}),
        (NO_SLICES, tuple(f"{verb} resourceslices" for verb in PERMITTED[0].verbs), (), {"feature gates"}),
        (NO_EVENTS, (), ("create events", "patch events"), set[str]()),
    ],
    ids=["all", "no nodes", "no slices", "no events"],
)
def test_permissions_are_those_of_the_identity_that_asks(
    tmp_path: Path,
    rules: list[dict[str, list[str]]],
    denied: tuple[str, ...],
    reduced: tuple[str, ...],
    untold: set[str],
) -> None:
    with server(ApiServerOptions(rbac=True), tmp_path) as (running, kubeconfig):
        grant(kubeconfig, rules)
        token = running.add_service_account("default", "driver", node="node-a")
        own = running.write_kubeconfig(tmp_path / "driver", token=token)
        facts = ask_cluster(str(own), "node-a", in_pod=True)
    assert (facts.denied, facts.reduced, set(facts.untold)) == (denied, reduced, untold)
    findings = [one for one in cluster_findings(facts, "node-a") if one.check == "permissions"]
    assert (Level.FAIL in [one.level for one in findings]) == bool(denied)
    assert (Level.WARN in [one.level for one in findings]) == bool(reduced)


def test_a_server_that_fails_one_question_still_answers_the_others(tmp_path: Path) -> None:
    with server(ApiServerOptions(), tmp_path) as (running, kubeconfig):
        running.faults.add(RequestFault(verb="create", resource="resourceslices", error=500))
        facts = ask_cluster(str(kubeconfig), "node-b", in_pod=False)
    assert set(facts.untold) == {"feature gates", "node"}
    assert facts.denied == ()


def test_a_cluster_that_nobody_named_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = only(cluster_findings(ask_cluster(None, "", in_pod=False), ""))
    assert found.level == Level.WARN
    assert found.text.startswith("not checked: no cluster given")
    found = only(cluster_findings(ask_cluster(str(tmp_path / "missing"), "", in_pod=False), ""))
    assert found.level == Level.FAIL
    assert "--kubeconfig" in found.remedy


def test_a_server_that_does_not_answer_is_a_failure(tmp_path: Path) -> None:
    with server(ApiServerOptions(), tmp_path) as (_, kubeconfig):
        pass
    found = only(cluster_findings(ask_cluster(str(kubeconfig), "node-a", in_pod=False), "node-a"))
    assert found.level == Level.FAIL
    assert "can reach it" in found.remedy
