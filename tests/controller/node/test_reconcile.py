# SPDX-License-Identifier: Apache-2.0
"""From the slices there are to the slices there should be."""

from dataclasses import replace

from controller.node.reconcile import Tried, Writes, as_sent, plan_writes
from dra_driver.kube.resource import Device, DeviceTaint, ObjectMeta, OwnerReference, ResourcePool, ResourceSlice

OWNER = OwnerReference("v1", "Node", "node-a", "uid", controller=True)


def desired(*names: str, devices: str = "gpu") -> list[ResourceSlice]:
    """Slices called `names` as a layout gives them, each with a device of its own."""
    return [
        ResourceSlice(
            metadata=ObjectMeta(name=name, owner_references=(OWNER,)),
            driver="gpu.nvidia.com",
            pool=ResourcePool("node-a", 0, len(names)),
            node_name="node-a",
            devices=(Device(f"{devices}-{name}"),),
        )
        for name in names
    ]


def stored(slices: list[ResourceSlice], generation: int = 1) -> dict[str, ResourceSlice]:
    """The same as the API server holds them after they were published at `generation`."""
    return {
        one.metadata.name: replace(
            one,
            metadata=replace(one.metadata, uid=f"uid-{one.metadata.name}", resource_version="7"),
            pool=replace(one.pool, generation=generation, resource_slice_count=len(slices)),
        )
        for one in slices
    }


def summary(writes: Writes) -> dict[str, list[tuple[str, int]]]:
    """Names and generations of what would be written, and of what waits."""
    return {
        kind: [(one.metadata.name, one.pool.generation) for one in getattr(writes, kind)]
        for kind in ("deletes", "updates", "creates", "waiting")
        if getattr(writes, kind)
    }


def test_nothing_is_written_when_nothing_changed() -> None:
    assert not plan_writes(desired("a", "b"), stored(desired("a", "b"), 4))


def test_a_new_pool_starts_at_generation_one() -> None:
    assert summary(plan_writes(desired("a", "b"), {})) == {"creates": [("a", 1), ("b", 1)]}


def test_single_changed_slice_is_updated_in_place_on_the_version_that_was_seen() -> None:
    after = [desired("a", "b")[0], desired("a", "b", devices="new")[1]]
    writes = plan_writes(after, stored(desired("a", "b"), 4))
    assert summary(writes) == {"updates": [("b", 4)]}
    assert writes.updates[0].metadata.resource_version == "7"


def test_metadata_that_others_added_to_a_slice_stays() -> None:
    (there,) = stored(desired("a", devices="old")).values()
    added = replace(there.metadata, labels={"a": "b"}, annotations={"c": "d"}, finalizers=("e.f/g",))
    owned = replace(added, owner_references=(replace(OWNER, uid="of an older Node"),))
    (update,) = plan_writes(desired("a"), {"a": replace(there, metadata=owned)}).updates
    assert update.metadata == added


def test_two_changed_slices_need_a_new_generation_of_all() -> None:
    after = [*desired("a", "b", "c", devices="new")[:2], desired("a", "b", "c")[2]]
    assert summary(plan_writes(after, stored(desired("a", "b", "c"), 4))) == {"updates": [("a", 5), ("b", 5), ("c", 5)]}


def test_a_slice_that_somebody_deleted_is_put_back_alone() -> None:
    there = stored(desired("a", "b"), 4)
    del there["a"]
    assert summary(plan_writes(desired("a", "b"), there)) == {"creates": [("a", 4)]}


def test_a_deleted_and_a_changed_slice_need_a_new_generation() -> None:
    there = stored(desired("a", "b", devices="old"), 4)
    del there["a"]
    assert summary(plan_writes(desired("a", "b"), there)) == {"updates": [("b", 5)], "creates": [("a", 5)]}


def test_a_growing_pool_gets_a_new_generation() -> None:
    there = stored(desired("a"), 1)
    assert summary(plan_writes(desired("a", "b"), there)) == {"updates": [("a", 2)], "creates": [("b", 2)]}


def test_slices_that_are_not_wanted_any_more_go_first() -> None:
    there = stored(desired("a", "b"), 1)
    assert summary(plan_writes(desired("a"), there)) == {"deletes": [("b", 1)], "updates": [("a", 2)]}


