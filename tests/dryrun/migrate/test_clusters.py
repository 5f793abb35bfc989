# SPDX-License-Identifier: Apache-2.0
"""Twelve clusters, modelled after the published formats of the projects: the plan, its steps, and where the pods go.

The folders are in `clusters`: README and chart of the device plugin, GPU Operator, GKE, EKS, AKS, owners of workloads,
quotas, and a fleet of 40 nodes of four kinds.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.charts.rendering import find, merged, render
from tests.dryrun.conftest import DryRun

JSON = dict[str, Any]

FOLDER = Path(__file__).with_name("clusters")
OLD = ("--kubernetes-version", "1.34")
GPUS = {"gpu": {"extendedResourceName": "nvidia.com/gpu"}}
MIG = {"mig": {"extendedResourceName": "nvidia.com/gpu"}}
GKE_ROOT = "/home/kubernetes/bin/nvidia"
OPERATOR_ROOT = "/run/nvidia/driver"
STATIC = {"policy": {"gpus": [{"mig": "static"}]}}
TOLERATED = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in ("nvidia.com/gpu", "sku")]

VALUES: dict[str, JSON] = {
    "single-node": {"deviceClasses": GPUS},
    "time-slicing": {"policy": {"gpus": [{"shares": 4}]}},
    "mps": {
        "policy": {"gpus": [{"shares": {"mode": 4, "enforce": "mps"}}]},
        "deviceClasses": GPUS,
        "mps": {"enabled": True},
    },
    "operator-mig-single": {**STATIC, "deviceClasses": MIG, "nvidiaDriverRoot": OPERATOR_ROOT},
    "operator-mig-mixed": {
        **STATIC,
        "deviceClasses": {**GPUS, "migProfiles": ["3g.20gb"]},
        "nvidiaDriverRoot": OPERATOR_ROOT,
    },
    "gke-time-sharing": {
        "policy": {"gpus": [{"shares": 3}]},
        "deviceClasses": GPUS,
        "nvidiaDriverRoot": GKE_ROOT,
    },
    "gke-mig": {**STATIC, "deviceClasses": MIG, "nvidiaDriverRoot": GKE_ROOT},
    "eks": {"deviceClasses": GPUS},
    "aks": {"deviceClasses": GPUS, "kubeletPlugin": {"tolerations": TOLERATED}},
    "owners": {"deviceClasses": GPUS},
    "quotas": {"deviceClasses": GPUS},
}
"""The values of the plan, but for those of the fleet."""
PODS = {
    "single-node": 1,
    "time-slicing": 10,
    "mps": 4,
    "operator-mig-single": 9,
    "operator-mig-mixed": 3,
    "gke-time-sharing": 5,
    "gke-mig": 8,
    "eks": 3,
    "aks": 3,
    "owners": 6,
    "quotas": 2,
    "fleet": 370,
}
"""The number of pods with GPUs, all of which must get their devices."""
PLACES = {"fleet": {"Deployment default/notebooks t4": 200, "Deployment default/serve a100-mixed": 100}}
"""The number of pods of some workloads, by the kind of their nodes."""
SWITCHES = {
    "single-node": [],
    "operator-mig-single": ["kubectl label node $NODE nvidia.com/gpu.deploy.device-plugin=false --overwrite"],
    "operator-mig-mixed": ["kubectl label node $NODE nvidia.com/gpu.deploy.device-plugin=false --overwrite"],
    "gke-mig": ["kubectl label node $NODE gke-no-default-nvidia-gpu-device-plugin=true"],
    "gke-time-sharing": ["kubectl label node $NODE gke-no-default-nvidia-gpu-device-plugin=true"],
}
"""The commands by which the device plugin leaves a node, besides this driver's label."""


def planned(dryrun: DryRun, name: str, *flags: str) -> JSON:
    options = OLD if name in ("owners", "quotas") else ()
    code, out, err = dryrun("migrate", FOLDER / name, "-o", "json", *flags, *options)
    assert code == (3 if name == "owners" else 0), err
    found: JSON = json.loads(out)
    return found


@pytest.mark.parametrize("name", PODS)
def test_every_workload_gets_its_devices_on_the_planned_nodes(dryrun: DryRun, name: str) -> None:
    found = planned(dryrun, name, "--verify")
    demands = found["verification"]["demands"]
    assert [one["fits"] for one in demands] == [True] * PODS[name]
    places = Counter(one["name"].partition(",")[0] + " " + one["node"][:-3] for one in demands)
    assert places.items() >= PLACES.get(name, {}).items()
    assert found["values"] == VALUES.get(name, found["values"])


