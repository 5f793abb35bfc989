# SPDX-License-Identifier: Apache-2.0
"""Effects of random rules on random clusters, compared with what the scheduler and the eviction controller decide."""

from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.dryrun.drain.effects import DrainAnalysis, Effects
from dra_driver.dryrun.world import World
from dra_driver.kube.resource import DeviceTaint, DeviceTaintRule, DeviceTaintSelector, ObjectMeta
from dra_driver.scheduler.allocator import Features, with_taint_rules
from dra_driver.scheduler.pods import Attempt, evictions, taints_of_rules
from dra_driver.scheduler.pods.load import Reader

from .world import JSON, claim, device_class, pod

FEATURES = Features()
GPUS = 3
TAINT = DeviceTaint("example.com/drain", "NoExecute")


def node(name: str) -> list[JSON]:
    devices = [{"name": f"gpu-{index}", "attributes": {"type": {"string": "gpu"}}} for index in range(GPUS)]
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        },
    ]


@dataclass(frozen=True)
class Held:
    """A device with its pod: running, or the pod of a claim that is pending."""

    is_used: bool
    owner: str
    tolerates: int | None


HELD = st.builds(Held, st.booleans(), st.sampled_from(["serve", ""]), st.sampled_from([None, -1, 0, 30]))
RULES = st.lists(
    st.builds(
        lambda pool, device, effect: DeviceTaintRule(
            ObjectMeta(name=f"{pool}-{device}"),
            replace(TAINT, effect=effect),
            DeviceTaintSelector("gpu.nvidia.com", pool, device),
        ),
        st.sampled_from(["a", "b", None]),
        st.sampled_from(["gpu-0", "gpu-1", "gpu-2", None]),
        st.sampled_from(["NoExecute", "NoSchedule"]),
    ),
    min_size=1,
    max_size=3,
)


def tolerations(seconds: int | None) -> list[JSON]:
    """None for no toleration, -1 for one without a limit."""
    if seconds is None:
        return []
    found: JSON = {"key": TAINT.key, "operator": "Exists", "effect": "NoExecute"}
    return [found if seconds < 0 else {**found, "tolerationSeconds": seconds}]


def cluster(held: list[Held], pending: int) -> tuple[DrainAnalysis, World]:
    reader = Reader()
    values = [*node("a"), *node("b"), device_class()]
    for number, one in enumerate(held):
        if one.is_used:
            where, device, name = "ab"[number // GPUS], f"gpu-{number % GPUS}", f"p{number}"
            values += [
                pod(name, where, owner=one.owner),
                claim(name, where, [device], tolerations=tolerations(one.tolerates)),
            ]
    for number in range(pending):
        values += [pod(f"w{number}", priority=number), claim(f"w{number}")]
    for value in values:
        reader.add(value)
    snapshot = reader.snapshot()
    world = World(snapshot, reader.policies())
    return DrainAnalysis(snapshot.cluster, world, FEATURES), world


def effects_of(held: list[Held], pending: int, rules: list[DeviceTaintRule]) -> tuple[Effects, World, DrainAnalysis]:
    effect, world = cluster(held, pending)
    return effect.of_rules(rules), world, effect


CASES = (st.lists(HELD, min_size=2 * GPUS, max_size=2 * GPUS), st.integers(0, 3), RULES)
QUICK = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(*CASES)
def test_evicted_pods_are_those_of_the_eviction_controller(
    held: list[Held], pending: int, rules: list[DeviceTaintRule]
) -> None:
    found, world, effect = effects_of(held, pending, rules)
    expected = evictions(world.around.pods, effect.cluster.claims, taints_of_rules(rules), FEATURES.release)
    assert [(one.pod.name, one.seconds) for one in found.evicted] == [(one.pod.name, one.seconds) for one in expected]


@QUICK
@given(*CASES)
def test_pods_on_tainted_devices_are_evicted_or_stay(
    held: list[Held], pending: int, rules: list[DeviceTaintRule]
) -> None:
    found, _, effect = effects_of(held, pending, rules)
    keys = {device.key for device in found.devices}
    users = {
        user.name
        for one in effect.cluster.allocated
        if one.allocation is not None
        and any((result.driver, result.pool, result.device) in keys for result in one.allocation.results)
        for user in one.reserved_for
    }
    concerned = [*(one.pod.name for one in found.evicted), *(one.pod.name for one in found.staying)]
    assert sorted(concerned) == sorted(users)


@QUICK
@given(*CASES)
def test_no_device_is_given_twice_and_none_with_a_taint_that_is_not_tolerated(
    held: list[Held], pending: int, rules: list[DeviceTaintRule]
) -> None:
    found, _, effect = effects_of(held, pending, rules)
    tainted = {device.key for device in found.devices}
    gone = {one.pod.name for one in found.evicted}
    kept = [
        (result.pool, result.device)
        for one in effect.cluster.allocated
        if one.allocation is not None and not {user.name for user in one.reserved_for} & gone
        for result in one.allocation.results
    ]
    given_now = [
        result for one in found.evicted if one.is_made_again and one.place.fits for result in one.place.results
    ]
    taken = [*kept, *((result.pool, result.device) for result in given_now)]
    assert len(taken) == len(set(taken))
    for result in given_now:
        if (result.driver, result.pool, result.device) in tainted:
            assert result.tolerations


@QUICK
@given(*CASES)
def test_first_evicted_pod_goes_where_the_scheduler_would_put_it(
    held: list[Held], pending: int, rules: list[DeviceTaintRule]
) -> None:
    found, world, effect = effects_of(held, 0, rules)
    if not found.evicted:
        return
    first = found.evicted[0]
    slices = tuple(with_taint_rules(effect.cluster.slices, rules, without_selector=True))
    gone = {one.pod.name for one in found.evicted}
    left = [one for one in effect.cluster.claims if one.metadata.name not in gone]
    around = replace(world.around, pods=tuple(pod for pod in world.around.pods if pod.name not in gone))
    snapshot = replace(world, around=around).at(replace(effect.cluster, slices=slices, claims=tuple(left)), FEATURES)
    own = next(one for one in effect.cluster.claims if one.metadata.name == first.pod.name)
    again = replace(first.pod, node_name="", phase="Pending")
    attempt = Attempt(again, snapshot, FEATURES, [replace(own, allocation=None, reserved_for=())])
    assert (first.place.node or None) == next(iter(attempt.fits), None)


@QUICK
@given(*CASES)
def test_end_of_the_rules_brings_every_device_back(
    held: list[Held], pending: int, rules: list[DeviceTaintRule]
) -> None:
    effect, _ = cluster(held, pending)
    slices = tuple(with_taint_rules(effect.cluster.slices, rules, without_selector=True))
    drained = replace(effect, cluster=replace(effect.cluster, slices=slices))
    back = drained.of_end(rules)
    forth = effect.of_rules(rules)
    if not forth.evicted:
        assert [one.pod for one in back.blocked] == [one.pod for one in forth.blocked]
