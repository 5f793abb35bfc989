# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes for tests."""

from dataclasses import dataclass
from pathlib import Path

from dra_driver.gpu.devices import GpuDevices, describe
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.nvml import Nvml
from dra_driver.gpu.simulation import SimulatedNode, load_description


@dataclass(frozen=True)
class TestNode:
    """A simulated node and an initialized gateway to it."""

    __test__ = False

    node: SimulatedNode
    nvml: Nvml

    @property
    def sys_root(self) -> Path:
        """Its sysfs."""
        return self.node.driver_root / "sys"

    def describe(self) -> tuple[GpuDevices, ...]:
        """Its devices."""
        return describe(read_inventory(self.nvml, self.sys_root))


def make_node(root: Path, name: str, identity: str = "node-a") -> TestNode:
    """The shipped (or described) node `name`, made in `root`."""
    node = SimulatedNode.create(root, load_description(name), identity)
    nvml = node.nvml()
    nvml.initialize()
    return TestNode(node, nvml)
