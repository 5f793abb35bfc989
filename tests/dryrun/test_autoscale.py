# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun autoscale`: the groups that take a pod, and why a node stays."""

import copy
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.dryrun.autoscale.autoscaler import blocker, pool_utilization
from dra_driver.dryrun.nodetypes import simulated_nodes
from dra_driver.kube.resource import ResourceSlice
from dra_driver.kube.resource.codec import V1, encode_slice
from dra_driver.names import DRIVER_NAME
from dra_driver.scheduler.pods.objects import DisruptionBudget, LabelSelector
from tests.dryrun.conftest import DryRun
from tests.dryrun.drain.world import JSON, claim, device_class, nodes, pod, running, save
from tests.support.autoscaler import utilization

NODE, OTHER = "new-h100x8-1", "new-h100x8-2"
KINDS = ["h100x8", "h100x8-mig", "h100x8-mixed", "l4x4-shares"]


@lru_cache(maxsize=len(KINDS))
def pool(kind: str) -> tuple[ResourceSlice, ...]:
    made = simulated_nodes(kind, 1)
    return tuple(one for one in made if isinstance(one, ResourceSlice) and one.driver == DRIVER_NAME)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(KINDS), st.randoms(use_true_random=False), st.floats(0, 1))
def test_utilization_is_that_of_the_formula_of_cluster_autoscaler(kind: str, random: Any, part: float) -> None:
    slices = pool(kind)
    names = [device.name for one in slices for device in one.devices]
    held = {name for name in names if random.random() < part}
    expected = utilization([encode_slice(one, V1) for one in slices], held)
    assert pool_utilization(slices, held) == pytest.approx(expected)


# Pods that keep a node

BUDGET = DisruptionBudget("team", LabelSelector(), 0)
SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"


def changed(owner: str = "ReplicaSet", namespace: str = "team", phase: str = "Running", **more: Any) -> JSON:
    value = copy.deepcopy(pod("p", NODE, owner="o" if owner else ""))
    metadata = value["metadata"]
    metadata["namespace"] = namespace
    metadata["annotations"] = more.get("annotations", {})
    if owner:
        metadata["ownerReferences"][0]["kind"] = owner
    value["status"] = {"phase": phase}
    value["spec"] |= {"volumes": more.get("volumes", []), "restartPolicy": more.get("restarts", "Always")}
    return value


EMPTY_DIR = {"name": "scratch", "emptyDir": {}}
BLOCKERS: list[tuple[JSON, str]] = [
    (changed(), ""),
    (changed("DaemonSet"), ""),
    (changed("Job"), ""),
    (changed(""), "it has no controller"),
    (changed("RayCluster"), "its controller is a RayCluster"),
    (changed("", annotations={SAFE: "true"}), ""),
    (changed(annotations={SAFE: "false"}), "has the annotation"),
    (changed(annotations={SAFE: "on-completion"}), "on-completion"),
    (changed("", annotations={"kubernetes.io/config.mirror": "x"}), ""),
    (changed(namespace="kube-system"), "kube-system"),
    (changed("DaemonSet", namespace="kube-system"), ""),
    (changed(volumes=[EMPTY_DIR]), "its volume scratch is on the node"),
    (changed(volumes=[{"name": "host", "hostPath": {"path": "/x"}}]), "its volume host is on the node"),
    (changed(volumes=[{"name": "memory", "emptyDir": {"medium": "Memory"}}]), ""),
    (
        changed(
            volumes=[EMPTY_DIR],
            annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": "scratch"},
        ),
        "",
    ),
    (changed("", phase="Failed"), ""),
    (changed("", phase="Succeeded", restarts="Never"), ""),
    (changed("", phase="Succeeded"), "it has no controller"),
]


@pytest.mark.parametrize(("value", "reason"), BLOCKERS)
def test_pods_that_keep_their_node(value: JSON, reason: str) -> None:
    found = blocker(value, ())
    assert (reason in found) if reason else (found == "")


def test_budget_without_disruptions_keeps_a_node() -> None:
    assert blocker(changed(), [BUDGET]) == "a PodDisruptionBudget allows no disruption"
    assert blocker(changed(namespace="another"), [BUDGET]) == ""


# Pending pods


