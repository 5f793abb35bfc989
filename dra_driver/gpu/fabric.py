# SPDX-License-Identifier: Apache-2.0
"""NVSwitch partitions: what NVIDIA's Fabric Manager reports, and the interface to it.

In its shared NVSwitch mode (FABRIC_MODE=1), Fabric Manager has a fixed list of partitions. A partition is a set of GPUs
whose NVLinks reach only each other. The GPUs of a claim can use NVLink, and since Hopper also CUDA, only while the
partition with exactly these GPUs is active. A GPU belongs to several partitions, of which one can be active.

Names and codes are those of NVIDIA's Fabric Manager User Guide, chapter "Fabric Manager SDK"
(https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/). `fabric_library` has the implementation with
NVIDIA's library, and `simulated.fabric` the one without switches.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ..errors import DriverError

_START = "kubelet tries again; if it lasts, read its log (/var/log/fabricmanager.log)"


class FabricCode(enum.IntEnum):
    """The error codes of the library (fmReturn_t)."""

    BADPARAM = -1
    GENERIC_ERROR = -2
    NOT_SUPPORTED = -3
    UNINITIALIZED = -4
    TIMEOUT = -5
    VERSION_MISMATCH = -6
    IN_USE = -7
    NOT_CONFIGURED = -8
    CONNECTION_NOT_VALID = -9
    NVLINK_ERROR = -10
    NOT_READY = -22

    @classmethod
    def _missing_(cls, value: object) -> "FabricCode":
        return cls.GENERIC_ERROR  # a code of a newer version


_MEANINGS = {
    FabricCode.BADPARAM: "it does not know such a partition (any more); delete the pod to have it scheduled again",
    FabricCode.GENERIC_ERROR: "it failed; read its log (/var/log/fabricmanager.log)",
    FabricCode.NOT_SUPPORTED: "it does not run in shared NVSwitch mode; set FABRIC_MODE=1 in"
    " /usr/share/nvidia/nvswitch/fabricmanager.cfg, and restart it",
    FabricCode.UNINITIALIZED: "the partition is not active",
    FabricCode.TIMEOUT: f"it did not answer in time; {_START}",
    FabricCode.VERSION_MISMATCH: "its library has another version; install libnvfm.so.1 (package"
    " nvidia-fabricmanager-dev) in the version of the driver",
    FabricCode.IN_USE: "the partition is active already, or another active partition has some of its GPUs",
    FabricCode.NOT_CONFIGURED: f"it is still starting; {_START}",
    FabricCode.CONNECTION_NOT_VALID: "it cannot be reached; see that nvidia-fabricmanager.service runs, and that"
    " FM_CMD_UNIX_SOCKET_PATH in fabricmanager.cfg names the socket",
    FabricCode.NVLINK_ERROR: "an NVLink could not be trained; read its log (/var/log/fabricmanager.log) and the kernel"
    " log, and reset the GPUs of the partition",
    FabricCode.NOT_READY: f"it is not ready yet; {_START}",
}

TEMPORARY = frozenset(
    {FabricCode.TIMEOUT, FabricCode.NOT_CONFIGURED, FabricCode.CONNECTION_NOT_VALID, FabricCode.NOT_READY}
)
"""Codes that say nothing about partitions: Fabric Manager does not run, or not yet."""


class FabricError(DriverError):
    """A call of Fabric Manager's API failed. `call` is the name of the function."""

    def __init__(self, code: FabricCode, call: str, detail: str = "") -> None:
        self.code = code
        text = detail or _MEANINGS[code]
        super().__init__(f"Fabric Manager: {call} failed ({code.name}, {int(code)}): {text}")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition with the module IDs of its GPUs (`gpuModuleID`) in ascending order. `active` is not part of its
    identity.
    """

    id: int
    modules: tuple[int, ...]
    active: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.id} (GPU modules {modules_text(self.modules)})"


@dataclass(frozen=True, slots=True)
class SwitchFacts:
    """What Fabric Manager reports. `shared` tells whether it manages partitions, and is None if no Fabric Manager of
    the node was ever reached. `problem` is the reason if the facts may be out of date.

    `failed` are UUIDs and PCI addresses of GPUs whose NVLinks failed. `unsupported` are partitions that cannot be
    activated because of such failures. Both stay empty from Hopper on, where Fabric Manager does not train NVLinks.
    """

    partitions: tuple[Partition, ...] = ()
    shared: bool | None = None
    problem: str = ""
    failed: frozenset[str] = frozenset()
    unsupported: tuple[Partition, ...] = ()

    def of_module(self, module: int | None) -> tuple[Partition, ...]:
        """The partitions with this GPU."""
        return tuple(partition for partition in self.partitions if module in partition.modules)


NO_SWITCHES = SwitchFacts()
"""A node without NVSwitches, or without Fabric Manager."""


class FabricManager(ABC):
    """The API of Fabric Manager. Each call uses a connection of its own, may block for ever, and raises FabricError."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A text that is another one after Fabric Manager was restarted, as far as files show this. Empty if this node
        has no Fabric Manager that could be reached. Costs a few system calls, and never blocks.
        """

    @abstractmethod
    def has_switches(self) -> bool:
        """has_switches: whether the node has NVSwitches."""

    @abstractmethod
    def supported_partitions(self) -> tuple[Partition, ...]:
        """fmGetSupportedFabricPartitions: all partitions. NOT_SUPPORTED in other modes than the shared one."""

    @abstractmethod
    def activate(self, partition: int) -> None:
        """fmActivateFabricPartition. IN_USE if the partition, or another one with some of its GPUs, is active."""

    @abstractmethod
    def deactivate(self, partition: int) -> None:
        """fmDeactivateFabricPartition. UNINITIALIZED if the partition is not active."""

    @abstractmethod
    def set_activated(self, partitions: Collection[int]) -> None:
        """fmSetActivatedFabricPartitions: the partitions that were active when Fabric Manager was restarted. Must be
        called after each restart, also without partitions.
        """

    @abstractmethod
    def failed_gpus(self) -> frozenset[str]:
        """fmGetNvlinkFailedDevices: UUIDs and PCI addresses of the GPUs."""

    @abstractmethod
    def unsupported_partitions(self) -> tuple[Partition, ...]:
        """fmGetUnsupportedFabricPartitions."""


def modules_text(modules: Iterable[int]) -> str:
    """The module IDs for people: `1, 2`."""
    return ", ".join(map(str, modules))
