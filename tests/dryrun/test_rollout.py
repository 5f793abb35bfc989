# SPDX-License-Identifier: Apache-2.0
"""Workloads of which the cluster runs pods already: the missing pods, or the update, are evaluated."""

import copy
from typing import Any

import pytest

from dra_driver.dryrun.daemons import tolerating

from .conftest import gpu, slice_of
from .test_whole_pod import Ask, ask, node, pod

__all__ = ["ask"]

JSON = dict[str, Any]
LABELS = {"app": "web"}
IMAGE = "registry/old"
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
    "DaemonSet": ("DaemonSet", "web"),
    "Job": ("Job", "web"),
}


def workload(kind: str = "Deployment", replicas: int = 3, cpu: str = "1", **more: Any) -> JSON:
    """A workload whose pods need a GPU each."""
    template = pod("web", cpu, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}])
    template["metadata"] = {"labels": LABELS}
    template["spec"]["containers"][0]["image"] = IMAGE
    spec = {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template, **more}
    del template["apiVersion"], template["kind"]
    if kind == "StatefulSet":
        spec["serviceName"] = "web"
    if kind in ("DaemonSet", "Job"):
        del spec["replicas"]
    if kind == "Job":
        del spec["selector"]
        template["spec"]["restartPolicy"] = "Never"
        spec |= {"parallelism": replicas, **more}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, "spec": spec}


def revision(kind: str) -> str:
    """The label that names the ControllerRevision of a pod."""
    return "web-rev" if kind == "StatefulSet" else "rev"


def made_from(value: JSON, **fields: Any) -> JSON:
    """The ReplicaSet or ControllerRevision with the workload's template as the server stores it, and other fields."""
    template = copy.deepcopy(value["spec"]["template"])
    template["metadata"]["creationTimestamp"] = None
    template["spec"] |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {}, **fields}
    for container in template["spec"]["containers"]:
        container |= {"imagePullPolicy": "Always", "terminationMessagePolicy": "File"}
    if value["kind"] == "Deployment":
        template["metadata"]["labels"]["pod-template-hash"] = "abc"
        spec = {**value["spec"], "template": template}
        return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web-abc"}, "spec": spec}
    data = {"spec": {"template": {**template, "$patch": "replace"}}}
    metadata = {"name": "web-rev", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "data": data, "revision": 1}


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
    if kind == "DaemonSet":
        made["spec"] = tolerating(made["spec"])
    made["metadata"] |= {"ownerReferences": [own]}
    made["metadata"]["labels"] = {**LABELS, "pod-template-hash": "abc", "controller-revision-hash": revision(kind)}
    made["spec"]["containers"][0]["image"] = IMAGE
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


def test_a_stateful_set_with_on_delete_replaces_no_pod(ask: Ask) -> None:
    wanted = workload("StatefulSet", 4, cpu="2", updateStrategy={"type": "OnDelete"})
    code, out = ask([TEMPLATE, wanted], *cluster(4, 3, "StatefulSet"))
    assert code == 0, out
    assert out.count("running  ") == 3
    assert "missing pod web-3" in out


@pytest.mark.parametrize(
    ("strategy", "gpus", "code"),
    [
        ({}, 1, 0),
        ({"type": "OnDelete"}, 1, 0),
        ({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, 1, 1),
        ({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, 2, 0),
    ],
)
def test_an_update_of_a_daemon_set_follows_its_strategy(strategy: JSON, gpus: int, code: int, ask: Ask) -> None:
    found, out = ask(
        [TEMPLATE, workload("DaemonSet", cpu="2", updateStrategy=strategy)], *cluster(gpus, 1, "DaemonSet")
    )
    assert found == code, out
    assert (", update, " in out) == (strategy.get("type") != "OnDelete")


def test_a_daemon_set_that_runs_fits_without_free_devices(ask: Ask) -> None:
    code, out = ask([TEMPLATE, workload("DaemonSet")], *cluster(1, 1, "DaemonSet"))
    assert code == 0, out
    assert "running  DaemonSet web" in out


@pytest.mark.parametrize(
    ("completions", "succeeded", "missing"), [(4, 0, 2), (4, 1, 1), (4, 2, 0), (None, 0, 2), (None, 1, 0)]
)
def test_a_job_makes_no_pods_for_what_has_succeeded(
    completions: int | None, succeeded: int, missing: int, ask: Ask
) -> None:
    objects = cluster(4, 2, "Job")
    for index in range(succeeded):
        ended, _ = of_workload(10 + index, "Job")
        ended["status"] = {"phase": "Succeeded"}
        objects.append(ended)
    more: JSON = {} if completions is None else {"completions": completions}
    wanted = workload("Job", 4, **more)
    code, out = ask([TEMPLATE, wanted], *objects)
    assert code == 0, out
    assert out.count("running  ") == 2
    assert out.count("missing pod") == missing


UPDATED = {"Deployment": 3, "StatefulSet": 3, "DaemonSet": 1}


@pytest.mark.parametrize("kind", UPDATED)
@pytest.mark.parametrize("is_known", [True, False], ids=["template", "pods"])
def test_a_change_of_the_image_is_an_update(kind: str, is_known: bool, ask: Ask) -> None:
    wanted = workload(kind)
    objects = cluster(4, UPDATED[kind], kind) + ([made_from(wanted)] if is_known else [])
    wanted["spec"]["template"]["spec"]["containers"][0]["image"] = "registry/new:2"
    code, out = ask([TEMPLATE, wanted], *objects)
    assert code == 0, out
    assert out.count(", update, pod ") == UPDATED[kind]


@pytest.mark.parametrize("kind", UPDATED)
def test_a_template_with_the_defaults_of_the_server_is_no_update(kind: str, ask: Ask) -> None:
    wanted = workload(kind)
    code, out = ask([TEMPLATE, wanted], *cluster(3, UPDATED[kind], kind), made_from(wanted))
    assert code == 0, out
    assert out.count("running  ") == UPDATED[kind]
    assert "is not known" not in out


@pytest.mark.parametrize("kind", UPDATED)
def test_a_field_that_the_manifest_lacks_is_an_update(kind: str, ask: Ask) -> None:
    wanted = workload(kind)
    code, out = ask([TEMPLATE, wanted], *cluster(4, UPDATED[kind], kind), made_from(wanted, hostname="old"))
    assert code == 0, out
    assert out.count(", update, pod ") == UPDATED[kind]


def test_a_restarted_deployment_is_no_update(ask: Ask) -> None:
    wanted = workload()
    stored = made_from(wanted)
    stored["spec"]["template"]["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "2026-01-01"}
    code, out = ask([TEMPLATE, wanted], *cluster(3, 3), stored)
    assert code == 0, out
    assert out.count("running  ") == 3


def test_a_template_that_is_not_known_is_named(ask: Ask) -> None:
    _, out = ask([TEMPLATE, workload()], *cluster(3, 3))
    said = "ReplicaSet default/web-abc is not known: only images, and what decides about nodes and devices was compared"
    assert said in " ".join(out.split())


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
