# SPDX-License-Identifier: Apache-2.0
"""From the slices there are to the slices there should be."""

from dataclasses import replace

from controller.reconcile import Writes, plan_writes
from dra_driver.resource import Device, ObjectMeta, OwnerReference, ResourcePool, ResourceSlice

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
    """Names and generations of what would be written."""
    return {
        kind: [(one.metadata.name, one.pool.generation) for one in getattr(writes, kind)]
        for kind in ("deletes", "updates", "creates")
        if getattr(writes, kind)
    }


def test_nothing_is_written_when_nothing_changed() -> None:
    assert not plan_writes(desired("a", "b"), stored(desired("a", "b"), 4))


def test_a_new_pool_starts_at_generation_one() -> None:
    assert summary(plan_writes(desired("a", "b"), {})) == {"creates": [("a", 1), ("b", 1)]}


def test_one_changed_slice_is_updated_in_place_on_the_version_that_was_seen() -> None:
    after = [desired("a", "b")[0], desired("a", "b", devices="new")[1]]
    writes = plan_writes(after, stored(desired("a", "b"), 4))
    assert summary(writes) == {"updates": [("b", 4)]}
    assert writes.updates[0].metadata.resource_version == "7"


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
