# SPDX-License-Identifier: Apache-2.0
"""Reservations of claims, of which the controller's list of pods may be older than its list of claims."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import PODS
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.claimcontroller import ClaimController
from dra_driver.sandbox.loop import CLAIMS, connection
from dra_driver.sandbox.watchedlists import WatchedLists
from tests.support.apiserver import embedded

JSON = dict[str, Any]


class Cluster:
    """An administrator, and a controller whose watch of pods has not reported any pod."""

    def __init__(self, admin: ApiClient, reader: ApiClient) -> None:
        self.admin = admin
        self.controller = ClaimController(reader)
        reader.list(PODS)

    def pod(self) -> JSON:
        """A new pod."""
        spec = {"containers": [{"name": "main", "image": "busybox"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        return self.admin.create(PODS, pod, "default")

    def reserve(self, uid: str) -> None:
        """A claim with an allocation for the pod with this UID."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        meta, spec = {"name": "claim"}, {"devices": {"requests": [request]}}
        claim = {"apiVersion": V1.api_version, "kind": "ResourceClaim", "metadata": meta, "spec": spec}
        claim = self.admin.create(CLAIMS, claim, "default")
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node", "device": "gpu-0"}
        reserved = [{"resource": "pods", "name": "pod", "uid": uid}]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
        self.admin.update(CLAIMS, {**claim, "status": status}, subresource="status")

    def reserved(self) -> list[str]:
        """The UIDs of the pods for which the claim is reserved."""
        claim = self.admin.get(CLAIMS, "claim", "default")
        return [consumer["uid"] for consumer in claim.get("status", {}).get("reservedFor") or []]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with embedded(tmp_path) as (_, kubeconfig, admin), connection(kubeconfig) as opened:
        lists = WatchedLists(opened)
        lists.add(PODS, lambda: None)
        made = Cluster(admin, lists)
        yield made
        made.controller.close()


def test_reservation_for_a_pod_that_is_newer_than_the_list_stays(cluster: Cluster) -> None:
    uid = cluster.pod()["metadata"]["uid"]
    cluster.reserve(uid)
    cluster.controller.step()
    assert cluster.reserved() == [uid]


def test_reservation_for_a_pod_of_the_same_name_is_removed(cluster: Cluster) -> None:
    cluster.pod()
    cluster.reserve("7a2c")
    cluster.controller.step()
    assert cluster.reserved() == []


def test_reservation_for_a_pod_that_is_gone_is_removed(cluster: Cluster) -> None:
    cluster.reserve("7a2c")
    cluster.controller.step()
    assert cluster.reserved() == []
