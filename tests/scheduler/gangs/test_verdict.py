# SPDX-License-Identifier: Apache-2.0
"""kube-scheduler's own verdict on a gang."""

from dataclasses import replace

import pytest

from dra_driver.kube.resource.codec import DecodeError
from dra_driver.scheduler.allocator import Features
from dra_driver.scheduler.gangs import (
    Gang,
    GangStatus,
    GroupClaim,
    GroupVerdict,
    Policy,
    Preference,
    decode_pod_group,
    decode_workload,
    devices_of,
    schedule,
)
from dra_driver.scheduler.pods import Snapshot

from .build import JSON, cluster, gang, gpus, halves, member, node, pod, wanting, whole_or_half
from .random_gangs import built, random_case

FEATURES = Features()


def nodes_of(verdict: GroupVerdict) -> list[str | None]:
    return [result.node for result in verdict.results]


def test_pods_get_the_nodes_that_earlier_pods_leave() -> None:
    snapshot = cluster([node("a"), node("b")], gpus("a", 1), gpus("b", 2))
    members = [member(f"p{index}", wanting(f"c{index}")) for index in range(3)]
    verdict = schedule(gang(*members), snapshot, FEATURES)
    assert verdict.status is GangStatus.SCHEDULED
    assert nodes_of(verdict) == ["a", "b", "b"]
    assert verdict.condition == {
        "type": "PodGroupInitiallyScheduled",
        "status": "True",
        "reason": "Scheduled",
        "message": "",
    }


def test_gang_is_refused_as_soon_as_its_minimum_cannot_be_reached() -> None:
    snapshot = cluster([node("a")], gpus("a", 1))
    members = [member(f"p{index}", wanting(f"c{index}")) for index in range(4)]
    verdict = schedule(gang(*members, least=3), snapshot, FEATURES)
    message = "minCount (3) cannot be satisfied: 1 scheduled, 1 remaining"
    assert (verdict.status, verdict.message) == (GangStatus.UNSCHEDULABLE, message)
    texts = [result.text for result in verdict.results]
    assert texts == ["", *["0/1 nodes are available: 1 cannot allocate all claims."] * 2, message]


def test_pods_beyond_the_minimum_are_tried_too() -> None:
    snapshot = cluster([node("a")], gpus("a", 2))
    members = [member(f"p{index}", wanting(f"c{index}")) for index in range(3)]
    verdict = schedule(gang(*members, least=1), snapshot, FEATURES)
    assert verdict.status is GangStatus.SCHEDULED
    assert nodes_of(verdict) == ["a", "a", None]


def test_no_earlier_pod_is_placed_again() -> None:
    members = [member("p", whole_or_half("c1")), member("q", whole_or_half("c2"))]
    verdict = schedule(gang(*members), cluster([node("a")], *halves("a")), FEATURES)
    assert verdict.message == "minCount (2) cannot be satisfied: 1 scheduled, 0 remaining"
    (allocated,) = verdict.results[0].claims
    assert allocated.allocation is not None
    assert [result.device for result in allocated.allocation.results] == ["whole-0"]


def test_pods_are_tried_by_priority_and_then_in_their_order() -> None:
    members = [member("p"), member("q", priority=5), member("r")]
    verdict = schedule(gang(*members), cluster([node("a")]), FEATURES)
    assert [result.member.pod.name for result in verdict.results] == ["q", "p", "r"]


def test_pods_without_their_group_do_not_enter_the_queue() -> None:
    verdict = schedule(Gang("g", None, (member("p"),)), cluster([node("a")]), FEATURES)
    assert verdict.status is GangStatus.WAITING
    assert verdict.message == 'waiting for pods\'s pod group "g" to appear in scheduling queue'
    assert verdict.condition is None


def test_gang_with_fewer_pods_than_its_minimum_does_not_enter_the_queue() -> None:
    snapshot = cluster([node("a")])
    verdict = schedule(gang(member("p"), least=2), snapshot, FEATURES)
    assert verdict.message == "waiting for minCount pods from a gang to appear in scheduling queue"
    running = pod("q", node_name="a")
    assert schedule(gang(member("p"), least=2, running=[running]), snapshot, FEATURES).status is GangStatus.SCHEDULED


def test_basic_group_needs_one_pod() -> None:
    snapshot = cluster([node("a")], gpus("a", 1))
    members = [member("p", wanting("c1")), member("q", wanting("c2"))]
    verdict = schedule(gang(*members, least=None), snapshot, FEATURES)
    assert verdict.status is GangStatus.SCHEDULED
    assert nodes_of(verdict) == ["a", None]


def test_gated_pods_are_not_in_the_queue() -> None:
    gated = member("p", gates=("wait",))
    verdict = schedule(gang(gated, member("q"), least=2), cluster([node("a")]), FEATURES)
    assert verdict.message == "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining"


@pytest.mark.parametrize("preference", Preference)
def test_pods_that_share_a_claim_go_to_the_node_of_its_devices(preference: Preference) -> None:
    snapshot = cluster([node("a", cpu=1000), node("b")], gpus("a", 1), gpus("b", 1))
    shared = wanting("shared")
    members = [member(f"p{index}", shared, cpu=900) for index in range(2)]
    verdict = schedule(gang(*members), snapshot, FEATURES, preference)
    if preference is Preference.FIRST:
        assert verdict.message == "minCount (2) cannot be satisfied: 1 scheduled, 0 remaining"
        assert verdict.collisions == []
    else:
        verdict = schedule(gang(*members), replace(snapshot, nodes=snapshot.nodes[1:]), FEATURES, preference)
        assert nodes_of(verdict) == ["b", "b"]
        assert verdict.collisions == ["default/shared"]
        assert [len(result.claims) for result in verdict.results] == [1, 0]


