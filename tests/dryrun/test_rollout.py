# SPDX-License-Identifier: Apache-2.0
"""Workloads of which the cluster runs pods already: the missing pods, or the update, are evaluated."""

from typing import Any

import pytest

from .conftest import gpu, slice_of
from .test_whole_pod import Ask, ask, node, pod

__all__ = ["ask"]

JSON = dict[str, Any]
LABELS = {"app": "web"}
SPEC: JSON = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}]}}
TEMPLATE: JSON = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one-gpu"},
    "spec": {"spec": SPEC},
}
OWNERS = {
    "Deployment": ("ReplicaSet", "web-abc"),
    "StatefulSet": ("StatefulSet", "web"),
    "ReplicaSet": ("ReplicaSet", "web"),
}


def workload(kind: str = "Deployment", replicas: int = 3, cpu: str = "1", **more: Any) -> JSON:
    """A workload whose pods need a GPU each."""
    template = pod("web", cpu, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}])
    template["metadata"] = {"labels": LABELS}
    spec = {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template, **more}
    del template["apiVersion"], template["kind"]
    if kind == "StatefulSet":
        spec["serviceName"] = "web"
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"}, "spec": spec}


def of_workload(index: int, kind: str = "Deployment", owner: str = "") -> list[JSON]:
    """A running pod of the workload, and its claim, which holds a GPU."""
    name = f"web-{index}" if kind == "StatefulSet" else f"web-abc-{index}"
    controller, controller_name = OWNERS[kind]
    made = pod(name, "1", nodeName="a", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}])
    own = {
        "apiVersion": "apps/v1",
        "kind": controller,
        "name": owner or controller_name,
        "uid": "w",
        "controller": True,
    }
    made["metadata"] |= {"labels": {**LABELS, "pod-template-hash": "abc"}, "ownerReferences": [own]}
    made["status"] = {
        "phase": "Running",
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"{name}-gpu-x"}],
    }
    of_pod = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": True}
    results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "a", "device": f"gpu-{index}"}]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"{name}-gpu-x", "namespace": "default", "ownerReferences": [of_pod]},
        "spec": SPEC,
        "status": {"allocation": {"devices": {"results": results}}},
    }
    return [made, claim]


def cluster(gpus: int, there: int, kind: str = "Deployment", **more: Any) -> list[JSON]:
    """A node with GPUs, of which pods of the workload hold some."""
    pods = [one for index in range(there) for one in of_workload(index, kind, **more)]
    return [node("a", "64"), slice_of("a", *(gpu(f"gpu-{number}") for number in range(gpus))), *pods]


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_a_workload_that_runs_fits_without_free_devices(kind: str, ask: Ask) -> None:
    code, out = ask([TEMPLATE, workload(kind)], *cluster(3, 3, kind))
    assert code == 0, out
    assert out.count("running  ") == 3
    assert "wait for claim" not in out


@pytest.mark.parametrize(("gpus", "code"), [(4, 0), (3, 1)])
def test_only_the_missing_pods_are_placed(gpus: int, code: int, ask: Ask) -> None:
    found, out = ask([TEMPLATE, workload(replicas=4)], *cluster(gpus, 3))
    assert found == code, out
    assert ("fits" if code == 0 else "fits nowhere") + "  Deployment web, missing pod 1 of 1" in out


def test_fewer_replicas_than_run_need_nothing(ask: Ask) -> None:
    code, out = ask([TEMPLATE, workload(replicas=2)], *cluster(3, 3))
    assert code == 0, out


def test_pods_of_another_owner_are_not_those_of_the_workload(ask: Ask) -> None:
    code, out = ask([TEMPLATE, workload(replicas=1)], *cluster(1, 1, owner="other-abc"))
    assert code == 1, out
    assert "fits nowhere  Deployment web" in out


@pytest.mark.parametrize(
    ("strategy", "gpus", "code"),
    [
        ({"type": "Recreate"}, 3, 0),
        ({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, 3, 1),
        ({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, 4, 0),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, 3, 0),
        ({"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": "0%"}}, 4, 0),
        ({}, 3, 1),
        ({}, 4, 0),
    ],
)
def test_an_update_of_a_deployment_follows_its_strategy(strategy: JSON, gpus: int, code: int, ask: Ask) -> None:
    found, out = ask([TEMPLATE, workload(cpu="2", strategy=strategy)], *cluster(gpus, 3))
    assert found == code, out
    assert ("fits nowhere" if code else "fits") + "  Deployment web, update, pod 1 of 3" in out


@pytest.mark.parametrize(("partition", "updated"), [(0, 3), (2, 1), (3, 0)])
def test_an_update_of_a_stateful_set_ends_at_its_partition(partition: int, updated: int, ask: Ask) -> None:
    strategy = {"rollingUpdate": {"partition": partition}}
    code, out = ask(
        [TEMPLATE, workload("StatefulSet", cpu="2", updateStrategy=strategy)], *cluster(3, 3, "StatefulSet")
    )
    assert code == 0, out
    assert (out.count(", update, pod "), out.count("running  ")) == (updated, 3 - updated)


def test_an_update_that_asks_for_more_than_the_pods_release_is_refused(ask: Ask) -> None:
    two = {
        **TEMPLATE,
        "spec": {
            "spec": {
                "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}
            }
        },
    }
    code, out = ask([two, workload("StatefulSet")], *cluster(3, 3, "StatefulSet"))
    assert code == 1, out
    assert "fits nowhere  StatefulSet web, update, pod 3 of 3" in out
