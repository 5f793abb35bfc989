# SPDX-License-Identifier: Apache-2.0
"""What labels and allocatable resources tell of a node, with and without a DaemonSet of the device plugin."""

import json
from typing import Any

import pytest

from tests.dryrun.conftest import DryRun

from .build import A100, JSON, T4, Migrate, config, config_map, deployment, given, node, plugin, pod, sharing

SINGLE = {"nvidia.com/mig.strategy": "single"}
GKE = "cloud.google.com/gke-"
SHARED_L4 = {
    f"{GKE}accelerator": "nvidia-l4",
    f"{GKE}max-shared-clients-per-gpu": "4",
    f"{GKE}gpu-sharing-strategy": "mps",
}
PARTITIONED = {f"{GKE}accelerator": "nvidia-tesla-a100", f"{GKE}gpu-partition-size": "1g.5gb"}


def karpenter(name: str, count: int, memory: int, prefix: str = "karpenter.k8s.aws") -> dict[str, str]:
    """The labels of Karpenter, or those of EKS Auto Mode."""
    values = {"name": name, "count": count, "memory": memory, "manufacturer": "nvidia"}
    return {f"{prefix}/instance-gpu-{key}": str(value) for key, value in values.items()}


@pytest.mark.parametrize("known", [(), (plugin(),), (plugin(MIG_STRATEGY="single"),)], ids=["none", "other", "same"])
def test_mig_devices_as_gpus_are_known_by_the_product(migrate: Migrate, known: tuple[JSON, ...]) -> None:
    """56 GPUs with this product are 8 A100 with 7 MIG devices each, also if the DaemonSet says otherwise."""
    found = migrate(*known, node("n", f"{A100}-MIG-1g.5gb", 56, gpu=56, labels=SINGLE), pod(), options=("--verify",))
    assert found["nodes"][0]["gpus"] == f"8 x {A100} (7 x 1g.5gb)"
    assert found["nodes"][0]["resources"] == {"nvidia.com/gpu": 56}
    assert found["values"] == {
        "policy": {"gpus": [{"mig": "static"}]},
        "deviceClasses": {"mig": {"extendedResourceName": "nvidia.com/gpu"}},
    }
    assert found["verification"]["demands"][0]["devices"][0]["profile"] == "1g.5gb"
    expected = "the node shows migStrategy single and not none, as its configuration says"
    assert [expected in note for note in found["planNotes"]] == [True] * (known == (plugin(),))


@pytest.mark.parametrize("known", [(), (plugin(),)], ids=["no DaemonSet", "another strategy"])
def test_mig_devices_with_names_of_their_own_are_offered(migrate: Migrate, known: tuple[JSON, ...]) -> None:
    labels = {"nvidia.com/mig.strategy": "mixed"}
    found = migrate(*known, node("n", A100, 4, labels=labels, mig_3g__20gb=8), pod("nvidia.com/mig-3g.20gb"))
    assert found["nodes"][0]["gpus"] == f"4 x {A100} (2 x 3g.20gb)"
    assert found["nodes"][0]["resources"] == {"nvidia.com/mig-3g.20gb": 8}
    assert found["values"]["deviceClasses"] == {"migProfiles": ["3g.20gb"]}
    assert found["workloads"][0]["verdict"] == "runs unchanged"


@pytest.mark.parametrize(
    ("product", "resources", "expected"),
    [
        (f"{A100}-MIG-2g.10gb", {"gpu": 24}, "8 x NVIDIA-A100-SXM4-40GB (3 x 2g.10gb)"),
        (f"{A100}-MIG-3g.20gb", {"gpu": 3}, f"1 x {A100} (2 x 3g.20gb), 1 x {A100} (1 x 3g.20gb)"),
        ("NVIDIA-RTX-9999-MIG-1g.24gb", {"gpu": 14}, "2 x NVIDIA-RTX-9999 (7 x 1g.24gb)"),
        ("NVIDIA-A100-80GB-PCIe-MIG-1g.20gb", {"gpu": 8}, "2 x NVIDIA-A100-80GB-PCIe (4 x 1g.20gb)"),
        (f"{A100}-MIG-1g.5gb.me", {"gpu": 2}, f"2 x {A100} (1 x 1g.5gb+me)"),
        ("NVIDIA-A30-MIG-1g.6gb", {"gpu": 8}, "2 x NVIDIA-A30 (4 x 1g.6gb)"),
    ],
)
def test_a_gpu_has_no_more_mig_devices_than_fit(
    migrate: Migrate, product: str, resources: dict[str, int], expected: str
) -> None:
    found = migrate(node("n", product, resources["gpu"], labels=SINGLE, **resources))
    assert found["nodes"][0]["gpus"] == expected