def asked(dryrun: DryRun, *arguments: object) -> tuple[int, JSON]:
    code, out, err = dryrun("autoscale", *arguments, "-o", "json")
    assert out, err
    return code, json.loads(out)


def waiting(folder: Path, count: int = 1, **spec: Any) -> Path:
    file = folder / "pod.yaml"
    file.write_text(yaml.safe_dump_all([pod("waits", **spec), claim("waits", count=count)]), encoding="utf-8")
    return file


def full(node: str) -> list[JSON]:
    return [one for index in range(8) for one in running(f"{node}-{index}", node, f"gpu-{index}")]


def takes(document: JSON) -> dict[str, bool]:
    return {group["group"]: group["takes"] for group in document["pods"][0]["groups"]}


def test_group_takes_a_pod_that_fits_on_its_template(dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *nodes("h100x8", 1), device_class(), *full(NODE))
    groups = ("--group", "big=h100x8", "--group", "small=gh200x1")
    code, document = asked(dryrun, waiting(tmp_path, 4), "--slices", cluster, *groups)
    assert code == 0
    assert takes(document) == {"big": True, "small": False}
    assert "has only 1 gpu.nvidia.com device of the 4" in document["pods"][0]["groups"][1]["reason"]


def test_pod_that_no_group_takes_stays_pending(dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *nodes("h100x8", 1), device_class(), *full(NODE))
    code, document = asked(dryrun, waiting(tmp_path, 4), "--slices", cluster, "--group", "small=gh200x1")
    assert code == 1
    assert takes(document) == {"small": False}


def test_no_node_is_added_for_a_pod_that_fits(dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *nodes("h100x8", 1), device_class())
    code, document = asked(dryrun, waiting(tmp_path), "--slices", cluster, "--group", "big=h100x8")
    assert (code, document["pods"][0]["fitsOn"]) == (0, NODE)


def test_output_of_node_template_is_a_template(dryrun: DryRun, tmp_path: Path) -> None:
    _, out, _ = dryrun("node-template", "l4x4")
    template = tmp_path / "template.yaml"
    template.write_text(out, encoding="utf-8")
    cluster = save(tmp_path, *nodes("h100x8", 1), device_class(), *full(NODE))
    code, document = asked(dryrun, waiting(tmp_path, 4), "--slices", cluster, "--group", f"l4={template}")
    assert (code, takes(document)) == (0, {"l4": True})


def test_node_of_the_cluster_is_a_template_without_its_pods(dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *nodes("h100x8", 1), device_class(), *full(NODE))
    code, document = asked(dryrun, waiting(tmp_path, 8), "--slices", cluster, "--group", f"same={NODE}")
    assert (code, takes(document)) == (0, {"same": True})


