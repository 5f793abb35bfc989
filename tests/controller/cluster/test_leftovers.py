# SPDX-License-Identifier: Apache-2.0
"""What is a leftover, and when it is due: decisions as tables."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.facts import ClaimFacts, SliceFacts, claim_facts, only_allocation, only_slice, slice_facts
from controller.cluster.leftovers import REASONS, CleanupPlan, advice, plan_cleanup
from dra_driver.names import DRIVER_NAME

NODES = {"node-a": "uid-a", "node-b": "uid-b"}
GRACE = 60.0


def a_slice(node: str | None, owner: str | None = None) -> SliceFacts:
    return SliceFacts("00000-slice", "uid-slice", node, owner, "7")


def a_claim(*pools: str, pods: tuple[str, ...] = ()) -> ClaimFacts:
    devices = tuple((pool, "gpu-0") for pool in pools)
    return ClaimFacts("team", "claim", "uid-claim", devices, pods)


def plan(
    *objects: SliceFacts | ClaimFacts, now: float = 1000.0, since: dict[str, float] | None = None, grace: float = GRACE
) -> CleanupPlan:
    slices = [one for one in objects if isinstance(one, SliceFacts)]
    claims = [one for one in objects if isinstance(one, ClaimFacts)]
    return plan_cleanup(slices, claims, NODES, since or {}, now, grace)


@pytest.mark.parametrize(
    ("node", "owner", "reason"),
    [
        ("node-a", "uid-a", None),
        ("node-a", None, None),  # of a living node, whoever made it
        (None, None, None),  # of no single node
        ("node-z", "uid-z", "node_gone"),
        ("node-z", None, "node_gone"),
        ("node-a", "uid-of-before", "node_replaced"),
        ("node-a", "uid-b", "node_replaced"),
    ],
)
def test_slices_of_missing_or_replaced_nodes_are_deleted(
    node: str | None, owner: str | None, reason: str | None
) -> None:
    deletes = plan(a_slice(node, owner), grace=0).deletes
    assert [one.reason for one in deletes] == ([reason] if reason else [])
    for one in deletes:
        assert f"its node {node} {REASONS[one.reason]}" in str(one)


@given(
    node=st.sampled_from([*NODES, "node-z", None]),
    owner=st.sampled_from([*NODES.values(), "uid-z", None]),
    waited=st.floats(0, 1000),
)
def test_a_slice_that_a_living_node_owns_is_never_deleted(node: str | None, owner: str | None, waited: float) -> None:
    deletes = plan(a_slice(node, owner), since={"uid-slice": 1000.0 - waited}).deletes
    if node in NODES and owner in (NODES[node], None):
        assert not deletes
    if waited < GRACE:
        assert not deletes


def test_a_leftover_has_a_grace_period_from_when_it_was_first_seen() -> None:
    one = a_slice("node-z")
    first = plan(one, now=1000.0)
    assert (first.deletes, first.since, first.next_at) == ((), {"uid-slice": 1000.0}, 1060.0)
    second = plan(one, now=1059.9, since=dict(first.since))
    assert (second.deletes, second.since, second.next_at) == ((), first.since, 1060.0)
    third = plan(one, now=1060.0, since=dict(second.since))
    assert [leftover.slice for leftover in third.deletes] == [one]
    assert third.next_at is None


def test_a_node_that_comes_back_ends_the_grace_period() -> None:
    since = {"uid-slice": 1000.0}
    assert plan(a_slice("node-a"), now=1030.0, since=since).since == {}


def test_two_that_are_due_at_different_times() -> None:
    old, new = a_slice("node-z"), replace(a_slice("node-z"), name="00001-slice", uid="uid-new")
    both = plan(old, new, now=1000.0, since={"uid-slice": 900.0, "uid-new": 990.0})
    assert [leftover.slice.name for leftover in both.deletes] == ["00000-slice"]
    assert both.next_at == 1050.0


@pytest.mark.parametrize(
    ("pools", "stray"),
    [(("node-a",), False), (("node-z",), True), (("node-a", "node-z"), True)],
)
def test_claims_with_devices_of_missing_nodes_are_strays(pools: tuple[str, ...], stray: bool) -> None:
    one = a_claim(*pools)
    assert plan(one, now=1000.0).strays == ()
    ripe = plan(one, now=1060.0, since={"uid-claim": 1000.0})
    assert ripe.strays == ((one,) if stray else ())


def test_advice_names_devices_node_and_what_to_do() -> None:
    reserved = advice(a_claim("node-a", "node-z", pods=("trainer-0", "trainer-1")), NODES)
    assert reserved.startswith(
        "allocated gpu-0 (pool node-z), but there is no node node-z any more; delete pod trainer-0, "
    )
    assert "node-a" not in reserved
    assert advice(a_claim("node-z"), NODES).endswith("otherwise delete the claim")
    shared = advice(replace(a_claim("node-z"), pod_groups=("gang",)), NODES)
    assert "delete PodGroup gang and its pods" in shared


def value(**status: Any) -> dict[str, Any]:
    meta = {
        "namespace": "team",
        "name": "x",
        "uid": "u",
        "resourceVersion": "7",
        "managedFields": [{}],
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "uid-d"},
            {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-a"},
        ],
    }
    return {"metadata": meta, "spec": {"large": "x" * 1000}, "status": status}


def test_reduced_claim_has_the_facts_of_the_whole_claim() -> None:
    drivers = (DRIVER_NAME, "compute-domain.nvidia.com")
    results = [
        {"request": "r", "driver": DRIVER_NAME, "pool": "node-a", "device": "gpu-0"},
        {"request": "r", "driver": "other.example.com", "pool": "elsewhere", "device": "x"},
    ]
    consumers = [{"resource": "pods", "name": "p", "uid": "1"}, {"apiGroup": "a", "resource": "jobs", "name": "j"}]
    consumers.append({"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": "2"})
    whole = value(allocation={"devices": {"results": results}}, reservedFor=consumers, devices=[{}])
    for one in (whole, only_allocation(whole)):
        found = ClaimFacts("team", "x", "u", (("node-a", "gpu-0"),), ("p",), ("gang",))
        assert claim_facts(one, drivers) == found
    for one in (whole, only_slice(whole)):
        assert slice_facts(one) == SliceFacts("x", "u", "node-a", "uid-a", "7")
    assert "large" not in only_slice(whole)["spec"]
    assert claim_facts(value(), drivers) is None
    assert claim_facts(value(allocation={"devices": {"results": results[1:]}}), drivers) is None