@pytest.mark.parametrize("name", PODS)
def test_every_step_has_checks_and_a_way_back_and_each_node_changes_once(dryrun: DryRun, name: str) -> None:
    found = planned(dryrun, name)
    steps = found["steps"]
    assert all(step["commands"] and step["checks"] and step["back"] for step in steps)
    changed = Counter(node for step in steps for node in step["nodes"])
    assert changed == Counter(one["name"] for one in found["nodes"])
    assert [bool(step["nodes"]) for step in (steps[0], steps[-1])] == [False, False]
    for step in steps:
        if step["nodes"]:
            order = [line.split("  #")[0] for line in step["commands"]]
            empty, away = (
                order.index("kubectl cordon $NODE"),
                order.index("kubectl label node $NODE gpu.nvidia.com/dra-driver=pending"),
            )
            ours = order.index("kubectl label node $NODE gpu.nvidia.com/dra-driver=true --overwrite")
            assert empty < away < ours < order.index("kubectl uncordon $NODE")
            assert any("allocatable" in line for line in order[away:ours]), "the plugin's resources must be gone first"
            if name in SWITCHES:
                assert [line for line in order[away + 1 : ours] if "kubectl label" in line] == SWITCHES[name]


def test_the_fleet_is_planned_by_kinds_of_nodes(dryrun: DryRun) -> None:
    found = planned(dryrun, "fleet")
    rules = [
        (rule.get("mig"), rule.get("shares"), len(rule["match"]["nodes"])) for rule in found["values"]["policy"]["gpus"]
    ]
    assert rules == [("static", None, 24), (None, 8, 16)]
    sizes = [len(step["nodes"]) for step in found["steps"] if step["nodes"]]
    assert sizes == [1, 1, 1, 1, 3, 7, 11, 15], "one node of each kind first, and small kinds before large ones"


def test_the_driver_is_first_installed_for_labelled_nodes(dryrun: DryRun) -> None:
    """The command's selector, in the chart's own rendering."""
    for name in ("single-node", "operator-mig-single"):
        found = planned(dryrun, name)
        (command,) = (line for line in found["steps"][0]["commands"] if line.startswith("helm "))
        assert command.endswith(r"--set-string 'kubeletPlugin.nodeSelector.gpu\.nvidia\.com/dra-driver=true'")
        marked = {"kubeletPlugin": {"nodeSelector": {"gpu.nvidia.com/dra-driver": "true"}}}
        spec = find(render(merged(found["values"], marked)), "DaemonSet")["spec"]["template"]["spec"]
        assert spec["nodeSelector"]["gpu.nvidia.com/dra-driver"] == "true"
        (last,) = (line for line in found["steps"][-1]["commands"] if line.startswith("helm "))
        assert "nodeSelector" not in last
        assert ("values-gpu-operator.yaml --values values.yaml" in command) == (name != "single-node")


def test_the_device_plugin_stays_away_from_labelled_nodes_and_keeps_its_own_affinity(dryrun: DryRun) -> None:
    steps = planned(dryrun, "time-slicing")["steps"]
    (patch,) = steps[1]["commands"]
    value = json.loads(patch.partition(" -p '")[2][:-1])
    affinity = value["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]},
        {"key": "gpu.nvidia.com/dra-driver", "operator": "DoesNotExist"},
    ]
    old = json.loads(steps[1]["back"][0].partition(" -p '")[2][:-1])["spec"]["template"]["spec"]["affinity"]
    (before,) = old["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert before["matchExpressions"] == term["matchExpressions"][:1]


def test_workloads_have_a_way_back_and_owners_are_changed_by_hand(dryrun: DryRun, tmp_path: Path) -> None:
    (step,) = [one for one in planned(dryrun, "quotas")["steps"] if one["title"] == "Change the workloads"]
    assert step["back"] == ["kubectl replace -f workloads-before.yaml"]
    (by_hand,) = [one for one in planned(dryrun, "owners")["steps"] if one["title"] == "Change the workloads"]
    assert len(by_hand["commands"]) == 4
    assert by_hand["commands"][0].startswith("# by hand, RayCluster ray/train: change RayCluster ray/train in spec.")
    code, _, err = dryrun("migrate", FOLDER / "quotas", *OLD, "--write", tmp_path)
    assert code == 0, err
    before = (tmp_path / "workloads-before.yaml").read_text(encoding="utf-8")
    assert "nvidia.com/gpu: 1" in before
    assert "resourceClaims" not in before
    assert (tmp_path / "steps.md").read_text(encoding="utf-8").startswith("# The change\n")
