# SPDX-License-Identifier: Apache-2.0
"""Quotas, selectors of MIG products, and shares on several GPUs: what changes although pods run as before."""

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.dryrun.migrate.labels import LabelFacts
from dra_driver.dryrun.migrate.nodes import GpuNode
from dra_driver.dryrun.migrate.verify import inventory_of
from dra_driver.gpu.labels import Machine, gpu_labels
from dra_driver.gpu.policy import NodePolicy
from tests.dryrun.conftest import DryRun

from .build import A100, JSON, T4, Migrate, config, config_map, deployment, given, node, plugin, pod, sharing, verdicts

OLD = ("--kubernetes-version", "1.34")
SHARED = (plugin(configs="c"), config_map("c", config=config(sharing=sharing({"nvidia.com/gpu": 2}))))


def quota(**hard: str) -> JSON:
    """A quota of which all is in use: `gpu="4"` is `requests.nvidia.com/gpu: "4"`."""
    amounts = {f"requests.nvidia.com/{name.replace('_', '.')}": count for name, count in hard.items()}
    found: JSON = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "default"}}
    return {**found, "spec": {"hard": amounts}, "status": {"hard": amounts, "used": amounts}}


def queue() -> JSON:
    resources = [{"name": name, "nominalQuota": 4} for name in ("cpu", "nvidia.com/gpu")]
    group = {"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": [{"name": "f", "resources": resources}]}
    found = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "gpus"}}
    return {**found, "spec": {"resourceGroups": [group]}}


def test_quotas_stay_where_device_classes_serve_their_resources(migrate: Migrate) -> None:
    found = migrate(
        plugin(), node("n", T4, 2, gpu=2), quota(gpu="2", gpu_shared="8"), queue(), deployment(2), options=("--verify",)
    )
    assert verdicts(found) == dict.fromkeys(
        ("Deployment servers", "ResourceQuota default/gpus", "ClusterQueue gpus"), "runs unchanged"
    )
    notes = {one["name"]: one["notes"] for one in found["workloads"]}
    assert notes["ResourceQuota default/gpus"] == [
        "it counts pods with nvidia.com/gpu as before, and claims of their classes",
        "no node offers nvidia.com/gpu.shared (the nodes offer nvidia.com/gpu)",
    ]
    assert notes["ClusterQueue gpus"] == ["Kueue counts pods with nvidia.com/gpu by this name as before"]
    assert [len(devices) for devices in given(found).values()] == [1, 1], "what is in use is counted anew"


def test_quota_still_refuses_pods_that_exceed_it(migrate: Migrate) -> None:
    found = migrate(plugin(), node("n", T4, 2, gpu=2), quota(gpu="1"), deployment(2), options=("--verify",))
    assert [len(devices) for devices in given(found).values()] == [1, 0]


def test_quotas_count_devices_of_classes_where_pods_get_claims(migrate: Migrate) -> None:
    found = migrate(plugin(), node("n", T4, 2, gpu=2), quota(gpu="2"), queue(), deployment(2), options=OLD)
    changed = {one["name"]: one["objects"][-1] for one in found["workloads"]}
    assert changed["ResourceQuota default/gpus"]["spec"]["hard"] == {
        "requests.nvidia.com/gpu": "2",
        "gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "2",
    }
    (group,) = changed["ClusterQueue gpus"]["spec"]["resourceGroups"]
    assert group["coveredResources"] == ["cpu", "nvidia.com/gpu", "claims.nvidia.com/gpu"]
    assert group["flavors"][0]["resources"][-1] == {"name": "claims.nvidia.com/gpu", "nominalQuota": 4}
    reasons = next(one["reasons"] for one in found["workloads"] if one["name"] == "ClusterQueue gpus")
    assert "[{name: claims.nvidia.com/gpu, deviceClassNames: [gpu.nvidia.com]}]" in reasons[0]