def test_least_allocated_node_is_preferred_on_request() -> None:
    snapshot = cluster([node("a"), node("b")])
    members = [member(f"p{index}", cpu=1000) for index in range(4)]
    assert nodes_of(schedule(gang(*members), snapshot, FEATURES)) == ["a"] * 4
    spread = schedule(gang(*members), snapshot, FEATURES, Preference.LEAST_ALLOCATED)
    assert nodes_of(spread) == ["a", "b", "a", "b"]


def test_anti_affinity_between_members_counts() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    members = [member(f"p{index}", spec=spec, labels={"app": "x"}) for index in range(3)]
    verdict = schedule(gang(*members), cluster([node("a"), node("b")]), FEATURES)
    assert nodes_of(verdict) == ["a", "b", None]
    assert verdict.results[2].text == "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."


def test_topology_constraint_keeps_the_group_in_one_domain() -> None:
    racks = [node("a", {"rack": "1"}), node("b", {"rack": "2"}), node("c", {"rack": "2"}), node("d")]
    snapshot = cluster(racks, *(gpus(each.name, 1) for each in racks))
    members = [member(f"p{index}", wanting(f"c{index}")) for index in range(2)]
    verdict = schedule(gang(*members, topology="rack"), snapshot, FEATURES)
    assert nodes_of(verdict) == ["b", "c"]
    three = [*members, member("p2", wanting("c2"))]
    refused = schedule(gang(*three, topology="rack"), snapshot, FEATURES)
    first = "minCount (3) cannot be satisfied: 1 scheduled, 1 remaining"
    assert refused.message == f"0/2 placements are available, first placement status: {first}"
    assert refused.results[1].text == "0/1 nodes are available: 1 cannot allocate all claims."


def test_running_pods_fix_the_domain() -> None:
    racks = [node("a", {"rack": "1"}), node("b", {"rack": "2"})]
    running = pod("r", node_name="b")
    verdict = schedule(gang(member("p"), topology="rack", running=[running]), cluster(racks), FEATURES)
    assert nodes_of(verdict) == ["b"]
    both = [running, pod("s", node_name="a")]
    failed = schedule(gang(member("p"), topology="rack", running=both), cluster(racks), FEATURES)
    assert failed.status is GangStatus.ERROR
    assert "more than 1 domain found for pod group: 2, 1" in failed.message


def test_error_of_a_pod_fails_the_group() -> None:
    broken = member("p", wanting("c1", 1, "device.attributes['none'].x == 1"))
    verdict = schedule(gang(broken, member("q")), cluster([node("a")], gpus("a", 1)), FEATURES)
    assert verdict.status is GangStatus.ERROR
    assert verdict.message.startswith("failed to schedule other pod from a pod group: ")
    assert verdict.results[1].text == verdict.message


GROUP: JSON = {
    "metadata": {"name": "g", "namespace": "team"},
    "spec": {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
    },
}


def test_policy_of_a_group_is_decoded() -> None:
    found = decode_pod_group(GROUP)
    assert str(found) == "team/g"
    assert found.policy == Policy(3, "rack", (GroupClaim("gpu", template="t"),))


def test_templates_of_a_workload_are_decoded() -> None:
    spec = {"podGroupTemplates": [{"name": "workers", **GROUP["spec"]}], "controllerRef": {"kind": "Job", "name": "j"}}
    found = decode_workload({"metadata": {"name": "w"}, "spec": spec})
    assert found.templates["workers"].min_count == 3
    assert found.controller == ("Job", "j")


def test_negative_minimum_is_an_error() -> None:
    wrong = {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": -1}}}}
    with pytest.raises(DecodeError, match=r"spec\.schedulingPolicy\.gang\.minCount: must be at least 1"):
        decode_pod_group(wrong)


@pytest.mark.parametrize("preference", Preference)
def test_nodes_decided_alone_give_the_verdict_of_the_whole_cluster(preference: Preference) -> None:
    cases = [built(random_case(seed, (1, 4), (2, 6), (1, 2))) for seed in range(60)]
    alone = [_told(schedule(wanted, _with_pod(snapshot), FEATURES, preference)) for snapshot, wanted in cases]
    whole = [_told(schedule(wanted, _with_pod(snapshot, AVOIDING), FEATURES, preference)) for snapshot, wanted in cases]
    assert alone == whole


AVOIDING: JSON = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "of no pod"}}}
        ]
    }
}
"""Avoids no pod of these tests. But after it, nodes are not decided alone."""


def _with_pod(snapshot: Snapshot, affinity: JSON | None = None) -> Snapshot:
    """The snapshot with a running pod that requests nothing."""
    spec = {"affinity": affinity} if affinity else {}
    running = pod("running", spec=spec, node_name=snapshot.nodes[0].name, phase="Running")
    return replace(snapshot, pods=(running,))


def _told(verdict: GroupVerdict) -> object:
    """Everything that a verdict says."""
    pods = [
        (str(result.member), result.node, result.text, [sorted(devices_of(claim)) for claim in result.claims])
        for result in verdict.results
    ]
    return verdict.status, verdict.message, pods
