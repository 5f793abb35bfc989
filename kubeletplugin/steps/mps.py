# SPDX-License-Identifier: Apache-2.0
"""MPS of a group of devices, for one claim.

The step comes after the instances and compute modes of all GPUs of the group. A whole GPU is in the compute mode
EXCLUSIVE_PROCESS meanwhile, because otherwise a process that does not find its daemon would run without MPS. A GPU in
MIG mode has no compute mode, and each MIG device has its own daemon, because a CUDA process sees only one MIG device.

The share's file is the mark: it is written before the daemon starts, and the folder of the group is removed last.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dra_driver.kube.resource.meta import empty
from kubeletplugin.features.mps.shares import MpsShare, ShareName

from ..errors import PrepareError
from ..kinds.targets import ContainerTarget, MigSlot
from ..node.marks import Marks
from .base import Tools

_DIGITS = 10


@dataclass(frozen=True, slots=True)
class MpsLimits:
    """The configured limits: a percentage of the multiprocessors, and MiB of memory, for all devices or for the device
    with this UUID, or with this index among the sorted UUIDs of the configuration's devices.
    """

    percentage: int | None = None
    memory: int | None = None
    per_device: Mapping[str, int] = field(default_factory=empty)

    def of(self, uuids: tuple[str, ...], group: tuple[str, ...]) -> dict[str, int]:
        """The limits in MiB of `uuids`, which are some of the `group`. Raises PrepareError."""
        found = {} if self.memory is None else dict.fromkeys(uuids, self.memory)
        ordered = sorted(group)
        by_uuid: dict[str, int] = {}
        for key, limit in self.per_device.items():
            if key.isdigit() and int(key) < len(ordered):
                by_uuid.setdefault(ordered[int(key)], limit)
            elif key in ordered:
                by_uuid[key] = limit
            else:
                raise PrepareError(
                    f"defaultPerDevicePinnedMemoryLimit[{key}] is for no device of the claim: they are"
                    f" {', '.join(f'{index} ({uuid})' for index, uuid in enumerate(ordered))}"
                )
        return found | {uuid: limit for uuid, limit in by_uuid.items() if uuid in uuids}


@dataclass(frozen=True, slots=True)
class MpsStep:
    """MPS serves the clients of `share` (a key of the claim) on `devices`, by device name. `group` are the targets of
    all devices with the same configuration.

    If `share_id` is set, MPS enforces this share of one device, and other shares of the device have other limits. With
    protocol 2, a daemon has one set of limits, so the containers get the limits of their share in variables.
    """

    devices: tuple[str, ...]
    targets: tuple[ContainerTarget, ...]
    group: tuple[ContainerTarget, ...]
    share: str
    protocol: int
    limits: MpsLimits
    multi_user: bool
    shared_memory: bool
    share_id: str = ""

    def __str__(self) -> str:
        return f"MPS of {', '.join(self.devices)}"

    def __hash__(self) -> int:
        return hash((self.devices, self.share))

    @property
    def gpu_uuid(self) -> str:
        """The GPU of the first device. The claim's locks are held for the GPUs of all devices."""
        return self.targets[0].gpu_uuid

    @property
    def name(self) -> ShareName:
        """The place of the share. Claims with shares of the same devices have the same group."""
        return ShareName(f"s{_short(*sorted(map(_identity, self.targets)))}", self.gpu_uuid, self.share)

    def is_done(self, tools: Tools) -> bool:
        """Whether the share is served with these limits, on the current MIG devices."""
        if any(isinstance(one, MigSlot) and tools.mig.find(one) is None for one in self.group):
            return False
        return tools.mps.has(self.name, self._wanted(tools))

    def do(self, tools: Tools) -> None:
        """Let dra-mps serve the share."""
        tools.mps.provide(self.name, self._wanted(tools))

    def left_something(self, marks: Marks) -> bool:
        """Whether the share exists, or a group without shares has left something."""
        return marks.mps.leaves_something(self.name)

    def undo(self, tools: Tools) -> None:
        """Let dra-mps no longer serve the share. The daemon ends with its last share."""
        if self.left_something(tools.marks):
            tools.mps.release(self.name)

    def serves(self, device: str, share_id: str | None) -> bool:
        """Whether the step is for this device of its claim, or for this share of it."""
        return device in self.devices and self.share_id in ("", share_id)

    @property
    def limits_clients(self) -> bool:
        """Whether the limits are in variables of the containers, and not in the daemon."""
        return bool(self.share_id) and self.protocol == 2

    def is_served_with(self, other: "MpsStep") -> bool:
        """Whether one daemon can serve both. With protocol 3 their limits may differ."""
        if (self.name.server, self.protocol) != (other.name.server, other.protocol):
            return False
        return self.protocol == 3 or self._for_daemon() == other._for_daemon()

    def _for_daemon(self) -> "MpsStep":
        """What a daemon of protocol 2 is started with."""
        if not self.limits_clients:
            return replace(self, share="")
        return replace(self, share="", share_id="enforced", limits=MpsLimits())

    def memory_of(self, uuids: Mapping[ContainerTarget, str]) -> dict[str, int]:
        """The limits in MiB by UUID, from the UUIDs of all devices of the group. Raises PrepareError."""
        return self.limits.of(tuple(uuids[one] for one in self.targets), tuple(uuids[one] for one in self.group))

    def _wanted(self, tools: Tools) -> MpsShare:
        uuids = {one: _uuid(one, tools) for one in self.group}
        devices = tuple(uuids[one] for one in self.targets)
        percentage, memory = self.limits.percentage, self.memory_of(uuids)
        if self.limits_clients:
            percentage, memory = None, {}
        return MpsShare(self.protocol, devices, percentage, memory, self.multi_user, self.shared_memory)


@dataclass(frozen=True, slots=True)
class StrayMpsStep:
    """A share that no claim has, which is to be undone."""

    name: ShareName

    def __str__(self) -> str:
        return f"MPS share {self.name.key} of {self.name.server}"

    @property
    def gpu_uuid(self) -> str:
        """A GPU of the share's group."""
        return self.name.gpu

    def undo(self, tools: Tools) -> None:
        """Let dra-mps no longer serve the share."""
        tools.mps.release(self.name)


def share_key(claim_uid: str, number: int) -> str:
    """The key of a claim's share, which is the name of a namespace and part of the path of a socket."""
    return _short(claim_uid, str(number))


def _short(*parts: str) -> str:
    return hashlib.sha256(",".join(parts).encode()).hexdigest()[:_DIGITS]


def _identity(target: ContainerTarget) -> str:
    if isinstance(target, MigSlot):
        return f"{target.gpu_uuid}/{target.profile_id}/{target.placement}"
    return target.uuid


def _uuid(target: ContainerTarget, tools: Tools) -> str:
    if not isinstance(target, MigSlot):
        return target.uuid
    ids = tools.mig.find(target)
    if ids is None:
        raise PrepareError(f"there is no MIG device {target} for MPS")
    return ids.uuid