SELECTORS: dict[str, Any] = {
    "nodeSelector": {"nodeSelector": {"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb"}},
    "affinity": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "nvidia.com/gpu.product", "operator": "In", "values": [f"{A100}-MIG-1g.5gb"]}
                            ]
                        }
                    ]
                }
            }
        }
    },
}


@pytest.mark.parametrize("spec", SELECTORS.values(), ids=SELECTORS)
def test_selector_of_a_mig_product_gets_a_label_that_the_driver_writes(migrate: Migrate, spec: JSON) -> None:
    labels = {"nvidia.com/mig.strategy": "single"}
    found = migrate(node("n", f"{A100}-MIG-1g.5gb", 7, gpu=7, labels=labels), pod(**spec))
    note = found["workloads"][0]["notes"][0]
    assert f"only GPU Feature Discovery with the strategy single writes nvidia.com/gpu.product={A100}-MIG" in note
    selected = f"nvidia.com/mig-1g.5gb.product={A100}-MIG-1g.5gb"
    assert f"or select {selected}" in note
    planned = GpuNode(node("n"), facts=LabelFacts(product=A100), gpus=(("1g.5gb",) * 7,))
    written = gpu_labels(inventory_of(planned), frozenset(), NodePolicy(), Machine(None, frozenset()))
    name, _, value = selected.partition("=")
    assert written[name] == value
    assert written["nvidia.com/gpu.product"] == A100


def test_shares_of_several_gpus_are_no_longer_spread(migrate: Migrate) -> None:
    found = migrate(*SHARED, node("two", T4, 2, gpu=4), node("one", T4, 1, gpu=2), deployment(2), options=("--verify",))
    (note,) = [one for one in found["planNotes"] if "spreads pods with shares" in one]
    assert note.startswith("two: ")
    assert list(given(found).values()) == [["two/gpu-0"], ["two/gpu-0"]]


@pytest.mark.parametrize(
    "packing",
    [
        (plugin("--shared-devices-allocation-policy=packed", configs="c"), SHARED[1]),
        (plugin(configs="c", SHARED_DEVICES_ALLOCATION_POLICY="packed"), SHARED[1]),
        (
            plugin(configs="c"),
            config_map(
                "c",
                config={
                    "version": "v1",
                    "flags": {"plugin": {"sharedDevicesAllocationPolicy": "packed"}},
                    "sharing": sharing({"nvidia.com/gpu": 2}),
                },
            ),
        ),
    ],
    ids=["flag", "environment", "file"],
)
def test_a_plugin_that_packs_shares_is_like_the_scheduler(migrate: Migrate, packing: tuple[JSON, JSON]) -> None:
    assert migrate(*packing, node("two", T4, 2, gpu=4))["planNotes"] == []


def test_claims_for_more_than_half_of_the_memory_are_spread(dryrun: DryRun, tmp_path: Path) -> None:
    """The way that docs/reference/migrate.md describes. A claim without an amount of memory is packed."""
    (tmp_path / "policy.json").write_text(json.dumps({"gpus": [{"shares": 2}]}), encoding="utf-8")
    devices = {}
    for amount in ("", "24Gi"):
        exactly: JSON = {"deviceClassName": "gpu.nvidia.com"}
        exactly |= {"capacity": {"requests": {"memory": amount}}} if amount else {}
        claims = [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
            }
            for name in ("a", "b")
        ]
        (tmp_path / "claims.yaml").write_text("---\n".join(json.dumps(one) + "\n" for one in claims), encoding="utf-8")
        options = ("--with-node", "l40sx4", "--policy", tmp_path / "policy.json", "-o", "json")
        _, out, err = dryrun(tmp_path / "claims.yaml", *options)
        demands = json.loads(out)["demands"]
        devices[amount] = [device["device"] for one in demands for device in one["devices"]]
        assert devices[amount], err
    assert devices == {"": ["gpu-0", "gpu-0"], "24Gi": ["gpu-0", "gpu-1"]}
