# SPDX-License-Identifier: Apache-2.0
"""ResourceQuotas of the sandbox: what is refused, what is counted, and that other pods go on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, StatusError
from dra_driver.kube.kinds import EVENTS, NAMESPACES, PODS, RESOURCE_QUOTAS
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from dra_driver.sandbox.claimcontroller import ClaimController
from dra_driver.sandbox.loop import CLAIMS, CLASSES, TEMPLATES, ControlLoop
from dra_driver.sandbox.quotas import QuotaCheck, QuotaCounter
from tests.support.apiserver import connect
from tests.support.waiting import wait_for

JSON = dict[str, Any]
DEVICES = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ApiClient]:
    """A cluster whose namespace default may have 3 devices of class gpu.nvidia.com, and 2 pods."""
    server = ApiServer(ApiServerOptions(minor=36, tls=False))
    server.cluster.check_new = QuotaCheck(server.cluster.store)
    with server, connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client:
        device_class = {"kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}, "spec": {}}
        client.create(CLASSES, {"apiVersion": V1.api_version, **device_class})
        hard = {DEVICES: "3", "pods": "2"}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}
        client.create(RESOURCE_QUOTAS, quota, "default")
        loop = ControlLoop(client, [ClaimController(client), QuotaCounter(client)])
        loop.start()
        try:
            yield client
        finally:
            loop.stop()


def spec(count: int) -> JSON:
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": count}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def claim(name: str, count: int) -> JSON:
    return {"apiVersion": V1.api_version, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec(count)}


def pod(name: str, template: str = "") -> JSON:
    claims = [{"name": "gpu", "resourceClaimTemplateName": template}] if template else []
    containers = [{"name": "main", "image": "busybox"}]
    value = {"containers": containers, "resourceClaims": claims}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": value}


def template(count: int) -> JSON:
    kind = "ResourceClaimTemplate"
    return {"apiVersion": V1.api_version, "kind": kind, "metadata": {"name": "gpus"}, "spec": {"spec": spec(count)}}


def test_claim_over_the_quota_is_refused_in_the_words_of_kubernetes(client: ApiClient) -> None:
    client.create(CLAIMS, claim("first", 2), "default")
    with pytest.raises(StatusError) as refused:
        client.create(CLAIMS, claim("second", 2), "default")
    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")
    assert refused.value.message == (
        'resourceclaims.resource.k8s.io "second" is forbidden: exceeded quota: gpus,'
        f" requested: {DEVICES}=2, used: {DEVICES}=2, limited: {DEVICES}=3"
    )
    client.create(CLAIMS, claim("third", 1), "default")


def test_quota_of_one_namespace_does_not_count_for_another(client: ApiClient) -> None:
    client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    assert client.create(CLAIMS, claim("many", 8), "other")["metadata"]["namespace"] == "other"


def test_status_of_a_quota_follows_what_is_used(client: ApiClient) -> None:
    client.create(PODS, pod("first"), "default")
    client.create(CLAIMS, claim("first", 2), "default")
    wait_for(lambda: used(client) == {DEVICES: "2", "pods": "1"}, "the first counts")
    client.delete(CLAIMS, "first", "default")
    wait_for(lambda: used(client) == {DEVICES: "0", "pods": "1"}, "the deleted claim not to count")


def test_invalid_pod_is_told_its_mistake_and_not_the_quota(client: ApiClient) -> None:
    for name in ("first", "second"):
        client.create(PODS, pod(name), "default")
    with pytest.raises(StatusError) as refused:
        client.create(PODS, {**pod("third"), "spec": {"containers": []}}, "default")
    assert refused.value.status == 422
    with pytest.raises(StatusError, match="exceeded quota: gpus, requested: pods=1, used: pods=2, limited: pods=2"):
        client.create(PODS, pod("third"), "default")


def test_claim_of_a_template_that_is_refused_does_not_stop_other_pods(client: ApiClient) -> None:
    client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    for namespace in ("default", "other"):
        client.create(TEMPLATES, template(4), namespace)
        client.create(PODS, pod("wants", "gpus"), namespace)
    wait_for(lambda: client.list(CLAIMS, namespace="other").items, "the claim of the other pod")
    told = wait_for(lambda: client.list(EVENTS, namespace="default").items, "the event of the refused one")
    assert told[0]["reason"] == "FailedResourceClaimCreation"
    assert "exceeded quota: gpus" in told[0]["message"]
    assert client.list(CLAIMS, namespace="default").items == []


def used(client: ApiClient) -> JSON:
    status: JSON = client.get(RESOURCE_QUOTAS, "gpus", "default").get("status") or {}
    return dict(status.get("used") or {})
