# SPDX-License-Identifier: Apache-2.0
"""kubelet's decisions about claims, as tables."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.resource import AllocatedConfiguration, OpaqueConfiguration, ResourceClaim
from dra_driver.sandbox.kubelet import ClaimRef
from dra_driver.sandbox.kubelet.model import EXTENDED, KubeletPod, PodClaim, decode_pod
from dra_driver.sandbox.kubelet.state import (
    ClaimCache,
    ClaimError,
    ClaimInfo,
    cdi_ids,
    check_answer,
    check_claim,
    claims_of,
)
from dra_driver.sandbox.kubelet.wire import ClaimAnswer, PreparedDevice

from .memory_cluster import make_claim, make_pod

POD = KubeletPod("default", "pod", "uid-pod")


def with_claims(*entries: Mapping[str, str], made: Mapping[str, str | None], **status: Any) -> KubeletPod:
    """A pod with these entries, for which claims were made."""
    raw = make_pod("pod")
    raw["spec"]["resourceClaims"] = entries
    statuses = [{"name": name} | ({"resourceClaimName": claim} if claim else {}) for name, claim in made.items()]
    raw["status"] = {"resourceClaimStatuses": statuses, **status}
    return decode_pod(raw)


def test_entries_of_a_pod_mean_claims_and_the_claim_for_extended_resources_comes_last() -> None:
    pod = with_claims(
        {"name": "named", "resourceClaimName": "shared"},
        {"name": "unneeded", "resourceClaimTemplateName": "template"},
        {"name": "made", "resourceClaimTemplateName": "template"},
        made={"made": "pod-made-abc", "unneeded": None},
        extendedResourceClaimStatus={"resourceClaimName": "pod-extended-resources-x"},
    )
    assert claims_of(pod) == (
        PodClaim("named", "shared"),
        PodClaim("made", "pod-made-abc", generated=True),
        PodClaim(EXTENDED, "pod-extended-resources-x"),
    )


def test_an_entry_without_a_claim_is_an_error() -> None:
    pod = with_claims({"name": "late", "resourceClaimTemplateName": "template"}, made={})
    with pytest.raises(ClaimError) as caught:
        claims_of(pod)
    assert str(caught.value) == 'pod "default/pod": ResourceClaim not created yet'


def test_the_drivers_to_call_are_those_of_the_results() -> None:
    claim = make_claim("c", pods=["uid-pod"], drivers=["a.example.com", "b.example.com", "a.example.com"])
    config = AllocatedConfiguration("FromClass", (), OpaqueConfiguration("only-config.example.com", {}))
    assert claim.allocation is not None
    claim = replace(claim, allocation=replace(claim.allocation, config=(config,)))
    assert check_claim(POD, PodClaim("c", "c"), claim) == {"a.example.com", "b.example.com"}


@pytest.mark.parametrize(
    ("generated", "claim", "error"),
    [
        (
            True,
            make_claim("c", pods=["uid-pod"], owner="uid-other"),
            "ResourceClaim default/c was not created for Pod default/pod (Pod is not owner)",
        ),
        (
            False,
            make_claim("c", pods=["uid-other"]),
            "pod pod (uid-pod) is not allowed to use ResourceClaim c (uid-c)",
        ),
        (False, make_claim("c", pods=["uid-pod"], allocated=False), "ResourceClaim c: not allocated"),
    ],
)
def test_a_claim_that_the_pod_may_not_use_is_refused(generated: bool, claim: ResourceClaim, error: str) -> None:
    with pytest.raises(ClaimError) as caught:
        check_claim(POD, PodClaim("c", "c", generated), claim)
    assert str(caught.value) == error


def test_a_generated_claim_has_to_belong_to_the_pod_and_a_named_one_has_not() -> None:
    assert check_claim(POD, PodClaim("c", "c", generated=True), make_claim("c", pods=["uid-pod"], owner="uid-pod"))
    assert check_claim(POD, PodClaim("c", "c"), make_claim("c", pods=["uid-pod"], owner="uid-other"))


ONE, TWO = ClaimRef("default", "one", "uid-1"), ClaimRef("default", "two", "uid-2")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"uid-1": ClaimAnswer(), "uid-9": ClaimAnswer()}, "M returned result for unknown claim UID uid-9"),
        ({"uid-1": ClaimAnswer(error="no GPU"), "uid-2": ClaimAnswer()}, "M failed for ResourceClaim one: no GPU"),
        ({"uid-1": ClaimAnswer()}, "M skipped 1 ResourceClaims"),
        ({}, "M skipped 2 ResourceClaims"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(answer: Mapping[str, ClaimAnswer], error: str) -> None:
    with pytest.raises(ClaimError) as caught:
        check_answer("M", [ONE, TWO], answer)
    assert str(caught.value) == error


def test_an_answer_with_every_claim_is_whole() -> None:
    check_answer("M", [ONE, TWO], {"uid-1": ClaimAnswer(), "uid-2": ClaimAnswer()})


DEVICES = (
    PreparedDevice("p", "a", ("gpu",), ("v/c=a", "v/c=common")),
    PreparedDevice("p", "b", ("mig",), ("v/c=b",)),
    PreparedDevice("p", "all", (), ("v/c=all",)),
    PreparedDevice("p", "sub", ("first/best",), ("v/c=sub",)),
    PreparedDevice("p", "none", ("gpu",), ()),
)


@pytest.fixture
def prepared(tmp_path: Path) -> ClaimCache:
    """The node's claims: one, with these devices."""
    claims = ClaimCache(tmp_path / "none")
    claims.put(ClaimInfo(ClaimRef("default", "claim", "uid"), devices={"gpu.example.com": DEVICES}))
    return claims


