# SPDX-License-Identifier: Apache-2.0
"""A node without GPUs that behaves as if it had some.

A short YAML file describes the node (`description`). A folder has the state that real hardware would have (`store`), so
that it survives every process. `nvml` implements the NVML interface on this state, with the rules of real GPUs
(`board`). `files` creates the files of an installed driver (device nodes, /proc entries, libraries) and the kernel's
files in /sys. `node` combines these. The state also has what only tests change (`tests.support.hardware`): processes
that use GPUs, GPUs that are broken or gone, drivers that are not loaded.
"""

from ...errors import DescriptionError
from .description import NodeDescription, load_description, shipped_nodes
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
