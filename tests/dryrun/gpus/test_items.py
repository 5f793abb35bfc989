# SPDX-License-Identifier: Apache-2.0
"""The items of a snapshot that are read for one node."""

import json
from typing import Any

from dra_driver.dryrun.gpus.items import select_node
from tests.bench.cluster import objects
from tests.dryrun.conftest import gpu, slice_of


def texts(*values: dict[str, Any]) -> list[str]:
    return [json.dumps(value, separators=(",", ":")) for value in values]


def names(values: list[dict[str, Any]], node: str, kind: str) -> list[str]:
    selected = set(select_node(node)(texts(*values)))
    return [
        value["metadata"]["name"] for number, value in enumerate(values) if number in selected and value["kind"] == kind
    ]


def test_slices_claims_and_pods_of_the_node_are_read() -> None:
    made = objects(20, 100)
    assert names(made, "node-1", "ResourceSlice") == ["00000-gpu.nvidia.com-node-1", "node-1-dra.net"]
    assert len(names(made, "node-1", "ResourceClaim")) == 8
    assert len(names(made, "node-1", "Pod")) == 8
    assert len(names(made, "node-1", "Node")) == 20


def test_slices_of_all_nodes_are_read() -> None:
    everywhere = slice_of("pool", gpu("gpu-0"))
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    values = [slice_of("node-1", gpu("gpu-0")), slice_of("node-2", gpu("gpu-0")), everywhere]
    assert names(values, "node-1", "ResourceSlice") == ["node-1-slice", "pool-slice"]


def test_all_is_read_for_a_node_that_does_not_exist() -> None:
    values = [slice_of("node-1", gpu("gpu-0")), slice_of("node-2", gpu("gpu-0"))]
    assert list(select_node("node-3")(texts(*values))) == [0, 1]


def test_all_is_read_if_fields_are_in_another_order() -> None:
    values = [slice_of("node-1", gpu("gpu-0")), slice_of("node-2", gpu("gpu-0"))]
    values[0]["spec"]["pool"] = dict(reversed(values[0]["spec"]["pool"].items()))
    assert list(select_node("node-1")(texts(*values))) == [0, 1]
