# SPDX-License-Identifier: Apache-2.0
"""The hardware is read together with the marks of the same moment."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.functions import PciFunction
from dra_driver.gpu.marked import TRIES, Marked, NodeMarks
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.ownership import MigMarks
from dra_driver.gpu.passthrough import VfioMark, VfioMarks
from dra_driver.gpu.vgpus import VgpuPlace

ADDRESS = "0000:1b:00.0"
MARK = VfioMark(ADDRESS, "GPU-1", (PciFunction(ADDRESS, "nvidia"),))
PLACE = MigDevice("GPU-2", 19, Placement(0, 1))
VGPU = VgpuPlace("GPU-3", "0000:3b:00.4", 105, "")


class Node:
    """The marks of a node, and a read of its hardware during which `meanwhile` happens."""

    def __init__(self, folder: Path) -> None:
        self.instances, self.taken = MigMarks(folder / "mig"), VfioMarks(folder / "vfio")
        self.marks = NodeMarks(self.instances, self.taken)
        self.reads = 0
        self.meanwhile: Callable[[int], object] = lambda _number: None

    def read(self) -> int:
        """The number of reads so far."""
        self.reads += 1
        self.meanwhile(self.reads)
        return self.reads


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def first(change: Callable[[], object]) -> Callable[[int], object]:
    """A change during the first read only."""
    return lambda number: change() if number == 1 else None


def test_hardware_is_read_once_while_no_mark_changes(node: Node) -> None:
    node.instances.set(PLACE)
    node.taken.set(MARK)
    node.taken.vgpus.set(VGPU)
    assert node.marks.around(node.read) == (1, Marked(frozenset({PLACE, VGPU}), (MARK,)))


def test_hardware_without_marks_is_read_once(node: Node) -> None:
    assert node.marks.around(node.read) == (1, Marked())


@pytest.mark.parametrize("kind", ["instances", "taken", "vgpus"])
def test_hardware_is_read_again_if_a_mark_is_set_meanwhile(node: Node, kind: str) -> None:
    change, expected = {
        "instances": (lambda: node.instances.set(PLACE), Marked(frozenset({PLACE}))),
        "taken": (lambda: node.taken.set(MARK), Marked(away=(MARK,))),
        "vgpus": (lambda: node.taken.vgpus.set(VGPU), Marked(frozenset({VGPU}))),
    }[kind]
    node.meanwhile = first(change)
    assert node.marks.around(node.read) == (2, expected)


def test_hardware_is_read_again_if_a_mark_is_removed_meanwhile(node: Node) -> None:
    node.taken.set(MARK)
    node.meanwhile = first(lambda: node.taken.clear(ADDRESS))
    assert node.marks.around(node.read) == (2, Marked())


def test_hardware_is_read_again_if_a_mark_is_set_and_removed_meanwhile(node: Node) -> None:
    node.instances.set(PLACE)
    node.instances.clear(PLACE)

    def come_and_go() -> None:
        node.instances.set(PLACE)
        node.instances.clear(PLACE)

    node.meanwhile = first(come_and_go)
    assert node.marks.around(node.read) == (2, Marked())


def test_hardware_is_read_again_if_a_mark_gets_another_content(node: Node) -> None:
    node.taken.set(MARK)
    node.meanwhile = first(lambda: node.taken.stick(ADDRESS, "the kernel does not finish it"))
    found, marked = node.marks.around(node.read)
    assert found == 2
    assert marked.away == (replace(MARK, stuck="the kernel does not finish it"),)


def test_marks_that_never_stay_the_same_are_all_valid(node: Node) -> None:
    def flip(_number: int) -> None:
        if node.taken.has(ADDRESS):
            node.taken.clear(ADDRESS)
            node.instances.set(PLACE)
        else:
            node.taken.set(MARK)
            node.instances.clear(PLACE)

    node.meanwhile = flip
    assert node.marks.around(node.read) == (TRIES, Marked(frozenset({PLACE}), (MARK,)))
