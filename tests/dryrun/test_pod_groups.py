# SPDX-License-Identifier: Apache-2.0
"""Claims that pods share with their PodGroup (KEP 5729)."""

from typing import Any

import pytest

from dra_driver.dryrun.documents import Document
from dra_driver.dryrun.evaluate import evaluate
from dra_driver.dryrun.workload import Input, sort_documents
from dra_driver.kube.resource.codec import decode
from dra_driver.scheduler.allocator import Features
from tests.dryrun.clusters import with_defaults

from .conftest import gpu, slice_of

JSON = dict[str, Any]
ENTRY = {"name": "gpu", "resourceClaimTemplateName": "one"}
NOT_EVALUATED = "the field spec.schedulingGroup of the pod is not evaluated: dra-dryrun gangs places the whole group"


def template() -> JSON:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one"},
        "spec": {"spec": {"devices": devices}},
    }


def pod(name: str, *entries: JSON, group: str = "gang") -> JSON:
    spec: JSON = {"containers": [{"name": "c", "image": "i"}], "resourceClaims": list(entries or (ENTRY,))}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def pod_group(*entries: JSON) -> JSON:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": list(entries)},
    }


def given(*values: JSON) -> Input:
    return sort_documents([Document(value, "pods.yaml") for value in values])


def names(found: Input) -> list[list[str]]:
    return [[claim.metadata.name for claim in demand.claims] for demand in found.demands]


def test_claim_that_equals_one_of_the_group_is_one_for_all_its_pods() -> None:
    found = given(template(), pod_group(ENTRY), pod("p"), pod("q"))
    assert names(found) == [["gang-gpu"], ["gang-gpu"]]
    assert found.demands[0].unknown == (NOT_EVALUATED,)
    assert "is that of PodGroup gang, one for all its pods" in found.demands[0].notes[0]
    objects = with_defaults([decode(slice_of("node-a", gpu("gpu-0")))])
    verdicts = evaluate(found.demands, objects, Features())
    assert [one.node for one in verdicts] == ["node-a", "node-a"], "one GPU is enough for both"


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "other", "resourceClaimTemplateName": "one"},
        {"name": "gpu", "resourceClaimTemplateName": "another"},
        {"name": "gpu", "resourceClaimName": "one"},
    ],
    ids=["name", "template", "claim"],
)
def test_claim_that_differs_from_those_of_the_group_is_the_pods_own(entry: JSON) -> None:
    found = given(template(), pod_group(entry), pod("p"), pod("q"))
    assert names(found) == [["p-gpu"], ["q-gpu"]]
    assert found.demands[0].notes == ()


def test_pod_of_another_group_shares_nothing() -> None:
    found = given(template(), pod_group(ENTRY), pod("p"), pod("q", group=""))
    assert names(found) == [["gang-gpu"], ["q-gpu"]]
    assert found.demands[1].unknown == ()


def test_group_that_is_not_known_makes_claims_uncertain() -> None:
    (demand,) = given(template(), pod("p")).demands
    assert demand.unknown[0] == NOT_EVALUATED
    assert "PodGroup default/gang is not among the files" in demand.unknown[1]
    assert "whether its pods share claims is not known" in demand.unknown[1]
