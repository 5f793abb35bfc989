# SPDX-License-Identifier: Apache-2.0
"""The built-in nodes and their variants: what fits on them, and which labels they have."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from dra_driver.dryrun.nodetypes import built_in_nodes, is_node_type, node_types, simulated_nodes
from dra_driver.gpu.policy import GpuRule, NodePolicy
from dra_driver.gpu.simulated import shipped_nodes
from dra_driver.kube.resource import Node, ResourceSlice

from .conftest import DryRun, Write, gpu, slice_of

EXAMPLES = Path(__file__).parents[2] / "examples"
DEVICES_OF_MACHINES = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig"}


def template(request: dict[str, Any], **devices: Any) -> dict[str, Any]:
    """A template for a claim with one request."""
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}], **devices}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "wanted"},
        "spec": {"spec": spec},
    }


def deployment(replicas: int) -> dict[str, Any]:
    """Pods with a claim of the template."""
    container = {"name": "main", "image": "ubuntu", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "wanted"}]
    pod = {"metadata": {"labels": {"app": "a"}}, "spec": {"resourceClaims": claims, "containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "pods"}, "spec": spec}


VFIO = {"deviceClassName": "vfio.gpu.nvidia.com"}
GPU = {"deviceClassName": "gpu.nvidia.com"}
PARTITION = [{"requests": ["gpu"], "matchAttribute": "gpu.nvidia.com/partition2"}]
LEGACY = {**DEVICES_OF_MACHINES, "iommu": {"backendPolicy": "LegacyOnly", "enableAPIDevice": True}}
LEGACY_CONFIG = [{"requests": ["gpu"], "opaque": {"driver": "gpu.nvidia.com", "parameters": LEGACY}}]


@pytest.mark.parametrize(
    ("wanted", "replicas", "node"),
    [
        (template(VFIO), 1, "-vfio"),
        (template(VFIO, config=LEGACY_CONFIG), 1, "-vfio"),
        (template({**VFIO, "count": 2}, constraints=PARTITION), 1, "-vfio"),
        (template({**GPU, "count": 2}, constraints=PARTITION), 1, "-vfio"),
        (template(GPU), 4, ""),
        (template({**GPU, "capacity": {"requests": {"memory": "4Gi"}}}), 2, ""),
        (template({**GPU, "capacity": {"requests": {"shares": "1"}}}), 4, "l4x4-shares"),
    ],
    ids=["vfio", "vfio config", "vfio partition", "partition", "shares", "share of memory", "counted shares"],
)
def test_a_claim_of_each_kind_fits_on_a_built_in_node(
    wanted: dict[str, Any], replicas: int, node: str, dryrun: DryRun, write: Write
) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": [wanted, deployment(replicas)]}
    code, out, _ = dryrun("--built-in", "-o", "json", write("pods.json", items))
    assert code == 0, out
    assert all(one["node"].endswith(node) for one in json.loads(out)["demands"])


def test_four_claims_share_one_gpu_of_a_node_with_shares(dryrun: DryRun, write: Write) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": [template(GPU), deployment(4)]}
    _, out, _ = dryrun("--with-node", "l4x4-shares", "-o", "json", write("pods.json", items))
    assert {device["device"] for one in json.loads(out)["demands"] for device in one["devices"]} == {"gpu-0"}


@pytest.mark.parametrize(
    "example",
    [
        *("whole-gpu", "shared-gpu", "mig-slices", "time-slicing", "mps", "mps-mig", "passthrough"),
        *("nvswitch-partition", "kata", "compute-domain-pods-per-gpu", "compute-domain-all-channels"),
    ],
)
def test_the_examples_fit_on_the_built_in_nodes(example: str, dryrun: DryRun) -> None:
    code, out, err = dryrun("--built-in", EXAMPLES / f"{example}.yaml")
    assert code == 0, out + err


@pytest.mark.parametrize("board", ["l4x4", "t4x4", "a10gx4", "v100x8", "a100-80x4", "gb300x4"])
def test_a_whole_gpu_fits_on_a_node_of_each_model(board: str, dryrun: DryRun) -> None:
    assert dryrun("--with-node", board, EXAMPLES / "whole-gpu.yaml")[0] == 0


def test_the_mig_resource_of_nvidias_example_fits_on_a_built_in_node(dryrun: DryRun, write: Write) -> None:
    resources = {"limits": {"nvidia.com/mig-1g.12gb": 1}}
    spec = {"containers": [{"name": "c", "image": "i", "resources": resources}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    code, out, err = dryrun("--built-in", write("pod.json", pod))
    assert code == 0, out + err
    assert "on node gh200x1-mig" in out


def test_every_variant_of_every_node_type_can_be_added() -> None:
    assert all(is_node_type(name + suffix) for name in shipped_nodes() for suffix in node_types())
    assert not is_node_type("h100x8-mig-mig")
    assert [one.name for one in simulated_nodes("t4x4-shares", 2) if isinstance(one, Node)] == [
        "new-t4x4-shares-1",
        "new-t4x4-shares-2",
    ]


def test_no_two_built_in_nodes_have_the_same_gpu() -> None:
    slices = [one for one in built_in_nodes(machines=True) if isinstance(one, ResourceSlice)]
    owners: dict[object, set[str | None]] = defaultdict(set)
    for one in slices:
        for device in one.devices:
            owners[device.attributes.get("parentUUID") or device.attributes.get("uuid")].add(one.node_name)
    del owners[None]  # channels and daemons
    assert all(len(nodes) == 1 for nodes in owners.values())


def test_built_in_nodes_have_the_labels_of_kubelet_and_of_gpu_feature_discovery() -> None:
    labels = {one.name: one.metadata.labels for one in built_in_nodes() if isinstance(one, Node)}
    h100 = labels["h100x8"]
    assert h100["kubernetes.io/os"] == "linux"
    assert h100["kubernetes.io/arch"] == "amd64"
    assert h100["kubernetes.io/hostname"] == "h100x8"
    assert h100["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert "nvidia.com/gpu.machine" not in h100
    assert labels["gb300x4"]["kubernetes.io/arch"] == "arm64"
    assert labels["l4x4-shares"]["nvidia.com/gpu.product"] == "NVIDIA-L4-SHARED"


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        (["--built-in"], False),
        (["--built-in", "--policy", "POLICY"], True),
        (["--with-node", "t4x4"], False),
        (["--with-node", "t4x4", "--policy", "POLICY"], True),
    ],
)
def test_a_policy_applies_to_built_in_and_additional_nodes(
    arguments: list[str], fits: bool, dryrun: DryRun, write: Write
) -> None:
    selector = [{"cel": {"expression": "device.allowMultipleAllocations == true"}}]
    wanted = template({**GPU, "selectors": selector, "capacity": {"requests": {"shares": "2"}}})
    policy = write("policy.yaml", "gpus: [{match: {models: ['Tesla T4']}, shares: 2}]")
    model = [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].productName == 'Tesla T4'"}}]
    wanted["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [*selector, *model]
    given = [str(policy) if one == "POLICY" else one for one in arguments]
    code, out, _ = dryrun(*given, write("claim.json", wanted))
    assert (code == 0) == fits, out


def test_a_policy_needs_nodes_that_it_can_apply_to(dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", {"apiVersion": "v1", "kind": "List", "items": [slice_of("node-a", gpu("gpu-0"))]})
    policy = write("policy.yaml", "gpus: []")
    code, _, err = dryrun("--slices", slices, "--policy", policy, write("claim.json", template(GPU)))
    assert code == 2
    assert "--policy is for built-in nodes and for those of --with-node, and there are none" in err


def test_a_rule_of_a_policy_for_one_node_applies_only_there() -> None:
    made = simulated_nodes("t4x4", 2, NodePolicy((GpuRule(nodes=("new-t4x4-2",), publish=False),)))
    assert {one.node_name for one in made if isinstance(one, ResourceSlice) and one.devices} == {"new-t4x4-1"}


def test_nodes_that_lack_devices_for_a_daemon_set_are_listed_with_the_reason(dryrun: DryRun, write: Write) -> None:
    template = {"resourceClaims": [{"name": "mig", "resourceClaimTemplateName": "mig"}]}
    template["containers"] = [{"name": "a", "image": "b"}]
    labels = {"app": "d"}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": template}}
    daemons = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}, "spec": spec}
    requests = [{"name": "mig", "exactly": {"deviceClassName": "mig.nvidia.com"}}]
    shape = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "mig"}}
    shape["spec"] = {"spec": {"devices": {"requests": requests}}}
    wanted = write("daemons.json", {"apiVersion": "v1", "kind": "List", "items": [daemons, shape]})
    out = dryrun("--built-in", wanted)[1]
    lines = [line for line in out.splitlines() if line.startswith("  ") and ":" in line]
    assert lines
    assert all(line.partition(": ")[2] for line in lines), out
    assert "a10gx4" in out
    assert "request mig wants 1, 0 of 4 devices qualify" in out
