# SPDX-License-Identifier: Apache-2.0
"""The GPU Operator: what its ClusterPolicy says about the plan, and what the plan changes in it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.api import Kind
from dra_driver.kube.kinds import NAMESPACES
from tests.charts.rendering import CHART, find, merged, render
from tests.dryrun.conftest import DryRun
from tests.support.apiserver import embedded

from .build import A100, JSON, T4, Migrate, config, config_map, node, plugin, pod, sharing
from .test_cluster import install_kind, store

DEPLOYED = {"nvidia.com/gpu.deploy.device-plugin": "true", "nvidia.com/gpu.deploy.client": "true"}
CREATED_AGAIN = (
    "ClusterPolicy cluster-policy: the GPU Operator creates its DaemonSets again, so set devicePlugin.enabled=false"
    " there, and install this driver with charts/dra-driver-gpu/values-gpu-operator.yaml before values.yaml"
)


def cluster_policy(**spec: Any) -> JSON:
    metadata = {"name": "cluster-policy"}
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": metadata, "spec": spec}


def daemon_set(**options: Any) -> JSON:
    """The DaemonSet that the operator makes of its ClusterPolicy."""
    made = plugin(**options)
    made["metadata"] = {
        "name": "nvidia-device-plugin-daemonset",
        "namespace": "gpu-operator",
        "ownerReferences": [{"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy"}],
    }
    made["spec"]["template"]["spec"]["nodeSelector"] = {"nvidia.com/gpu.deploy.device-plugin": "true"}
    return made


def test_the_daemon_set_is_disabled_in_the_cluster_policy_and_not_deleted(migrate: Migrate) -> None:
    found = migrate(cluster_policy(), daemon_set(), node("n", T4, 1, gpu=1, labels=DEPLOYED), pod())
    assert found["replaced"] == [
        "devicePlugin.enabled=false in ClusterPolicy cluster-policy, which has"
        " DaemonSet gpu-operator/nvidia-device-plugin-daemonset"
    ]
    assert found["gpuOperator"] == {
        "clusterPolicy": "cluster-policy",
        "values": {"devicePlugin": {"enabled": False}},
    }
    assert found["values"]["nvidiaDriverRoot"] == "/run/nvidia/driver"
    assert found["planNotes"] == [CREATED_AGAIN]


def test_the_cluster_policy_alone_tells_the_configuration(migrate: Migrate) -> None:
    maps = config_map("plugin-configs", whole=config(), shared=config(sharing=sharing({"nvidia.com/gpu": 4})))
    policy = cluster_policy(
        devicePlugin={"config": {"name": "plugin-configs", "default": "shared"}},
        mig={"strategy": "mixed"},
        driver={"enabled": False},
    )
    found = migrate(policy, maps, node("n", T4, 1, gpu=4, labels=DEPLOYED), node("m", T4, 1))
    assert [(one["name"], one["configuration"]) for one in found["nodes"]] == [("n", "shared")]
    assert "nvidiaDriverRoot" not in found["values"]
    assert found["values"]["policy"] == {"gpus": [{"mig": "static", "shares": 4}]}


def test_an_operator_without_the_device_plugin_only_decides_about_the_driver(migrate: Migrate) -> None:
    policy = cluster_policy(devicePlugin={"enabled": False})
    found = migrate(policy, plugin(), node("n", T4, 1, gpu=1, labels=DEPLOYED))
    assert found["gpuOperator"]["values"] == {}
    assert found["replaced"] == ["DaemonSet nvidia-device-plugin/nvdp"]
    install = "install this driver with charts/dra-driver-gpu/values-gpu-operator.yaml before values.yaml"
    assert found["planNotes"] == [f"ClusterPolicy cluster-policy: {install}"]


def test_the_daemon_set_alone_tells_of_the_operator(migrate: Migrate) -> None:
    found = migrate(daemon_set(), node("n", T4, 1, gpu=1, labels=DEPLOYED))
    assert found["gpuOperator"]["values"] == {"devicePlugin": {"enabled": False}}
    assert found["planNotes"][0].startswith("ClusterPolicy cluster-policy of the GPU Operator is not in the input")


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ({}, {"nvidiaDriverRoot": "/run/nvidia/driver"}),
        ({"driver": {"enabled": False}}, {}),
        ({"hostPaths": {"driverInstallDir": "/opt/driver"}}, {"nvidiaDriverRoot": "/opt/driver"}),
        ({"driver": {"enabled": False}, "toolkit": {"enabled": False}}, {"nvidiaCDIHookPath": ""}),
        (
            {"driver": {"enabled": False}, "toolkit": {"installDir": "/home/nvidia"}},
            {"nvidiaCDIHookPath": "/home/nvidia/toolkit/nvidia-cdi-hook"},
        ),
    ],
)
def test_driver_and_toolkit_of_the_operator_become_values_that_the_chart_accepts(
    migrate: Migrate, spec: JSON, values: JSON
) -> None:
    found = migrate(cluster_policy(**spec), daemon_set(), node("n", T4, 1, gpu=1, labels=DEPLOYED))
    kept = {name: value for name, value in found["values"].items() if name.startswith("nvidia")}
    assert kept == values
    operator = yaml.safe_load((CHART / "values-gpu-operator.yaml").read_text(encoding="utf-8"))
    template = find(render(merged(operator, found["values"])), "DaemonSet")["spec"]["template"]["spec"]
    assert template["nodeSelector"]["nvidia.com/gpu.deploy.client"] == "true"


def test_other_components_of_the_operator_are_no_workloads_and_their_settings_are_noted(migrate: Migrate) -> None:
    exporter = daemon_set()
    exporter["metadata"]["name"] = "nvidia-dcgm-exporter"
    exporter["spec"]["template"]["spec"]["containers"] = [
        {"name": "dcgm", "image": "dcgm", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    ]
    policy = cluster_policy(driver={"upgradePolicy": {"autoUpgrade": False}})
    single = node("n", f"{A100}-MIG-1g.5gb", 7, gpu=7, labels=DEPLOYED)
    found = migrate(policy, daemon_set(MIG_STRATEGY="single"), exporter, single)
    assert found["workloads"] == []
    notes = [note.partition(": ")[2] for note in found["planNotes"]]
    assert notes[1].startswith("migManager can stay, because the plan keeps its MIG devices (mig: static)")
    assert notes[2].startswith("driver.upgradePolicy.autoUpgrade is false: drain a node")


def test_a_gpu_cluster_is_said_to_install_the_other_driver(dryrun: DryRun, tmp_path: Path) -> None:
    metadata = {"name": "gpu-cluster"}
    other = {"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "metadata": metadata, "spec": {}}
    (tmp_path / "c.json").write_text(json.dumps(other), encoding="utf-8")
    code, _, err = dryrun("migrate", tmp_path)
    assert code == 2
    assert "GPUCluster gpu-cluster lets the GPU Operator install NVIDIA's DRA driver" in err
    (tmp_path / "n.json").write_text(json.dumps(node("n", T4, 1, gpu=1)), encoding="utf-8")
    _, out, _ = dryrun("migrate", tmp_path, "-o", "json")
    assert json.loads(out)["planNotes"][0].startswith("GPUCluster gpu-cluster lets")


def test_values_for_the_operator_are_written(dryrun: DryRun, tmp_path: Path) -> None:
    for number, one in enumerate((cluster_policy(), daemon_set(), node("n", T4, 1, gpu=1, labels=DEPLOYED))):
        (tmp_path / f"{number}.json").write_text(json.dumps(one), encoding="utf-8")
    code, _, err = dryrun("migrate", tmp_path, "--write", tmp_path / "plan")
    assert code == 0, err
    written = yaml.safe_load((tmp_path / "plan" / "operator-values.yaml").read_text(encoding="utf-8"))
    assert written == {"devicePlugin": {"enabled": False}}


@pytest.mark.cluster
def test_a_cluster_policy_is_read_of_a_cluster(dryrun: DryRun, tmp_path: Path) -> None:
    with embedded(tmp_path) as (_, kubeconfig, client):
        client.create(NAMESPACES, {"metadata": {"name": "gpu-operator"}})
        install_kind(client, "nvidia.com/v1", "ClusterPolicy", namespaced=False)
        policy = client.create(Kind("nvidia.com/v1", "clusterpolicies"), cluster_policy(driver={"enabled": False}))
        made = daemon_set()
        made["metadata"]["ownerReferences"][0]["uid"] = policy["metadata"]["uid"]
        for one in (made, node("n", T4, 1, gpu=1, labels=DEPLOYED)):
            store(client, one)
        code, out, err = dryrun("migrate", "--kubeconfig", kubeconfig, "-o", "json")
    assert code == 0, err
    assert json.loads(out)["planNotes"] == [CREATED_AGAIN]
