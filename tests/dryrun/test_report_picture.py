# SPDX-License-Identifier: Apache-2.0
"""The picture of a node's GPUs: who holds which memory slices, and what a demand would get."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from rich.text import Text

from dra_driver.dryrun.report.picture import node_picture
from dra_driver.gpu.picture import Cell, GpuPicture, NodePicture, drawn
from dra_driver.kube.resource import Node, ObjectMeta
from dra_driver.kube.resource.codec import decode
from dra_driver.scheduler.allocator import Cluster, Features

from .conftest import gpu, slice_of

JSON = dict[str, Any]
NODE = Node(ObjectMeta(name="node-a"))


def mig(name: str, profile: str, first: int, count: int, counter_set: str = "gpu-0-counter-set") -> JSON:
    """A MIG device that draws on memory slices and on an engine."""
    counters = {f"memory-slice-{number}": {"value": "1"} for number in range(first, first + count)}
    return {
        "name": name,
        "attributes": {"type": {"string": "mig"}, "profile": {"string": profile}, "productName": {"string": "H100"}},
        "consumesCounters": [{"counterSet": counter_set, "counters": {**counters, "copy-engines": {"value": "1"}}}],
    }


def counter_set(name: str = "gpu-0-counter-set", slices: int = 4) -> JSON:
    numbered = {f"memory-slice-{number}": {"value": "1"} for number in range(slices)}
    return {"name": name, "counters": {**numbered, "copy-engines": {"value": "8"}}}


def pool(*slices: JSON) -> list[JSON]:
    for index, one in enumerate(slices):
        one["metadata"]["name"] = f"slice-{index}"
        one["spec"]["pool"]["resourceSliceCount"] = len(slices)
    return list(slices)


def counters(*sets: JSON) -> JSON:
    one = slice_of("node-a")
    del one["spec"]["devices"]
    one["spec"]["sharedCounters"] = list(sets)
    return one


def picture(
    slices: Sequence[JSON], held: Mapping[str, str] | None = None, proposed: Mapping[str, str] | None = None
) -> NodePicture:
    def keys(of: Mapping[str, str] | None) -> dict[tuple[str, str, str], tuple[str, ...]]:
        return {("gpu.nvidia.com", "node-a", device): (claim,) for device, claim in (of or {}).items()}

    cluster = Cluster.of([NODE, *map(decode, slices)])
    return node_picture(cluster, Features(), NODE, keys(held), keys(proposed))


def lines(drawing: NodePicture, columns: int = 200) -> list[str]:
    return [line.plain for line in drawn(drawing, columns)]


HALVES = (mig("gpu-0-mig-2g-0", "2g.20gb", 0, 2), mig("gpu-0-mig-2g-2", "2g.20gb", 2, 2))
QUARTERS = tuple(mig(f"gpu-0-mig-1g-{number}", "1g.10gb", number, 1) for number in range(4))


def test_memory_slices_show_who_holds_them_and_what_the_demand_gets() -> None:
    found = picture(
        pool(counters(counter_set()), slice_of("node-a", *HALVES, *QUARTERS)),
        held={"gpu-0-mig-1g-0": "ns/train"},
        proposed={"gpu-0-mig-2g-2": "ns/mine"},
    )
    (drawing,) = found.gpus
    assert (drawing.name, drawing.model, drawing.slices) == ("gpu-0", "H100", 4)
    assert drawing.cells == (
        Cell(0, 1, ("gpu-0-mig-1g-0",), "1g.10gb", ("ns/train",)),
        Cell(1, 1),
        Cell(2, 2, ("gpu-0-mig-2g-2",), "2g.20gb", (), ("ns/mine",)),
    )
    assert lines(found) == [
        "gpu-0  |1g.10gb a|         |     2g.20gb *     |",
        "* this demand   a ns/train",
    ]


def test_a_whole_gpu_that_may_be_divided_takes_all_of_its_memory_slices() -> None:
    whole = {**gpu("gpu-0"), "consumesCounters": mig("", "", 0, 4)["consumesCounters"]}
    together = slice_of("node-a", whole, *HALVES)
    found = picture(pool(counters(counter_set()), together), held={"gpu-0": "ns/train"})
    assert [(cell.count, cell.label, cell.held_by) for cell in found.gpus[0].cells] == [(4, "whole", ("ns/train",))]
    assert lines(found) == ["gpu-0  |        whole a        |", "a ns/train"]


def test_mig_instances_that_exist_already_are_drawn_from_their_capacities() -> None:
    def instance(name: str, profile: str, *numbers: int) -> JSON:
        described = mig(name, profile, 0, 0)
        described["attributes"]["parentUUID"] = {"string": "GPU-1"}
        described["capacity"] = {f"memorySlice{number}": {"value": "1"} for number in numbers}
        del described["consumesCounters"]
        return described

    devices = (instance("gpu-0-mig-3g-0", "3g.40gb", 0, 1, 2, 3), instance("gpu-0-mig-2g-4", "2g.20gb", 4, 5))
    found = picture([slice_of("node-a", *devices)], held={"gpu-0-mig-3g-0": "ns/train"})
    assert [(one.name, one.slices) for one in found.gpus] == [("gpu-0", 6)]
    assert lines(found) == ["gpu-0  |       3g.40gb a       |  2g.20gb  |", "a ns/train"]


def test_devices_with_counters_are_drawn_while_the_gate_for_counters_is_off() -> None:
    cluster = Cluster.of([NODE, *map(decode, [slice_of("node-a", *HALVES)])])
    off = Features(partitionable_devices=False)
    assert [one.slices for one in node_picture(cluster, off, NODE, {}, {}).gpus] == [4]


def test_gpus_that_are_not_divided_take_a_line_each_and_alike_ones_share_it() -> None:
    slices = [slice_of("node-a", *(gpu(f"gpu-{number}") for number in range(12)))]
    found = picture(slices, held={"gpu-0": "ns/train"}, proposed={"gpu-3": "ns/mine"})
    assert lines(found) == [
        "gpu-0            whole  ns/train",
        "gpu-1 to gpu-2   whole  free",
        "gpu-3            whole  * ns/mine",
        "gpu-4 to gpu-11  whole  free",
        "* this demand",
    ]


def test_a_gpu_with_a_counter_set_of_its_own_is_not_divided() -> None:
    own = counter_set("gpu-1-counter-set")
    consumed = [{"counterSet": own["name"], "counters": own["counters"]}]
    whole = {**gpu("gpu-1"), "consumesCounters": consumed}
    found = picture(pool(counters(counter_set(), own), slice_of("node-a", whole, *HALVES)), held={"gpu-1": "ns/train"})
    assert [(one.name, one.slices) for one in found.gpus] == [("gpu-0", 4), ("gpu-1", 0)]
    assert lines(found)[1] == "gpu-1  whole  ns/train"


def test_a_device_that_is_no_gpu_is_not_drawn() -> None:
    channel = {"name": "channel-0", "attributes": {"type": {"string": "channel"}}}
    assert picture([slice_of("node-a", channel)], held={"channel-0": "ns/train"}).gpus == ()


def test_the_devices_of_other_nodes_are_not_drawn() -> None:
    assert [one.name for one in picture([slice_of("node-a", gpu("gpu-0")), slice_of("node-b", gpu("gpu-9"))]).gpus] == [
        "gpu-0"
    ]


def test_a_device_with_several_holders_names_them_all() -> None:
    cluster = Cluster.of([NODE, decode(slice_of("node-a", gpu("gpu-0")))])
    held = {("gpu.nvidia.com", "node-a", "gpu-0"): ("ns/one", "ns/two")}
    assert lines(node_picture(cluster, Features(), NODE, held, {})) == ["gpu-0  whole  ns/one, ns/two"]


def test_slices_that_two_devices_claim_are_one_cell_of_both() -> None:
    found = picture(
        pool(counters(counter_set()), slice_of("node-a", *HALVES, *QUARTERS)),
        held={"gpu-0-mig-2g-0": "ns/one", "gpu-0-mig-1g-1": "ns/two"},
    )
    assert [(cell.first, cell.count, cell.held_by) for cell in found.gpus[0].cells] == [
        (0, 1, ("ns/one",)),
        (1, 1, ("ns/one", "ns/two")),
        (2, 2, ()),
    ]


@pytest.mark.parametrize("gpus", [8, 40])
def test_a_picture_is_at_most_16_lines_and_keeps_what_the_demand_gets(gpus: int) -> None:
    every = [
        GpuPicture(f"gpu-{number}", "H100", 1, (Cell(0, 1, ("d",), "1g.10gb", (f"ns/{number}",)),))
        for number in range(gpus - 1)
    ]
    last = GpuPicture(f"gpu-{gpus}", "H100", 1, (Cell(0, 1, ("d",), "1g.10gb", (), ("ns/mine",)),))
    found = lines(NodePicture("node-a", (*every, last)))
    assert len(found) <= 16
    assert any(line.endswith("*|") for line in found)
    assert found[-1].startswith("* this demand   a ns/0")


def test_the_sides_of_boxes_stand_below_each_other() -> None:
    names = [
        mig(f"gpu-{g}-mig-{n}", "1g.10gb+me.all", n, 1, f"gpu-{g}-counter-set") for g in range(2) for n in range(4)
    ]
    sets = counters(*(counter_set(f"gpu-{number}-counter-set") for number in range(2)))
    found = lines(picture(pool(sets, slice_of("node-a", *names)), proposed={"gpu-0-mig-1": "ns/mine"}))
    boxes = [[at for at, letter in enumerate(line) if letter == "|"] for line in found[:2]]
    assert boxes[0] == boxes[1]
    assert all(line == line.rstrip() for line in found)


@pytest.mark.parametrize("columns", [26, 40, 60])
def test_a_narrow_terminal_has_narrow_boxes_and_no_mark_is_lost(columns: int) -> None:
    slices = pool(counters(counter_set()), slice_of("node-a", *HALVES, *QUARTERS))
    found = lines(picture(slices, held={"gpu-0-mig-1g-0": "ns/a"}, proposed={"gpu-0-mig-2g-2": "ns/mine"}), columns)
    boxes = found[0].removeprefix("gpu-0  ")
    assert len(found[0]) <= columns
    assert boxes.count("|") == 4
    assert "a" in boxes
    assert "*" in boxes
    assert ("2g.20gb" in boxes) == (columns > 26)


def test_devices_of_the_demand_are_green_and_bold() -> None:
    slices = pool(counters(counter_set()), slice_of("node-a", *HALVES))
    first, *_ = drawn(picture(slices, proposed={"gpu-0-mig-2g-0": "ns/mine"}), 200)
    assert isinstance(first, Text)
    assert [first.plain[span.start : span.end].strip() for span in first.spans if span.style == "bold green"] == [
        "2g.20gb *"
    ]
