# SPDX-License-Identifier: Apache-2.0
"""The owner of a MIG instance or a vGPU: this driver, which created it for a claim, or an administrator.

The hardware does not store the owner. So the driver writes a mark (`marks`) before it creates an instance for a claim:
an empty file named after the place on the GPU. It deletes the mark after the instance was destroyed. An instance
without a mark belongs to an administrator. A mark does not name the claim.
"""

import re
from collections.abc import Sequence

from .marks import K, NamedMarks
from .mig import MigDevice
from .nvml import Placement
from .vgpus import VgpuPlace

_GPU = "(?P<gpu>GPU-[0-9a-fA-F-]+)"
_MIG = re.compile(_GPU + r"_(?P<profile>\d+)_(?P<start>\d+)_(?P<size>\d+)")
_VGPU = re.compile(_GPU + r"_(?P<address>[0-9a-f:.]+)_(?P<type>\d+)_(?P<mdev>[0-9a-f-]*)")


Owned = MigDevice | VgpuPlace
"""A MIG device or a vGPU that was created for a claim."""


class _DeviceMarks(NamedMarks[K, K]):
    """Marks of devices: the key is the whole mark."""

    def _names(self, key: K) -> Sequence[str]:
        return (self._name(key),)

    def _load(self, key: K, name: str) -> K:
        return key


class MigMarks(_DeviceMarks[MigDevice]):
    """The marks of MIG devices, with only what identifies them."""

    def _name(self, mark: MigDevice) -> str:
        at = mark.placement
        return f"{mark.gpu_uuid}_{mark.profile_id}_{at.start}_{at.size}"

    def _key_in(self, name: str) -> MigDevice | None:
        match = _MIG.fullmatch(name)
        if match is None:
            return None
        placement = Placement(int(match["start"]), int(match["size"]))
        return MigDevice(match["gpu"], int(match["profile"]), placement)


class VgpuMarks(_DeviceMarks[VgpuPlace]):
    """The marks of vGPUs."""

    def _name(self, mark: VgpuPlace) -> str:
        return f"{mark.gpu_uuid}_{mark.address}_{mark.type_id}_{mark.mdev}"

    def _key_in(self, name: str) -> VgpuPlace | None:
        match = _VGPU.fullmatch(name)
        return None if match is None else VgpuPlace(match["gpu"], match["address"], int(match["type"]), match["mdev"])
