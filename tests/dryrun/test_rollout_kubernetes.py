# SPDX-License-Identifier: Apache-2.0
"""Workloads that Kubernetes' own controllers have made: their templates have the defaults of a real API server."""

import copy
from pathlib import Path
from typing import Any

from dra_driver.kube.api import Kind
from dra_driver.kube.kinds import NODES, PODS
from tests.sandbox.controlplane import kubernetes
from tests.support.apiserver import connect
from tests.support.waiting import wait_for

from .conftest import DryRun, Write
from .test_whole_pod import node

JSON = dict[str, Any]
PLURALS = {"Deployment": "deployments", "StatefulSet": "statefulsets", "DaemonSet": "daemonsets"}
PROBE = {"httpGet": {"port": 80}}
CONTAINER: JSON = {
    "name": "main",
    "image": "registry/app:1",
    "env": [
        {"name": "EMPTY", "value": ""},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ],
    "ports": [{"containerPort": 80}],
    "resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}},
    "livenessProbe": PROBE,
    "lifecycle": {"preStop": PROBE},
    "volumeMounts": [{"name": "empty", "mountPath": "/e", "readOnly": False}],
    "securityContext": {"allowPrivilegeEscalation": False},
}
TOKEN = {"serviceAccountToken": {"path": "token"}}
SPEC: JSON = {
    "initContainers": [{"name": "sidecar", "image": "registry/sidecar", "restartPolicy": "Always"}],
    "containers": [CONTAINER],
    "serviceAccountName": "default",
    "securityContext": {},
    "volumes": [
        {"name": "empty"},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "map", "configMap": {"name": "m"}},
        {"name": "projected", "projected": {"sources": [TOKEN]}},
        {"name": "host", "hostPath": {"path": "/data"}},
    ],
}


def workload(kind: str, image: str = "registry/app:1") -> JSON:
    spec = copy.deepcopy(SPEC)
    spec["containers"][0]["image"] = image
    labels = {"app": kind.lower()}
    more: JSON = {} if kind == "DaemonSet" else {"replicas": 1}
    if kind == "StatefulSet":
        more["serviceName"] = "none"
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": kind.lower()},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **more},
    }


def test_only_a_changed_template_is_an_update(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    with kubernetes(tmp_path) as kubeconfig, connect(kubeconfig) as client:
        client.create(NODES, node("a", "64"))
        status = {**node("a", "64")["status"], "conditions": [{"type": "Ready", "status": "True"}]}
        client.patch(NODES, "a", {"status": status}, subresource="status")  # the node controller writes the node, too
        for kind, plural in PLURALS.items():
            client.create(Kind("apps/v1", plural, namespaced=True), workload(kind), "default")

        def bound() -> int:
            return sum("nodeName" in pod["spec"] for pod in client.list(PODS, namespace="default").items)

        wait_for(lambda: bound() == len(PLURALS), "a pod of each workload", 120)

        def answer(image: str) -> str:
            items = [workload(kind, image) for kind in PLURALS]
            file = write("workloads.json", {"apiVersion": "v1", "kind": "List", "items": items})
            code, out, err = dryrun(file, "--kubeconfig", kubeconfig)
            assert code == 0, out + err
            return out

        same, changed = answer("registry/app:1"), answer("registry/app:2")
    assert same.count("running  ") == len(PLURALS), same
    assert "is not known" not in same
    assert changed.count(", update, pod") == len(PLURALS), changed
