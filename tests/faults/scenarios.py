# SPDX-License-Identifier: Apache-2.0
"""The claims whose calls get faults, on the node of node.yaml, and those that stand beside them and must not notice.

GPU 0 and 2 are whole, GPU 1 and 3 in MIG mode; an administrator made a MIG device on GPU 1, and lets GPU 0 be used by
one process at a time. Modes may be switched.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dra_driver.gpu.nvml import ComputeMode
from dra_driver.gpu.simulated import SimulatedNode
from tests.support.claims import mps, time_slicing

T = TypeVar("T")


@dataclass(frozen=True)
class Wanted:
    """An allocated claim: its devices, and what else is in each result."""

    devices: Sequence[str]
    result: Mapping[str, Any] = field(default_factory=dict)

    def add(self, add: Callable[..., T]) -> T:
        """The claim as `add(*devices, **result)` makes it."""
        return add(*self.devices, **self.result)


@dataclass(frozen=True)
class Scenario:
    """A claim, and those that are prepared before."""

    claim: Wanted
    others: Sequence[Wanted] = ()

    @property
    def needs_mps(self) -> bool:
        """Whether a claim is served by MPS."""
        return any(one.result.get("sharing") == _MPS for one in (self.claim, *self.others))


def _share(device: str, number: int, **result: Any) -> Wanted:
    return Wanted([device], {"shareID": f"0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e0{number}", **result})


_MPS = mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="1Gi")
_SLICE, _FOUND = "gpu-1-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-6"
_THREE = ["gpu-1-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-1", "gpu-1-mig-2g20gb-14-2"]
_MIXED = ["gpu-2", "gpu-0-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-0"]
_BESIDE = [Wanted(["gpu-1-mig-1g10gb-19-4"]), Wanted(["gpu-3"])]


def restrict(node: SimulatedNode) -> None:
    """What the administrator does to GPU 0."""
    nvml = node.nvml()
    nvml.initialize()
    nvml.set_compute_mode(nvml.device_by_index(0), ComputeMode.EXCLUSIVE_PROCESS)


SCENARIOS: Mapping[str, Scenario] = {
    "a whole GPU": Scenario(Wanted(["gpu-0"]), _BESIDE),
    "three slices": Scenario(Wanted(_THREE), _BESIDE),
    "a slice of a whole GPU": Scenario(Wanted(["gpu-0-mig-2g20gb-14-0"]), _BESIDE),
    "a whole GPU in MIG mode": Scenario(Wanted(["gpu-3"])),
    "a bit of everything": Scenario(Wanted(_MIXED), [*_BESIDE, Wanted(["gpu-0-mig-1g10gb-19-1"])]),
    "an administrator's slice": Scenario(Wanted([_FOUND]), _BESIDE),
    "a share": Scenario(_share(_SLICE, 1), [_share(_SLICE, 2), *_BESIDE]),
    "the only share": Scenario(_share(_SLICE, 1), _BESIDE),
    "time-slicing": Scenario(Wanted(["gpu-0"], {"sharing": time_slicing("Long")})),
    "MPS": Scenario(Wanted(["gpu-2"], {"sharing": _MPS}), [Wanted(["gpu-0"], {"sharing": _MPS})]),
    "MPS of a slice": Scenario(Wanted([_SLICE], {"sharing": _MPS})),
    "a share by MPS": Scenario(_share(_SLICE, 1, sharing=_MPS), [_share(_SLICE, 2, sharing=_MPS)]),
    "a look": Scenario(Wanted(["gpu-0", _FOUND], {"adminAccess": True}), [Wanted(["gpu-0"]), *_BESIDE]),
}
