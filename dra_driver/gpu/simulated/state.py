# SPDX-License-Identifier: Apache-2.0
"""The state of one simulated GPU, stored as JSON."""

from dataclasses import dataclass, field
from typing import Any

from ..pci import NVIDIA_DRIVER


@dataclass(slots=True)
class ComputeInstanceState:
    """A compute instance that exists."""

    id: int
    profile_id: int


@dataclass(slots=True)
class GpuInstanceState:
    """A GPU instance that exists."""

    id: int
    profile_id: int
    start: int
    size: int
    compute_instances: list[ComputeInstanceState] = field(default_factory=list)


@dataclass(slots=True)
class ProcessState:
    """A process that uses the GPU, or one of its MIG devices (`gpu_instance` -1: the whole GPU)."""

    pid: int
    gpu_instance: int = -1
    compute_instance: int = -1


@dataclass(slots=True)
class SlotState:
    """The slot of the GPU. `driver` is the kernel driver that the GPU is bound to, or None. `probes` counts how often
    the NVIDIA driver has initialized the GPU, because that invalidates older handles.
    """

    plugged: bool = True
    driver: str | None = NVIDIA_DRIVER
    probes: int = 0

    @property
    def is_nvidias(self) -> bool:
        """Whether the GPU is bound to the NVIDIA driver."""
        return self.plugged and self.driver == NVIDIA_DRIVER


@dataclass(slots=True)
class HealthState:
    """The state that health checks read. If `fabric_state` is None, it is as in the node's description, and so is
    `clique` (cluster UUID, clique).
    """

    nvlinks_up: bool = True
    fabric_state: int | None = None
    fabric_status: int = 0
    fabric_health: int = 0
    clique: tuple[str, int] | None = None
    correctable_rows: int = 0
    uncorrectable_rows: int = 0
    rows_pending: bool = False
    rows_failed: bool = False
    pages_pending: bool = False
    recovery_action: int = 0


@dataclass(slots=True)
class BoardState:
    """The complete state of a board."""

    mig_current: bool = False
    mig_pending: bool = False
    lost: bool = False
    compute_mode: int = 0
    gpu_instances: list[GpuInstanceState] = field(default_factory=list)
    processes: list[ProcessState] = field(default_factory=list)
    memory_limits: dict[str, list[int]] = field(default_factory=dict)
    """[Hard, soft] in bytes, by the path of the cgroup."""
    slot: SlotState = field(default_factory=SlotState)
    health: HealthState = field(default_factory=HealthState)

    @staticmethod
    def from_json(value: dict[str, Any]) -> "BoardState":
        """The state from its JSON form, see `fields_of`."""
        instances = [
            GpuInstanceState(
                **{
                    **row,
                    "compute_instances": [ComputeInstanceState(**compute) for compute in row["compute_instances"]],
                }
            )
            for row in value["gpu_instances"]
        ]
        parts = {
            "gpu_instances": instances,
            "processes": [ProcessState(**row) for row in value["processes"]],
            "slot": SlotState(**value["slot"]),
            "health": HealthState(**value["health"]),
        }
        return BoardState(**{**value, **parts})


def fields_of(state: Any) -> dict[str, Any]:
    """The JSON form of one of these classes, for json.dumps. dataclasses.asdict would copy everything below them, which
    takes longer.
    """
    return {name: getattr(state, name) for name in state.__slots__}
