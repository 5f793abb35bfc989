# SPDX-License-Identifier: Apache-2.0
"""Whether an assignment of a gang exists."""

import pytest

from dra_driver.kube.resource import DeviceClass, ObjectMeta, ResourceSlice
from dra_driver.scheduler.allocator import Features
from dra_driver.scheduler.gangs import GangMember, JointAnswer, assign, schedule
from tests.scheduler.allocator.build import gpu, slice_of

from .build import cluster, gang, gpus, halves, member, node, wanting, whole_or_half
from .random_gangs import built, exists, mistakes, random_case

FEATURES = Features()


def devices_of(answer: JointAnswer) -> list[tuple[str, str, list[str]]]:
    """Pod, node and devices of each placement."""
    return [
        (
            placement.member.pod.name,
            placement.node,
            [
                result.device
                for claim in placement.claims
                if claim.allocation is not None
                for result in claim.allocation.results
            ],
        )
        for placement in answer.placements
    ]


def test_earlier_pods_get_what_leaves_enough_for_later_ones() -> None:
    wanted = gang(member("p", whole_or_half("c1")), member("q", whole_or_half("c2")))
    snapshot = cluster([node("a")], *halves("a"))
    assert not schedule(wanted, snapshot, FEATURES).is_scheduled
    assert devices_of(assign(wanted, snapshot, FEATURES)) == [("p", "a", ["half-0-0"]), ("q", "a", ["half-0-1"])]


def test_large_pods_are_not_blocked_by_small_ones() -> None:
    members = [member("small", wanting("c1")), member("large", wanting("c2", 4))]
    snapshot = cluster([node("a"), node("b")], gpus("a", 4), gpus("b", 1))
    assert not schedule(gang(*members), snapshot, FEATURES).is_scheduled
    answer = assign(gang(*members), snapshot, FEATURES)
    assert {name: where for name, where, _ in devices_of(answer)} == {"small": "b", "large": "a"}


def test_too_few_devices_are_proved_by_counting() -> None:
    members = [member(f"p{index}", wanting(f"c{index}", 3)) for index in range(3)]
    answer = assign(gang(*members), cluster([node("a"), node("b")], gpus("a", 5), gpus("b", 4)), FEATURES)
    assert answer.proof == "of 3 equal pods, only 2 fit, even without the other pods of the group"


def test_weights_prove_that_pods_of_several_shapes_do_not_fit() -> None:
    members = [member(f"p{index}", wanting(f"c{index}", 1 + index % 2)) for index in range(6)]
    answer = assign(gang(*members), cluster([node("a"), node("b")], gpus("a", 4), gpus("b", 4)), FEATURES)
    assert answer.proof == "the nodes together have too little for all pods, however these are distributed"


def test_every_distribution_is_tried_if_counting_proves_nothing() -> None:
    members = [member(f"p{index}", wanting(f"c{index}", count)) for index, count in enumerate((3, 3, 2, 2, 2))]
    answer = assign(gang(*members), cluster([node("a"), node("b")], gpus("a", 6), gpus("b", 6)), FEATURES)
    assert answer.placements
    tight = cluster([node("a"), node("b"), node("c")], gpus("a", 5), gpus("b", 5), gpus("c", 2))
    assert assign(gang(*members), tight, FEATURES).placements
    split = cluster([node(name) for name in "abcd"], *(gpus(name, 3) for name in "abcd"))
    assert "however" in assign(gang(*members), split, FEATURES).proof


def test_pods_that_share_a_claim_are_on_one_node() -> None:
    shared = [wanting(f"shared{index}") for index in range(2)]
    members = [member(f"p{index}", shared[index % 2], cpu=600) for index in range(4)]
    answer = assign(gang(*members), cluster([node(n, cpu=1200) for n in "ab"], gpus("a", 2), gpus("b", 1)), FEATURES)
    assert len(answer.placements) == 4
    nodes = {name: where for name, where, _ in devices_of(answer)}
    assert nodes["p0"] == nodes["p2"] != nodes["p1"] == nodes["p3"]
    few = assign(gang(*members), cluster([node(n, cpu=1000) for n in "ab"], gpus("a", 2), gpus("b", 1)), FEATURES)
    assert "only 0 fit" in few.proof


def test_minimum_counts_pods_and_not_sets_of_pods() -> None:
    shared = wanting("shared")
    members = [member("p0", shared, cpu=500), member("p1", shared, cpu=500), member("p2", wanting("c"), cpu=900)]
    snapshot = cluster([node("a", cpu=1000)], gpus("a", 2))
    assert len(assign(gang(*members, least=2), snapshot, FEATURES).placements) == 2


def test_search_that_has_no_time_knows_nothing() -> None:
    members = [member(f"p{index}", wanting(f"c{index}", 1 + index % 2)) for index in range(6)]
    answer = assign(gang(*members), cluster([node("a"), node("b")], gpus("a", 4), gpus("b", 4)), FEATURES, seconds=0)
    assert not answer.is_decided


def anti_affine(name: str, *claims: object, key: str = "kubernetes.io/hostname") -> GangMember:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "x"}}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    return member(name, *claims, spec=spec, labels={"app": "x"})  # type: ignore[arg-type]


def test_anti_affinity_on_nodes_is_proved() -> None:
    members = [anti_affine(f"p{index}", wanting(f"c{index}")) for index in range(3)]
    answer = assign(gang(*members), cluster([node("a"), node("b")], gpus("a", 4), gpus("b", 4)), FEATURES)
    assert answer.proof == "3 pods must have different values of kubernetes.io/hostname, and nodes have 2"


