# SPDX-License-Identifier: Apache-2.0
"""Groups of pods of a cluster."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES, POD_GROUPS, PODS, slices_of, templates_of
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from tests.support.apiserver import connect

from ..conftest import DryRun, gpu, install_classes, slice_of
from .test_command import pod, pod_group, template

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]
GATES = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Path, ApiClient]]:
    """A cluster of 1.37 with two GPUs on one node, and its administrator's kubeconfig."""
    with ApiServer(ApiServerOptions(minor=37, gates=GATES, tls=False)) as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        with connect(kubeconfig) as client:
            install_classes(client)
            allocatable = {"cpu": "8", "memory": "8Gi", "pods": "110"}
            node = {"metadata": {"name": "node-a"}, "status": {"allocatable": allocatable}}
            client.create(NODES, {"apiVersion": "v1", "kind": "Node", **node})
            client.create(slices_of(V1), slice_of("node-a", gpu("gpu-0"), gpu("gpu-1")))
            client.create(templates_of(V1), template(), "default")
            yield kubeconfig, client


def test_group_of_the_cluster_is_evaluated_with_its_pending_pods(
    cluster: tuple[Path, ApiClient], dryrun: DryRun
) -> None:
    kubeconfig, client = cluster
    client.create(POD_GROUPS, pod_group(3), "default")
    for name in ("p", "q"):
        client.create(PODS, pod(name), "default")
    client.create(PODS, pod("r", nodeName="node-a", resourceClaims=[]), "default")
    client.create(PODS, pod("alone", ""), "default")
    for arguments in (("podgroup/train",), ("--all-pending",)):
        status, out, _ = dryrun("gangs", *arguments, "--kubeconfig", kubeconfig, "-o", "json")
        (answer,) = json.loads(out)["groups"]
        assert (answer["outcome"], answer["pods"], answer["running"]) == ("scheduled", 2, 1)
        assert status == 0


def test_group_that_does_not_exist_is_told(cluster: tuple[Path, ApiClient], dryrun: DryRun) -> None:
    kubeconfig, client = cluster
    client.create(PODS, pod("p"), "default")
    status, out, _ = dryrun("gangs", "podgroup/train", "--kubeconfig", kubeconfig, "-o", "json")
    (answer,) = json.loads(out)["groups"]
    assert (status, answer["outcome"]) == (1, "waiting")
    assert answer["notes"][0] == "the PodGroup is neither among the files nor in the cluster"
