# SPDX-License-Identifier: Apache-2.0
"""A node without GPUs that behaves as if it had some.

A short YAML describes the node (`description`), a folder holds what hardware would hold (`store`), so
that it outlives every process, and `gateway` implements the NVML interface on it as strictly as a board
does (`board`). `files` makes what the driver would have installed: device nodes, /proc entries, libraries;
`sysfs` what the kernel shows of GPUs and drivers. `node` ties these together and is where tests occupy,
break, reset and unplug GPUs, and load and unload drivers.
"""

from .description import DescriptionError, NodeDescription, load_description, shipped_nodes
from .gateway import SimulatedNvml
from .node import SimulatedNode

__all__ = [
    "DescriptionError",
    "NodeDescription",
    "SimulatedNode",
    "SimulatedNvml",
    "load_description",
    "shipped_nodes",
]
