# SPDX-License-Identifier: Apache-2.0
"""The facts of a simulated node from its description are those of a node that was made and read."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from dra_driver.gpu.inventory import Inventory, read_inventory
from dra_driver.gpu.simulated import NodeDescription, SimulatedNode, load_description, shipped_nodes
from dra_driver.gpu.simulated.description import parse_description
from dra_driver.gpu.simulated.facts import inventory_of
from tests.support import examples

from .test_description import nodes

VARIANTS = [name + mode for mode in ("", "-mig") for name in shipped_nodes()] + ["h100x8-mixed", "l40sx4-vgpu"]
EVERYTHING = """
driverVersion: 595.45.04
cudaVersion: "13.1"
gpus:
- {model: H100-SXM5-80GB, mig: true, instances: [{profile: 3g.40gb, start: 4}, {profile: 1g.10gb+me}], minors: [3]}
- {model: H100-SXM5-80GB, count: 2, numaNodes: [0, -1], pciAddresses: ["0001:1b:00.0", "0000:03:00.0"]}
- {model: L40S-PCIE-48GB, vgpuHost: {framework: mdev, functions: 4}}
- {model: T4-PCIE-16GB, vgpuHost: {framework: mdev, mixed: true}}
- {model: H100-SXM5-80GB, vgpu: true, mig: true}
fabric: {clusterUUID: 5a1f0c1e-6c3e-4a6f-9f0e-2b7d8c9e0f11, clique: 1, nodesPerClique: 4}
partitions: [[2, 1], [3]]
"""


def read(node: NodeDescription, identity: str) -> Inventory:
    """The facts of the node as the driver reads them."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        made = SimulatedNode.create(Path(folder), node, identity)
        nvml, root = made.nvml(), made.driver_root
        nvml.initialize()
        found = read_inventory(nvml, root / "sys", dev_root=root, driver_root=root)
        nvml.shutdown()
        return replace(found, switches=made.fabric.facts)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_facts_of_shipped_nodes_are_those_that_are_read(name: str) -> None:
    node = load_description(name)
    assert inventory_of(node, "node-7") == read(node, "node-7")


def test_the_facts_of_gpus_in_every_state_are_those_that_are_read() -> None:
    node = parse_description(EVERYTHING, "everything")
    assert inventory_of(node, "node-7") == read(node, "node-7")
    without = replace(node, partitions=())
    assert inventory_of(without, "node-7") == read(without, "node-7")


@given(nodes())
@settings(max_examples=examples(25))
def test_the_facts_of_any_node_are_those_that_are_read(node: NodeDescription) -> None:
    node = replace(node, faults=())
    assert inventory_of(node, "node-7") == read(node, "node-7")