@pytest.mark.parametrize(
    ("labels", "count", "resources", "policy"),
    [
        ({"nvidia.com/gpu.replicas": "10"}, 2, {"gpu": 20}, {"shares": 10}),
        ({}, 2, {"gpu": 20}, {"shares": 10}),
        ({"nvidia.com/gpu.replicas": "10"}, 4, {"gpu.shared": 30}, {"shares": 10}),
        (
            {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps"},
            2,
            {"gpu": 8},
            {"shares": {"mode": 4, "enforce": "mps"}},
        ),
        ({"nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none"}, 2, {"gpu": 2}, None),
    ],
    ids=["time-slicing", "numbers alone", "renamed, one GPU unhealthy", "MPS", "exclusive"],
)
def test_shares_are_known_by_labels_and_numbers(
    migrate: Migrate, dryrun: DryRun, tmp_path: Any, labels: JSON, count: int, resources: JSON, policy: JSON | None
) -> None:
    value = node("n", T4, count, labels=labels)
    value["status"]["allocatable"] |= {f"nvidia.com/{name}": str(number) for name, number in resources.items()}
    (tmp_path / "node.json").write_text(json.dumps(value), encoding="utf-8")
    _, out, err = dryrun("migrate", tmp_path / "node.json", "-o", "json")
    found = json.loads(out)
    assert found["values"].get("policy") == (None if policy is None else {"gpus": [policy]}), err
    assert found["nodes"][0]["resources"] == {f"nvidia.com/{name}": number for name, number in resources.items()}


def test_unexplained_number_of_gpus_leaves_the_plan_unknown(dryrun: DryRun, tmp_path: Any) -> None:
    """An AKS node with one A100 that offers 7 GPUs, and no labels of GPU Feature Discovery."""
    labels = {
        "kubernetes.azure.com/accelerator": "nvidia",
        "node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4",
    }
    (tmp_path / "node.json").write_text(json.dumps(node("aks-1", labels=labels, gpu=7)), encoding="utf-8")
    code, out, _ = dryrun("migrate", tmp_path / "node.json", "-o", "json")
    assert code == 3
    (note,) = json.loads(out)["notes"]
    assert note["object"] == "Node aks-1"
    assert note["text"].startswith("it offers 7 nvidia.com/gpu of 1 GPUs, and neither a label nor a configuration says")


@pytest.mark.parametrize(
    ("labels", "gpus", "expected", "memory"),
    [
        ({f"{GKE}accelerator": "nvidia-tesla-t4"}, 4, "4 x Tesla-T4", "15Gi"),
        (PARTITIONED, 14, "2 x NVIDIA-A100-SXM4-40GB (7 x 1g.5gb)", "4864Mi"),
        ({**PARTITIONED, f"{GKE}max-shared-clients-per-gpu": "2"}, 28, f"2 x {A100} (7 x 1g.5gb)", "4864Mi"),
        (SHARED_L4, 8, "2 x NVIDIA-L4", "23034Mi"),
        (
            {f"{GKE}accelerator": "nvidia-rtx-pro-6000"},
            1,
            "1 x NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
            "97887Mi",
        ),
        (karpenter("a10g", 4, 24576), 4, "4 x NVIDIA-A10G", "23028Mi"),
        (karpenter("a100", 8, 81920, "eks.example.com"), 8, "8 x GPU", None),
        (karpenter("a100", 8, 81920), 8, "8 x NVIDIA-A100-SXM4-80GB", "80Gi"),
        (karpenter("x900", 2, 50000), 2, "2 x x900", "50000Mi"),
        ({"node.kubernetes.io/instance-type": "p4d.24xlarge"}, 8, f"8 x {A100}", "40Gi"),
        ({"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}, 8, "8 x NVIDIA-H100-80GB-HBM3", "81559Mi"),
        (
            {"karpenter.azure.com/sku-gpu-name": "T4", "karpenter.azure.com/sku-gpu-count": "1"},
            1,
            "1 x Tesla-T4",
            "15Gi",
        ),
    ],
)
def test_nodes_of_clouds_are_known_without_gpu_feature_discovery(
    migrate: Migrate, labels: dict[str, str], gpus: int, expected: str, memory: str | None
) -> None:
    found = migrate(node("n", labels=labels, gpu=gpus), pod(), options=("--verify",))
    assert found["nodes"][0]["gpus"] == expected
    assert found["nodes"][0]["resources"] == {"nvidia.com/gpu": gpus}
    (device,) = found["verification"]["demands"][0]["devices"]
    assert device["memory"] == memory


def test_the_count_of_a_cloud_does_not_make_a_gpu_of_a_shared_one(migrate: Migrate) -> None:
    found = migrate(node("n", labels=SHARED_L4, gpu=8), deployment(9), options=("--verify",))
    assert found["values"] == {
        "policy": {"gpus": [{"shares": {"mode": 4, "enforce": "mps"}}]},
        "deviceClasses": {"gpu": {"extendedResourceName": "nvidia.com/gpu"}},
        "mps": {"enabled": True},
        "nvidiaDriverRoot": "/home/kubernetes/bin/nvidia",
    }
    assert [one["fits"] for one in found["verification"]["demands"]] == [True] * 8 + [False]


def test_unknown_memory_is_said_and_requests_for_memory_are_unknown(dryrun: DryRun, tmp_path: Any) -> None:
    selector = "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('10Gi'))"
    requests = [
        {
            "name": "gpu",
            "exactly": {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": selector}}]},
        }
    ]
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "large"},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }
    wanting = pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "large"}])
    value = node("n", labels={f"{GKE}accelerator": "nvidia-x9"}, gpu=2)
    for objects, expected in (((value, pod()), 0), ((value, wanting, template), 3)):
        folder = tmp_path / str(expected)
        folder.mkdir()
        for number, one in enumerate(objects):
            (folder / f"{number}.json").write_text(json.dumps(one), encoding="utf-8")
        code, out, _ = dryrun("migrate", folder, "--verify", "-o", "json")
        found = json.loads(out)
        assert found["planNotes"] == ["n: the memory of its GPUs (nvidia-x9) is not known"]
        assert "1Mi" not in out
        assert bool(found["notes"]) == (expected == 3)
    assert found["notes"][0]["object"] == "ResourceClaimTemplate large"
    assert code in (1, 3)


