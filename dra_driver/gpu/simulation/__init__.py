# SPDX-License-Identifier: Apache-2.0
"""A node without GPUs that behaves as if it had some.

A short YAML describes the node (`description`). A folder holds what hardware would hold (`store`), so that it outlives
every process. `nvml` implements the NVML interface on it, as strictly as a real GPU does (`board`). `files` creates
what the driver would have installed (device nodes, /proc entries, libraries) and what the kernel shows in /sys. `node`
combines these; tests use it to occupy, break, reset and unplug GPUs, and to load and unload drivers.
"""

from .description import DescriptionError, NodeDescription, load_description, shipped_nodes
from .node import SimulatedNode
from .nvml import SimulatedNvml

__all__ = [
    "DescriptionError",
    "NodeDescription",
    "SimulatedNode",
    "SimulatedNvml",
    "load_description",
    "shipped_nodes",
]