@pytest.mark.parametrize(
    ("request_name", "ids"),
    [
        ("", ("v/c=a", "v/c=common", "v/c=b", "v/c=all", "v/c=sub")),
        ("gpu", ("v/c=a", "v/c=common", "v/c=all")),
        ("mig", ("v/c=b", "v/c=all")),
        ("first", ("v/c=all",)),  # the subrequest that the plugin left in hides the device
        ("other", ("v/c=all",)),
    ],
)
def test_a_container_gets_the_devices_of_the_request_it_names(
    prepared: ClaimCache, request_name: str, ids: tuple[str, ...]
) -> None:
    pod = decode_pod(make_pod("pod", "claim", request=request_name))
    assert cdi_ids(pod, pod.containers[0], prepared) == ids


def test_a_container_that_names_two_requests_gets_shared_devices_twice(prepared: ClaimCache) -> None:
    raw = make_pod("pod", "claim")
    raw["spec"]["containers"][0]["resources"]["claims"] = [
        {"name": "claim", "request": "gpu"},
        {"name": "claim", "request": "mig"},
    ]
    pod = decode_pod(raw)
    assert cdi_ids(pod, pod.containers[0], prepared).count("v/c=all") == 2


def test_a_container_without_claims_gets_nothing(prepared: ClaimCache) -> None:
    raw: dict[str, Any] = make_pod("pod", "claim")
    raw["spec"]["containers"].append({"name": "plain"})
    pod = decode_pod(raw)
    assert cdi_ids(pod, pod.containers[1], prepared) == ()


def test_an_extended_resource_finds_its_request_through_the_pods_status(prepared: ClaimCache) -> None:
    raw: dict[str, Any] = make_pod("pod")
    raw["spec"]["containers"] = [
        {"name": "main", "resources": {"requests": {"example.com/gpu": "1"}}},
        {"name": "idle"},
    ]
    raw["status"]["extendedResourceClaimStatus"] = {
        "resourceClaimName": "claim",
        "requestMappings": [{"containerName": "main", "resourceName": "example.com/gpu", "requestName": "gpu"}],
    }
    pod = decode_pod(raw)
    assert cdi_ids(pod, pod.containers[0], prepared) == ("v/c=a", "v/c=common", "v/c=all")
    assert cdi_ids(pod, pod.containers[1], prepared) == ()


def test_a_claim_that_was_never_prepared_is_an_internal_error(prepared: ClaimCache) -> None:
    pod = decode_pod(make_pod("pod", "other"))
    with pytest.raises(ClaimError, match="internal error: unable to get claim info for ResourceClaim other"):
        cdi_ids(pod, pod.containers[0], prepared)
