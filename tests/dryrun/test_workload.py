# SPDX-License-Identifier: Apache-2.0
"""What pods, and what makes pods, bring to the scheduler."""

import re
import textwrap
from typing import Any

import pytest
import yaml

from dra_driver.dryrun.documents import parse
from dra_driver.dryrun.workload import Input, sort_documents

TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
"""
POD_SPEC: dict[str, Any] = {
    "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
}


def read(*texts: str) -> Input:
    return sort_documents(parse("\n---\n".join(textwrap.dedent(text) for text in texts), "file"))


def workload(kind: str, spec: dict[str, Any], api_version: str = "apps/v1") -> str:
    return yaml.safe_dump({"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec})


def pod(**changes: Any) -> str:
    return workload("Pod", {**POD_SPEC, **changes}, "v1")


@pytest.mark.parametrize(
    ("text", "pods"),
    [
        (pod(), 1),
        (workload("Deployment", {"replicas": 3, "template": {"spec": POD_SPEC}}), 3),
        (workload("Deployment", {"template": {"spec": POD_SPEC}}), 1),
        (workload("StatefulSet", {"replicas": 2, "template": {"spec": POD_SPEC}}), 2),
        (workload("ReplicaSet", {"replicas": 2, "template": {"spec": POD_SPEC}}), 2),
        (workload("Job", {"parallelism": 4, "template": {"spec": POD_SPEC}}, "batch/v1"), 4),
        (workload("Job", {"parallelism": 4, "completions": 3, "template": {"spec": POD_SPEC}}, "batch/v1"), 3),
        (workload("Job", {"completions": 3, "template": {"spec": POD_SPEC}}, "batch/v1"), 1),
        (workload("CronJob", {"jobTemplate": {"spec": {"template": {"spec": POD_SPEC}}}}, "batch/v1"), 1),
    ],
    ids=[
        "pod",
        "deployment",
        "default replicas",
        "statefulset",
        "replicaset",
        "job",
        "job with completions",
        "job of one after the other",
        "cronjob",
    ],
)
def test_every_pod_brings_a_claim_of_its_own(text: str, pods: int) -> None:
    demands = read(TEMPLATE, text).demands
    assert len(demands) == pods
    names = [claim.metadata.name for demand in demands for claim in demand.claims]
    assert len(set(names)) == pods


def test_a_claim_or_template_that_no_pod_uses_is_asked_for_by_itself() -> None:
    assert [demand.name for demand in read(CLAIM, TEMPLATE).demands] == [
        "ResourceClaim shared",
        "ResourceClaimTemplate one-gpu",
    ]
    assert [demand.name for demand in read(CLAIM, TEMPLATE, pod()).demands] == ["Pod w", "ResourceClaim shared"]


def test_pods_can_share_a_claim() -> None:
    spec = {**POD_SPEC, "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
    demands = read(CLAIM, workload("Deployment", {"replicas": 2, "template": {"spec": spec}})).demands
    assert [claim.metadata.name for demand in demands for claim in demand.claims] == ["shared", "shared"]


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ((TEMPLATE, pod(resourceClaims=[{"name": "gpu"}])), "exactly one of resourceClaimName and"),
        (
            (TEMPLATE, pod(containers=[{"name": "c", "resources": {"claims": [{"name": "gpus"}]}}])),
            r"'gpus' is not in resourceClaims \(there is gpu\)",
        ),
        (
            (TEMPLATE, pod(containers=[{"name": "c", "resources": {"claims": [{"name": "gpu", "request": "g"}]}}])),
            r"'g' is no request of the claim \(it has gpu\)",
        ),
        ((workload("Deployment", {"replicas": 1}),), "spec.template.spec: is missing"),
        ((CLAIM.replace("exactly", "exactli"),), "exactli"),
        ((CLAIM.replace("resource.k8s.io/v1", "resource.k8s.io/v2"),), "resource.k8s.io/v2"),
    ],
)
def test_invalid_object_is_an_error(texts: tuple[str, ...], complaint: str) -> None:
    (error, *_) = read(*texts).errors
    assert re.search(complaint, str(error))


def test_missing_template_is_a_verdict_of_its_pod() -> None:
    given = read(pod(), TEMPLATE.replace("one-gpu", "one-gpus"))
    assert given.errors == ()
    assert given.demands[0].missing == ("there is no ResourceClaimTemplate default/one-gpu; similar: default/one-gpus",)


def test_object_without_devices_is_ignored() -> None:
    found = read(CLAIM, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}")
    assert [one.kind for one in found.ignored] == ["ConfigMap"]
    assert len(found.demands) == 1


def test_an_exact_count_of_0_is_1_as_the_api_server_takes_it() -> None:
    (demand,) = read(
        CLAIM.replace("{deviceClassName: gpu.nvidia.com}", "{deviceClassName: gpu.nvidia.com, count: 0}")
    ).demands
    exactly = demand.claims[0].spec.requests[0].exactly
    assert exactly is not None
    assert exactly.count == 1
