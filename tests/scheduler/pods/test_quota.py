# SPDX-License-Identifier: Apache-2.0
"""ResourceQuota: which objects are counted, and in which order quotas refuse (the admission plugin of 1.36)."""

import pytest

from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import decode
from dra_driver.scheduler.pods import PodDecoder, Quotas

from .build import JSON, pod, quota, read

DELETED = "2026-01-01T00:00:00Z"
DELETED_SECONDS = 1767225600.0


def claim(name: str, device_class: str, count: int = 1) -> JSON:
    request = {"name": "r", "exactly": {"deviceClassName": device_class, "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }


def messages(item: JSON, *documents: JSON) -> list[str]:
    reader = read(*documents)
    decoded = PodDecoder().decode(item) if item["kind"] == "Pod" else decode(item)
    assert not isinstance(decoded, ResourceClaim) or decoded.metadata.name
    quotas = Quotas(reader.snapshot(), reader.templates)
    return list(quotas.decide(decoded, reader.policies().quotas).messages)  # type: ignore[arg-type]


def test_quota_whose_usage_is_not_counted_yet_refuses() -> None:
    hard = {"requests.cpu": "4", "pods": "3", "services": "1"}
    uncounted = quota(hard, status={"hard": hard, "used": {"pods": "0"}})
    assert messages(pod(requests={"cpu": "1"}), uncounted) == [
        'pods "p" is forbidden: status unknown for quota: q, resources: pods,requests.cpu'
    ]


def test_quota_ignores_missing_usage_of_other_kinds() -> None:
    hard = {"pods": "3", "services": "1"}
    assert not messages(pod(), quota(hard, status={"hard": hard, "used": {"pods": "0"}}))


def test_missing_requests_are_reported_before_any_quota_that_is_exceeded() -> None:
    exceeded = quota({"pods": "0"}, name="a")
    unspecified = quota({"requests.cpu": "1"}, name="b")
    assert messages(pod(), exceeded, unspecified) == [
        'pods "p" is forbidden: failed quota: b: must specify requests.cpu for: c'
    ]


def test_resource_that_is_not_requested_cannot_exceed_its_quota() -> None:
    hard = {"requests.cpu": "1"}
    full = quota(hard, status={"hard": hard, "used": {"requests.cpu": "2"}})
    assert not messages(pod(requests={"cpu": "0"}), full)


@pytest.mark.parametrize(("now", "counted"), [(DELETED_SECONDS + 30, "1"), (DELETED_SECONDS + 31, "0")])
def test_deleted_pod_counts_until_its_grace_period_has_passed(now: float, counted: str) -> None:
    deleted = pod("old", metadata={"deletionTimestamp": DELETED, "deletionGracePeriodSeconds": 30})
    reader = read(deleted, quota({"pods": "5", "count/pods": "5"}))
    used = Quotas(reader.snapshot(), clock=lambda: now).used(reader.policies().quotas[0])
    assert str(used["pods"]) == counted
    assert str(used["count/pods"]) == "1"


IMPLICIT = "requests.deviceclass.resource.kubernetes.io/gone"


def test_implicit_resource_of_a_missing_class_counts_claims_that_the_quota_counts_for_another_resource() -> None:
    documents = [claim("one", "gone", 2), claim("two", "gone", 3)]
    both = read(*documents, quota({IMPLICIT: "9", "count/resourceclaims.resource.k8s.io": "9"}))
    alone = read(*documents, quota({IMPLICIT: "9"}))
    assert str(Quotas(both.snapshot()).used(both.policies().quotas[0])[IMPLICIT]) == "5"
    assert str(Quotas(alone.snapshot()).used(alone.policies().quotas[0])[IMPLICIT]) == "0"


def test_claim_of_a_missing_class_is_charged_to_a_quota_that_counts_claims() -> None:
    refused = messages(claim("new", "gone", 4), quota({IMPLICIT: "3", "gone.deviceclass.resource.k8s.io/devices": "9"}))
    assert refused == [
        f'resourceclaims.resource.k8s.io "new" is forbidden: exceeded quota: q, requested: {IMPLICIT}=4,'
        f" used: {IMPLICIT}=0, limited: {IMPLICIT}=3"
    ]
