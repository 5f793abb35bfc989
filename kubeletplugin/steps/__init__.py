# SPDX-License-Identifier: Apache-2.0
"""The changes that claims need on the node, one module for each kind. `base` defines what a step is."""

from .base import BUSY_SECONDS, Step, Tools, Undoable
from .fabric import FabricStep
from .instance import InstanceStep, LookStep
from .mode import MigModeStep
from .mps import MpsLimits, MpsStep, StrayMpsStep, share_key
from .setting import ComputeModeStep, TimeSliceStep, changed_settings
from .vfio import VfioStep
from .vgpu import VgpuStep

__all__ = [
    "BUSY_SECONDS",
    "ComputeModeStep",
    "FabricStep",
    "InstanceStep",
    "LookStep",
    "MigModeStep",
    "MpsLimits",
    "MpsStep",
    "Step",
    "StrayMpsStep",
    "TimeSliceStep",
    "Tools",
    "Undoable",
    "VfioStep",
    "VgpuStep",
    "changed_settings",
    "share_key",
]