def test_node_without_a_configuration_is_noted_and_other_nodes_are_planned(migrate: Migrate) -> None:
    labels = {"nvidia.com/device-plugin.config": "shared"}
    found = migrate(
        plugin(configs="c"),
        config_map("c", whole=config(), shared=config(sharing=sharing({"nvidia.com/gpu": 2}))),
        node("labelled", T4, 1, labels=labels),
        node("forgotten", T4, 1, gpu=1),
    )
    assert [one["configuration"] for one in found["nodes"]] == ["shared", ""]
    (note,) = [one for one in found["planNotes"] if one.startswith("forgotten")]
    assert "none of whole, shared is the default: the plugin does not start there" in note


def test_nodes_of_eks_auto_mode_keep_the_device_plugin(migrate: Migrate) -> None:
    labels = {"eks.amazonaws.com/compute-type": "auto", **karpenter("l4", 1, 22888, "eks.amazonaws.com")}
    found = migrate(node("auto", labels=labels, gpu=1), node("own", T4, 1, gpu=1), deployment(2), options=("--verify",))
    assert [one["name"] for one in found["nodes"]] == ["own"]
    assert found["planNotes"][0].startswith("auto: EKS Auto Mode manages the node")
    assert [one["node"] for one in found["verification"]["demands"]] == ["auto", "own"]
    assert [len(devices) for devices in given(found).values()] == [0, 1]


def test_a_node_outside_of_the_daemon_sets_that_offers_gpus_is_planned(migrate: Migrate) -> None:
    daemon_set = plugin()
    daemon_set["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "gpu"}
    found = migrate(daemon_set, node("a", T4, 1, gpu=1, labels={"pool": "gpu"}), node("b", T4, 1, gpu=1))
    assert [one["name"] for one in found["nodes"]] == ["a", "b"]
    assert found["planNotes"][0].startswith("b: no DaemonSet of the input has a pod on it")