def test_anti_affinity_in_zones_is_checked() -> None:
    zones = [node("a", {"zone": "1"}), node("b", {"zone": "1"}), node("c", {"zone": "2"})]
    snapshot = cluster(zones, *(gpus(each.name, 1) for each in zones))
    members = [anti_affine(f"p{index}", wanting(f"c{index}"), key="zone") for index in range(2)]
    answer = assign(gang(*members), snapshot, FEATURES)
    assert {where for _, where, _ in devices_of(answer)} in ({"a", "c"}, {"b", "c"})


def test_pods_that_must_be_in_different_zones_are_counted() -> None:
    zones = [node("a", {"zone": "1"}), node("b", {"zone": "1"}), node("c", {"zone": "2"})]
    members = [anti_affine(f"p{index}", key="zone") for index in range(3)]
    answer = assign(gang(*members), cluster(zones), FEATURES)
    assert answer.proof == "3 pods must have different values of zone, and nodes have 2"
    assert assign(gang(*members, least=2), cluster(zones), FEATURES).placements
    assert assign(gang(*members), cluster([*zones, node("d")]), FEATURES).placements


def test_topology_constraint_is_proved_in_each_domain() -> None:
    racks = [node("a", {"rack": "1"}), node("b", {"rack": "2"})]
    snapshot = cluster(racks, gpus("a", 1), gpus("b", 1))
    members = [member(f"p{index}", wanting(f"c{index}")) for index in range(2)]
    answer = assign(gang(*members, topology="rack"), snapshot, FEATURES)
    assert answer.proof.startswith("in each of 2 domains of rack: of 2 equal pods, only 1 fit")


@pytest.mark.parametrize("block", range(5))
def test_answers_agree_with_those_of_brute_force(block: int) -> None:
    """`python -m tests.bench.gangs` does the same with 20,000 gangs."""
    undecided = 0
    for seed in range(block * 40, block * 40 + 40):
        case = random_case(seed, (1, 3), (1, 4), (1, 2))
        snapshot, wanted = built(case)
        answer = assign(wanted, snapshot, FEATURES)
        undecided += not answer.is_decided
        if answer.placements:
            assert mistakes(case, answer.placements) == [], seed
        if answer.proof:
            assert not exists(case), (seed, answer.proof)
        if schedule(wanted, snapshot, FEATURES).is_scheduled:
            assert answer.placements or not answer.is_decided, seed
    assert undecided < 8


def reachable_everywhere(count: int) -> ResourceSlice:
    """Devices that every node can reach."""
    return slice_of(*(gpu(f"net-{index}") for index in range(count)), name="net", pool="net", all_nodes=True)


def test_pods_on_several_nodes_share_a_claim_for_a_device_that_all_can_reach() -> None:
    shared = wanting("shared")
    members = [anti_affine(f"p{index}", shared) for index in range(3)]
    answer = assign(gang(*members), cluster([node(name) for name in "abc"], reachable_everywhere(1)), FEATURES)
    assert {where for _, where, _ in devices_of(answer)} == {"a", "b", "c"}
    assert [devices for _, _, devices in devices_of(answer)] == [["net-0"], [], []]


def test_devices_that_all_nodes_can_reach_are_not_given_twice() -> None:
    snapshot = cluster([node(name) for name in "ab"], reachable_everywhere(2))
    members = [member(f"p{index}", wanting(f"c{index}")) for index in range(3)]
    assert len(assign(gang(*members[:2]), snapshot, FEATURES).placements) == 2
    answer = assign(gang(*members), snapshot, FEATURES, seconds=5)
    assert not answer.placements
    assert not answer.proof, "each node alone could hold two pods, which proves nothing"


def test_members_of_a_gang_attract_each_other() -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}}
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    members = [member(f"p{index}", wanting(f"c{index}"), spec=spec, labels={"app": "x"}) for index in range(2)]
    zones = [node("a", {"zone": "1"}), node("b", {"zone": "2"}), node("c", {"zone": "2"})]
    snapshot = cluster(zones, *(gpus(each.name, 1) for each in zones))
    answer = assign(gang(*members), snapshot, FEATURES)
    assert {where for _, where, _ in devices_of(answer)} == {"b", "c"}


def test_assignment_keeps_spread_constraints() -> None:
    constraint = {
        "topologyKey": "zone",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    spec = {"topologySpreadConstraints": [constraint]}
    members = [member(f"p{index}", spec=spec, labels={"app": "x"}) for index in range(4)]
    zones = [node("a", {"zone": "1"}), node("b", {"zone": "2"})]
    answer = assign(gang(*members), cluster(zones), FEATURES)
    assert sorted(where for _, where, _ in devices_of(answer)) == ["a", "a", "b", "b"]


def test_extended_resources_that_classes_serve_are_assigned() -> None:
    serving = DeviceClass(ObjectMeta(name="any"), extended_resource_name="example.com/gpu")
    snapshot = cluster([node("a"), node("b")], gpus("a", 1), gpus("b", 2), classes=[serving])
    containers = [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]
    members = [member(f"p{index}", spec={"containers": containers}) for index in range(4)]
    answer = assign(gang(*members[:3]), snapshot, FEATURES)
    assert sorted(where for _, where, _ in devices_of(answer)) == ["a", "b", "b"]
    names = {claim.metadata.name for placement in answer.placements for claim in placement.claims}
    assert names == {f"p{index}-extended-resources" for index in range(3)}
    assert "only 3 fit" in assign(gang(*members), snapshot, FEATURES).proof
