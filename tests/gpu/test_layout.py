# SPDX-License-Identifier: Apache-2.0
"""How a node's devices are laid out in slices."""

from pathlib import Path

import pytest

from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.simulation import shipped_nodes
from dra_driver.resource.validation import slice_problems
from tests.support.nodes import make_node

SIXTEEN_GPUS = """
driverVersion: 580.95.05
cudaVersion: "13.0"
gpus:
- {model: B200-SXM6-180GB, count: 16, mig: true}
"""


@pytest.mark.parametrize("name", [base + mode for base in shipped_nodes() for mode in ("", "-mig", "-mixed")])
def test_every_shipped_node_gives_slices_that_the_api_server_takes(tmp_path: Path, name: str) -> None:
    slices = node_slices("node-a", "uid", make_node(tmp_path, name).describe())
    assert [str(problem) for one in slices for problem in slice_problems(one)] == []


def test_a_node_without_gpus_has_one_empty_slice() -> None:
    (only,) = node_slices("node-a", "uid", ())
    assert only.devices == ()
    assert only.pool.resource_slice_count == 1


def test_whole_gpus_share_a_slice_and_come_before_each_split_gpu(tmp_path: Path) -> None:
    slices = node_slices("node-a", "uid", make_node(tmp_path, "h100x8-mixed").describe())
    counters, whole, *split = slices
    assert [counter_set.name for counter_set in counters.shared_counters] == [
        f"gpu-{i}-counter-set" for i in range(4, 8)
    ]
    assert counters.devices == ()
    assert [device.name for device in whole.devices] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert [{device.name.split("-mig-")[0] for device in one.devices} for one in split] == [
        {f"gpu-{i}"} for i in range(4, 8)
    ]


def test_names_keep_the_order_and_belong_to_the_node(tmp_path: Path) -> None:
    slices = node_slices("node-a", "the-uid", make_node(tmp_path, "h100x8-mig").describe())
    names = [one.metadata.name for one in slices]
    assert names == sorted(names)
    assert names[0] == "00000-gpu.nvidia.com-node-a"
    assert {(owner.kind, owner.uid, owner.controller) for one in slices for owner in one.metadata.owner_references} == {
        ("Node", "the-uid", True)
    }
    assert {one.pool.resource_slice_count for one in slices} == {len(slices)}


def test_more_than_eight_counter_sets_go_into_two_slices(tmp_path: Path) -> None:
    description = tmp_path / "sixteen.yaml"
    description.write_text(SIXTEEN_GPUS)
    slices = node_slices("node-a", "uid", make_node(tmp_path / "node", str(description)).describe())
    assert [len(one.shared_counters) for one in slices if one.shared_counters] == [8, 8]
    assert [str(problem) for one in slices for problem in slice_problems(one)] == []
