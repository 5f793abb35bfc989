# SPDX-License-Identifier: Apache-2.0
"""Virtual machines and the KubeVirt object, as the examples of NVIDIA's kubevirt-gpu-device-plugin have them."""

import pytest

from .build import JSON, T4, Migrate, given, node, plugin, verdicts

RESOURCE = "nvidia.com/TU104GL_Tesla_T4"
OFFERED = node("host")
OFFERED["status"]["allocatable"][RESOURCE] = "2"


def kubevirt(provider: bool | None = True) -> JSON:
    device: JSON = {"pciVendorSelector": "10DE:1EB8", "resourceName": RESOURCE}
    if provider is not None:
        device["externalResourceProvider"] = provider
    vgpu = {"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/GRID_T4-1Q"}
    permitted = {"pciHostDevices": [device], "mediatedDevices": [vgpu]}
    spec = {"configuration": {"permittedHostDevices": permitted}}
    return {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": spec}


def machine(*names: str, field: str = "gpus", kind: str = "VirtualMachineInstance") -> JSON:
    devices = [{"name": f"gpu{number}", "deviceName": name} for number, name in enumerate(names)]
    spec: JSON = {"domain": {"devices": {field: devices, "rng": {}}}}
    found = spec if kind == "VirtualMachineInstance" else {"running": True, "template": {"spec": spec}}
    return {"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {"name": "vm"}, "spec": found}


def daemon_set() -> JSON:
    found = plugin()
    found["metadata"] = {"name": "nvidia-kubevirt-gpu-dp-daemonset", "namespace": "kube-system"}
    container = {"name": "ctr", "image": "nvcr.io/nvidia/kubevirt-gpu-device-plugin:v1.5.0"}
    found["spec"]["template"]["spec"] = {"containers": [container]}
    return found


@pytest.mark.parametrize("field", ["gpus", "hostDevices"])
@pytest.mark.parametrize("kind", ["VirtualMachineInstance", "VirtualMachine", "VirtualMachineInstanceReplicaSet"])
def test_a_machine_runs_unchanged_and_gets_the_board_by_its_device_id(migrate: Migrate, kind: str, field: str) -> None:
    found = migrate(daemon_set(), kubevirt(), OFFERED, machine(RESOURCE, field=field, kind=kind), options=("--verify",))
    assert verdicts(found) == {f"{kind} vm": "runs unchanged"}
    assert found["values"] == {"policy": {"gpus": [{"passthrough": True}]}}
    (made,) = found["deviceClasses"]
    assert made["metadata"]["name"] == "tu104gl-tesla-t4.extended.nvidia.com"
    assert made["spec"]["extendedResourceName"] == RESOURCE
    assert "deviceID == '0x1eb8'" in made["spec"]["selectors"][0]["cel"]["expression"]
    assert found["replaced"] == ["DaemonSet kube-system/nvidia-kubevirt-gpu-dp-daemonset"]
    assert given(found) == {f"{kind} vm": ["host/gpu-vfio-0"]}


def test_a_machine_with_more_gpus_than_a_node_has_fits_nowhere(migrate: Migrate) -> None:
    found = migrate(kubevirt(), OFFERED, machine(*[RESOURCE] * 3), options=("--verify",))
    assert (given(found), found["code"]) == ({"VirtualMachineInstance vm": []}, 1)


@pytest.mark.parametrize("provider", [None, False])
def test_kubevirt_must_not_offer_the_gpus_itself(migrate: Migrate, provider: bool | None) -> None:
    (one,) = migrate(kubevirt(provider), OFFERED)["workloads"]
    assert (one["name"], one["verdict"]) == ("KubeVirt kubevirt", "needs a change")
    assert one["objects"] == [kubevirt(provider=True)]
    assert "+        externalResourceProvider: true" in one["diff"]


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("nvidia.com/GRID_T4-1Q", (), "nvidia.com/GRID_T4-1Q is a virtual GPU"),
        ("nvidia.com/GP102GL_Tesla_P40", (), "no node offers nvidia.com/GP102GL_Tesla_P40"),
        (RESOURCE, ("--kubernetes-version", "1.34"), "without DRAExtendedResource, the machine has to name a claim"),
    ],
)
def test_a_machine_that_cannot_run(migrate: Migrate, name: str, options: tuple[str, ...], reason: str) -> None:
    found = migrate(kubevirt(), OFFERED, machine(name), options=options)
    assert found["code"] == 1
    assert found["workloads"][0]["reasons"][0].startswith(reason)


def test_nodes_for_containers_and_for_machines_in_one_cluster(migrate: Migrate) -> None:
    found = migrate(plugin(), daemon_set(), kubevirt(), OFFERED, node("n", T4, 1, gpu=1), machine(RESOURCE))
    assert found["values"]["policy"] == {"gpus": [{"match": {"nodes": ["host"]}, "passthrough": True}]}
    assert [one["resources"] for one in found["nodes"]] == [{RESOURCE: 2}, {"nvidia.com/gpu": 1}]


@pytest.mark.parametrize("operated", [False, True])
def test_the_device_plugin_for_machines_leaves_the_node_first(migrate: Migrate, operated: bool) -> None:
    made = daemon_set()
    if operated:
        reference = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "p", "controller": True}
        made["metadata"]["ownerReferences"] = [reference]
    steps = migrate(made, kubevirt(), OFFERED)["steps"]
    (step,) = [one for one in steps if one["nodes"]]
    label = "kubectl label node $NODE nvidia.com/gpu.deploy.sandbox-device-plugin=false --overwrite"
    assert (label in step["commands"]) == operated
    assert not any("is in no DaemonSet" in line for line in step["commands"])
    assert any(one["title"].startswith("Keep DaemonSet kube-system/nvidia-kubevirt") for one in steps) != operated
