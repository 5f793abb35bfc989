# SPDX-License-Identifier: Apache-2.0
"""What a node has and does not publish, and why: for the log, and by reason for a metric."""

import enum
from dataclasses import dataclass


class Reason(enum.StrEnum):
    """Why something is left out."""

    UNREADABLE = "unreadable"
    """NVML does not tell enough."""
    POLICY = "policy"
    OTHER_DRIVER = "other-driver"
    """Bound to a kernel driver that is neither NVIDIA's nor VFIO."""
    NO_IOMMU = "no-iommu"
    NO_MIG_PROFILES = "no-mig-profiles"
    NO_MIG_DEVICES = "no-mig-devices"
    """In MIG mode, and to be offered as the MIG devices that there are: there are none."""
    FOREIGN_INSTANCE = "foreign-instance"
    """A MIG instance is in the way that was not made for a claim, or for one whose placement is not published."""
    PARTIAL_INSTANCE = "partial-instance"
    """A GPU instance without the one compute instance that fills it."""
    VGPU = "vgpu"
    """A vGPU: its host splits it, and nobody else."""
    TAINTED = "tainted"
    """It should have a taint, and the API server keeps none."""
    NO_PARTITIONABLE_DEVICES = "no-partitionable-devices"
    NO_CONSUMABLE_CAPACITY = "no-consumable-capacity"
    NO_LIST_ATTRIBUTES = "no-list-attributes"
    NO_BINDING_CONDITIONS = "no-binding-conditions"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`subject` is a GPU's UUID, else its PCI address or index, or `node`; `text` says what is left out, and why."""

    subject: str
    reason: Reason
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"
