# SPDX-License-Identifier: Apache-2.0
"""A cluster says the same as its objects in files."""

import json
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import CONFIG_MAPS, DAEMON_SETS, DEFINITIONS, DEPLOYMENTS, NAMESPACES, NODES, PODS
from tests.dryrun.conftest import DryRun
from tests.support.apiserver import embedded

from .build import A100, JSON, T4, Migrate, config, config_map, deployment, mig_parted, node, plugin, pod, sharing

pytestmark = pytest.mark.cluster

KINDS = {
    "Node": NODES,
    "Pod": PODS,
    "ConfigMap": CONFIG_MAPS,
    "DaemonSet": DAEMON_SETS,
    "Deployment": DEPLOYMENTS,
}
LABELS = {"nvidia.com/device-plugin.config": "shared"}


def objects() -> list[JSON]:
    manager = plugin()
    manager["metadata"]["name"] = "mig-manager"
    containers = [{"name": "m", "image": "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.15.0"}]
    volumes = [{"name": "mig-parted-config", "configMap": {"name": "mig-parted"}}]
    manager["spec"]["template"]["spec"] = {"containers": containers, "volumes": volumes}
    shared = config(sharing=sharing({"nvidia.com/gpu": 2}, renameByDefault=True))
    return [
        node("a100", A100, 1, gpu=0, labels={"nvidia.com/mig.config": "half"}),
        node("t4", T4, 1, labels=LABELS),
        config_map("configs", default=config("mixed"), shared=shared),
        config_map("mig-parted", **{"config.yaml": mig_parted(half=[("all", {"3g.20gb": 2})])}),
        plugin(configs="configs"),
        manager,
        deployment(1, "nvidia.com/gpu.shared"),
        pod("nvidia.com/mig-3g.20gb"),
    ]


def install_kind(client: ApiClient, version: str, kind: str, *, namespaced: bool = True) -> None:
    """Let the server have a kind of another project, with any fields. `version` is the group and the version."""
    group, _, served = version.partition("/")
    plural = f"{kind.lower()}s" if kind[-1] != "y" else f"{kind.lower()[:-1]}ies"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    value = {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced" if namespaced else "Cluster",
            "versions": [{"name": served, "served": True, "storage": True, "schema": schema}],
        },
    }
    client.create(DEFINITIONS, value)


def store(client: ApiClient, value: JSON) -> None:
    namespace = value["metadata"].get("namespace", "" if value["kind"] == "Node" else "default")
    made = client.create(KINDS[value["kind"]], value, namespace)
    if value["kind"] == "Node":
        client.update(KINDS["Node"], {**made, "status": value["status"]}, subresource="status")


def test_a_cluster_says_what_its_objects_in_files_say(migrate: Migrate, dryrun: DryRun, tmp_path: Path) -> None:
    expected = migrate(*objects(), options=("--verify",))
    with embedded(tmp_path) as (_, kubeconfig, client):
        client.create(NAMESPACES, {"metadata": {"name": "nvidia-device-plugin"}})
        for one in objects():
            store(client, one)
        code, out, _ = dryrun("migrate", "--kubeconfig", kubeconfig, "--verify", "-o", "json")
    assert code == 0
    found = json.loads(out)
    assert found["source"].startswith("cluster http")
    for name in ("nodes", "values", "deviceClasses", "needs", "replaced"):
        assert found[name] == expected[name], name
    assert {one["name"].replace("default/", ""): one["verdict"] for one in found["workloads"]} == {
        "Deployment servers": "runs unchanged",
        "Pod gpu-pod": "runs unchanged",
    }
    devices = {one["device"] for demand in found["verification"]["demands"] for one in demand["devices"]}
    assert devices == {one["device"] for demand in expected["verification"]["demands"] for one in demand["devices"]}
    assert len(devices) == 2
