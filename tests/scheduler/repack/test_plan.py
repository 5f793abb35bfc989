# SPDX-License-Identifier: Apache-2.0
"""Plans have the fewest moves, every step is proven, and nothing is placed where a place is kept free."""

import random

import pytest

from dra_driver.scheduler.repack import GuardKind, Limits, RepackPlan

from .bruteforce import Example, Running, Tried, difference, filled, hopper_nodes, nodes

A30 = "new-a30-1"
ONE = "gpu-{}-mig-1g6gb-14-{}"


def one_gpu_each(*, stays: bool = False) -> Example:
    """A pod with one slice on each of two GPUs of one node, and a demand for all slices of a GPU."""
    pods = (
        Running("first", "1g.6gb", (A30, ONE.format(0, 0)), stays=stays),
        Running("second", "1g.6gb", (A30, ONE.format(1, 1))),
    )
    return Example(nodes(1, 2), pods, ("4g.24gb",))


def plan_of(example: Example, guard: GuardKind = GuardKind.TAINTS) -> RepackPlan:
    plan = example.planned(guard).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("seed", [*range(12), 1250])
def test_plans_for_random_clusters_are_as_short_as_the_shortest_sequence_of_moves(seed: int) -> None:
    assert not difference(seed)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_plans_for_a_node_of_8_gpus_with_all_placements_are_optimal(seed: int) -> None:
    rng = random.Random(seed)
    profiles = ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "1g.20gb"]
    example = Example(
        hopper_nodes(1), tuple(filled(hopper_nodes(1), rng, 14, profiles)), (rng.choice(["7g.80gb", "gpu"]),)
    )
    result = example.planned(limits=Limits(moves=2))
    found = None if result.plan is None else len(result.plan.steps)
    assert found == Tried(example).least(2)


def test_a_pod_moves_to_the_gpu_of_another_pod() -> None:
    (step,) = plan_of(one_gpu_each()).steps
    assert step.after[0][2].partition("-mig-")[0] != step.before[0][2].partition("-mig-")[0]


def test_a_pod_that_must_stay_is_not_moved() -> None:
    (step,) = plan_of(one_gpu_each(stays=True)).steps
    assert step.pod.name == "second"


def test_the_guard_names_the_devices_that_overlap_with_the_place_of_the_demand() -> None:
    (step,) = plan_of(one_gpu_each(stays=True)).steps
    guarded = {device for _, _, device in step.guard.devices}
    assert any(device.startswith("gpu-1-mig-4g24gb") for device in guarded)
    assert ONE.format(1, 3) in guarded
    assert not any(device.startswith("gpu-0") for device in guarded)


def test_a_cordon_sends_pods_to_another_node() -> None:
    assert one_gpu_each().planned(GuardKind.CORDON).plan is None
    pods = (*one_gpu_each().pods, Running("third", "1g.6gb", ("new-a30-2", ONE.format(0, 0))))
    plan = plan_of(Example(nodes(2, 2), pods, ("4g.24gb", "4g.24gb")), GuardKind.CORDON)
    assert all(step.target not in step.guard.nodes for step in plan.steps)


def test_without_any_place_for_the_pods_there_is_no_plan_and_a_bound() -> None:
    pods = tuple(Running(f"p{number}", "2g.12gb", (A30, f"gpu-{number}-mig-2g12gb-5-0")) for number in range(2))
    full = (*pods, *(Running(f"q{number}", "2g.12gb", (A30, f"gpu-{number}-mig-2g12gb-5-2")) for number in range(2)))
    result = Example(nodes(1, 2), full, ("4g.24gb",)).planned(limits=Limits(moves=5))
    assert result.plan is None
    assert result.bound is not None
    assert result.bound >= 2


def test_the_bound_is_none_if_pods_that_must_stay_hold_every_place() -> None:
    pods = tuple(Running(f"p{number}", "1g.6gb", (A30, ONE.format(number, 0)), stays=True) for number in range(2))
    result = Example(nodes(1, 2), pods, ("4g.24gb",)).planned()
    assert result.bound is None
    assert result.plan is None


def test_pods_that_move_twice_or_in_a_chain_always_have_a_place() -> None:
    """A demand for two slices, whose only way is to move a large pod after a small one has made room for it."""
    pods = (
        Running("small", "1g.6gb", (A30, ONE.format(1, 0))),
        Running("large", "2g.12gb", (A30, "gpu-0-mig-2g12gb-5-0")),
        Running("stays", "1g.6gb", (A30, ONE.format(1, 3)), stays=True),
    )
    plan = plan_of(Example(nodes(1, 2), pods, ("4g.24gb",)))
    assert [step.pod.name for step in plan.steps] == ["small", "large"]