def test_an_edited_slice_is_put_right_whatever_was_edited() -> None:
    there = stored(desired("a", "b"), 4)
    without_owner = replace(there["a"], metadata=replace(there["a"].metadata, owner_references=()))
    moved = replace(there["a"], pool=replace(there["a"].pool, generation=9))
    for edited, expected in ((without_owner, {"updates": [("a", 4)]}), (moved, {"updates": [("a", 10), ("b", 10)]})):
        assert summary(plan_writes(desired("a", "b"), {**there, "a": edited})) == expected


# Slices that were sent before and are not as they were sent

ALL = ("a", "b", "c")


def test_failed_writes_wait_and_are_then_repeated_in_place_each_on_its_own() -> None:
    there = stored(desired(*ALL), 4) | dict(list(stored(desired(*ALL, devices="altered"), 4).items())[:2])
    assert summary(plan_writes(desired(*ALL), there, Tried(waiting=frozenset("ab")))) == {
        "waiting": [("a", 4), ("b", 4)]
    }
    assert not plan_writes(desired(*ALL), there, Tried(waiting=frozenset("ab")))
    assert summary(plan_writes(desired(*ALL), there, Tried(frozenset("a"), frozenset("b")))) == {
        "updates": [("a", 4)],
        "waiting": [("b", 4)],
    }
    assert summary(plan_writes(desired(*ALL), there, Tried(frozenset("ab")))) == {"updates": [("a", 4), ("b", 4)]}


def test_a_slice_that_waits_holds_back_no_other() -> None:
    there = stored(desired(*ALL, devices="old"), 4)
    wanted = [*desired(*ALL, devices="old")[:1], *desired(*ALL)[1:]]
    there["a"] = stored(desired(*ALL, devices="altered"), 4)["a"]
    waiting = Tried(waiting=frozenset("a"))
    one_changed = [*wanted[:2], desired(*ALL, devices="old")[2]]
    assert summary(plan_writes(one_changed, there, waiting)) == {"updates": [("b", 4)], "waiting": [("a", 4)]}
    assert summary(plan_writes(wanted, there, waiting)) == {"updates": [("a", 5), ("b", 5), ("c", 5)]}
    del there["a"]
    assert summary(plan_writes(one_changed, there, waiting)) == {"updates": [("b", 4)], "waiting": [("a", 4)]}
    assert summary(plan_writes(one_changed, there, Tried(frozenset("a")))) == {
        "updates": [("b", 4)],
        "creates": [("a", 4)],
    }


def test_a_slice_that_was_left_behind_by_a_new_generation_follows_it() -> None:
    there = stored(desired(*ALL), 5)
    there["a"] = stored(desired(*ALL), 4)["a"]
    assert summary(plan_writes(desired(*ALL), there, Tried(waiting=frozenset("a")))) == {"waiting": [("a", 5)]}
    assert summary(plan_writes(desired(*ALL), there, Tried(frozenset("a")))) == {"updates": [("a", 5)]}


def test_a_pool_of_which_nothing_could_be_made_still_begins_at_generation_one() -> None:
    assert summary(plan_writes(desired("a"), {}, Tried(waiting=frozenset("a")))) == {"waiting": [("a", 1)]}
    assert summary(plan_writes(desired("a"), {}, Tried(frozenset("a")))) == {"creates": [("a", 1)]}


def test_a_slice_that_could_not_be_deleted_is_deleted_later_and_changes_nothing_else() -> None:
    there = stored(desired("a"), 5) | {"b": stored(desired("a", "b"), 4)["b"]}
    assert summary(plan_writes(desired("a"), there, Tried(waiting=frozenset("b")))) == {"waiting": [("b", 4)]}
    assert summary(plan_writes(desired("a"), there, Tried(frozenset("b")))) == {"deletes": [("b", 4)]}


def test_stored_slice_is_compared_with_the_sent_slice() -> None:
    (sent,) = plan_writes(desired("a"), {}).creates
    tainted = replace(sent, devices=(Device("gpu-a", taints=(DeviceTaint("a.b/c", "NoSchedule"),)),))
    timed = replace(sent, devices=(Device("gpu-a", taints=(DeviceTaint("a.b/c", "NoSchedule", "", "2026-01-01"),)),))
    assert as_sent(sent, replace(sent, metadata=replace(sent.metadata, resource_version="1", labels={"a": "b"})))
    assert as_sent(tainted, timed)
    for other in (
        tainted,
        replace(sent, pool=replace(sent.pool, generation=2)),
        replace(sent, pool=replace(sent.pool, resource_slice_count=2)),
        replace(sent, metadata=replace(sent.metadata, owner_references=())),
    ):
        assert not as_sent(sent, other)