def test_daemon_sets_hold_devices_on_a_new_node(dryrun: DryRun, tmp_path: Path) -> None:
    daemon, held = running("monitor", NODE, "gpu-0")
    daemon["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "monitor", "uid": "uid-monitor", "controller": True}
    held["metadata"]["ownerReferences"] = [owner]
    cluster = save(tmp_path, *nodes("h100x8", 1), device_class(), daemon, held)
    _, document = asked(dryrun, waiting(tmp_path, 8), "--slices", cluster, "--group", f"same={NODE}")
    assert takes(document) == {"same": False}
    _, document = asked(dryrun, waiting(tmp_path, 7), "--slices", cluster, "--group", f"same={NODE}")
    assert document["pods"][0]["fitsOn"] == NODE


@pytest.mark.parametrize(
    ("key", "expected"),
    [("startup-taint.cluster-autoscaler.kubernetes.io/gpu.nvidia.com", True), ("example.com/dedicated", False)],
)
def test_start_up_taint_is_left_out_of_a_template(key: str, expected: bool, dryrun: DryRun, tmp_path: Path) -> None:
    objects = nodes("h100x8", 1)
    node = next(one for one in objects if one["kind"] == "Node")
    node["spec"] = {"taints": [{"key": key, "effect": "NoSchedule"}]}
    cluster = save(tmp_path, *objects, device_class())
    _, document = asked(dryrun, waiting(tmp_path), "--slices", cluster, "--group", f"same={NODE}")
    assert takes(document) == {"same": expected}


def test_groups_are_those_of_the_labels_of_clouds(dryrun: DryRun, tmp_path: Path) -> None:
    objects = nodes("h100x8", 2)
    for node, group in zip((one for one in objects if one["kind"] == "Node"), ("train", "serve"), strict=True):
        node["metadata"]["labels"]["eks.amazonaws.com/nodegroup"] = group
    cluster = save(tmp_path, *objects, device_class(), *full(NODE), *full(OTHER))
    _, document = asked(dryrun, waiting(tmp_path), "--slices", cluster)
    assert takes(document) == {"serve": True, "train": True}


# Nodes


def stays(dryrun: DryRun, *objects: JSON, folder: Path) -> JSON:
    cluster = save(folder, *nodes("h100x8", 2), device_class(), *objects)
    _, document = asked(dryrun, "--node", NODE, "--slices", cluster)
    (node,) = document["nodes"]
    found: JSON = node
    return found


def test_idle_node_is_removed(dryrun: DryRun, tmp_path: Path) -> None:
    assert stays(dryrun, folder=tmp_path)["stays"] is False


def test_node_whose_pods_fit_elsewhere_is_removed(dryrun: DryRun, tmp_path: Path) -> None:
    node = stays(dryrun, *running("a", NODE, "gpu-0"), *running("b", NODE, "gpu-1"), folder=tmp_path)
    assert (node["stays"], node["utilization"]) == (False, 0.25)


def test_node_stays_above_the_threshold(dryrun: DryRun, tmp_path: Path) -> None:
    pods = [one for index in range(5) for one in running(f"p{index}", NODE, f"gpu-{index}")]
    node = stays(dryrun, *pods, folder=tmp_path)
    assert node["utilization"] == 0.625
    assert node["utilizationOf"] == f"gpu.nvidia.com/{NODE}"
    assert node["reasons"] == [f"more than 0.5 of gpu.nvidia.com/{NODE} is in use (--scale-down-utilization-threshold)"]


def test_node_stays_for_a_pod_that_fits_nowhere_else(dryrun: DryRun, tmp_path: Path) -> None:
    node = stays(dryrun, *running("a", NODE, "gpu-0"), *full(OTHER), folder=tmp_path)
    assert node["reasons"] == [
        "pod team/a fits on no other node: 0/1 nodes are available: 1 cannot allocate all claims."
    ]


def test_node_stays_for_a_pod_without_a_controller(dryrun: DryRun, tmp_path: Path) -> None:
    node = stays(dryrun, *running("a", NODE, "gpu-0", owner=""), folder=tmp_path)
    assert node["reasons"] == ["pod team/a may not be moved: it has no controller"]


def test_node_stays_with_the_annotation(dryrun: DryRun, tmp_path: Path) -> None:
    objects = nodes("h100x8", 1)
    node = next(one for one in objects if one["kind"] == "Node")
    node["metadata"]["annotations"] = {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}
    _, document = asked(dryrun, "--node", NODE, "--slices", save(tmp_path, *objects, device_class()))
    assert "scale-down-disabled" in document["nodes"][0]["reasons"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name pods (FILE, pod/NAME or --all-pending), or give --node"),
        (("--node", "nowhere"), "has no such node"),
        (("POD", "--group", "x"), "write NAME=TEMPLATE"),
        (("POD", "--group", "x=nothing"), "there is no such file or type of nodes"),
        (("POD",), "no node group is known"),
    ],
)
def test_wrong_input_is_an_error(arguments: tuple[str, ...], said: str, dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *nodes("h100x8", 1), device_class(), *full(NODE))
    words = [str(waiting(tmp_path)) if word == "POD" else word for word in arguments]
    code, _, err = dryrun("autoscale", *words, "--slices", cluster)
    assert code == 2
    assert said in err


def test_answer_for_people(dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *nodes("h100x8", 1), device_class(), *full(NODE))
    _, out, _ = dryrun("autoscale", waiting(tmp_path), "--slices", cluster, "--group", "big=h100x8", "--node", NODE)
    assert "scales up  Pod team/waits: 1 group would take it" in out
    assert f"stays  {NODE}: utilization 1 of gpu.nvidia.com/{NODE}" in out
