# SPDX-License-Identifier: Apache-2.0
"""The node as the plugin sees it: its folders, its hardware, and what kinds and features make of them."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar, cast

from dra_driver.gpu.marked import NodeMarks
from dra_driver.gpu.ownership import MigMarks
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.session import Session
from dra_driver.gpu.threads import STEP_SECONDS, Beat, CallLimits, NvmlThreads

from .folders import NodeFolders
from .gpus import FIRST_PAUSE, GpuAccess, Gpus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Time limits in seconds: of one `step` on a GPU; how long a step waits for a process that still uses a MIG device
    (`busy`; kubelet asks again about every 10 s); of one run of nvidia-smi (`program`), which must wake the GPU first
    without the persistence daemon; of one `write` to sysfs; and how long udev may take to create a `node`. A look at
    the NVSwitches waits for `look` seconds while another process changes partitions. `driver` is the first pause
    between looks for the NVIDIA driver. `calls` are the limits of queries to NVML.
    """

    step: float = STEP_SECONDS
    busy: float = 2.0
    program: float = 10.0
    write: float = 15.0
    node: float = 3.0
    look: float = 5.0
    driver: float = FIRST_PAUSE
    calls: CallLimits = field(default_factory=CallLimits)


DEFAULT_TIMES: Final = NodeTimes()


class Held(Protocol):
    """Locks that a caller holds."""

    def hand_over(self, key: str) -> Callable[[], None]:
        """Keep the lock of `key` beyond its holder. The returned function releases it and must be called once."""


class Checked(Protocol):
    """A call that work is done for."""

    def also(self: "C", check: Callable[[], None]) -> "C":
        """The same call with one more check."""


C = TypeVar("C", bound=Checked)


class Node:
    """The node with this `name`, whose boot has this ID. Making a Node has no effect: no thread, lock, file or call of
    NVML begins with it. So `status` and `cleanup` make one beside a running plugin.

    `instances`, `taken` and `marked` are the marks that all processes of the node read: of MIG instances, of GPUs that
    virtual machines have, and both. With `yields`, NVML is ended while this driver takes a GPU for a virtual machine. A
    process that uses NVML only for a moment need not do so.
    """

    def __init__(
        self, name: str, boot_id: str, folders: NodeFolders, times: NodeTimes = DEFAULT_TIMES, *, yields: bool = True
    ) -> None:
        self.name = name
        self.boot_id = boot_id
        self.folders = folders
        self.times = times
        self.instances = MigMarks(folders.folder / "mig")
        self.taken = VfioMarks(folders.folder / "vfio")
        self.marked = NodeMarks(self.instances, self.taken)
        self._yields = yields
        self._tools: dict[Callable[[Node], object], object] = {}
        self._unbound = self
        self._gpus: Gpus | None = None
        self._bound: Node | None = None

    @functools.cached_property
    def session(self) -> Session:
        """NVML during the life of this process."""
        return self.folders.hardware.session(self.taken if self._yields else None, self.times.calls)

    @property
    def threads(self) -> NvmlThreads:
        """The threads that call NVML."""
        return self.session.threads

    @functools.cached_property
    def access(self) -> GpuAccess:
        """The way to the GPUs, which may come late and go again."""
        return GpuAccess(self.session, self.folders.hardware.proc_root, self.times.driver)

    def gpus(self) -> Gpus:
        """The GPUs: inside of `run`, those of the initialization of NVML under which the work runs. Raises
        NoDriverError.
        """
        return self.access.current() if self._gpus is None else self._gpus

    def of(self, tool: Callable[["Node"], T]) -> T:
        """A kind's or feature's own access to the node, such as `VfioBinder`. It is made once and kept."""
        made = self._tools.get(tool)
        if made is None:
            made = self._tools.setdefault(tool, tool(self._unbound))
        return cast(T, made)

    def with_gpus(self, gpus: Gpus) -> "Node":
        """This node, whose GPUs are always these."""
        if self._bound is None or self._bound._gpus is not gpus:
            bound = copy.copy(self)
            bound._gpus = gpus
            bound._bound = None  # else it would keep the GPUs of every initialization before it
            self._bound = bound  # usually, the next work needs the same
            return bound
        return self._bound

    def run(self, key: str, work: Callable[["Node", C], T], held: Held, call: C, *, nvml: bool) -> T:
        """The result of `work`, which is work for `key`. Each `check` of the call that `work` gets restarts the time
        limit of a step. After a hang, HungError is raised, and the lock of `key` is kept until the call returns.

        With `nvml`, NVML stays initialized during that time. Raises NoDriverError if there is no driver.
        """
        gpus = self.gpus() if nvml else None

        def on_thread(beat: Beat) -> T:
            if gpus is None:
                return work(self, call.also(beat))
            with gpus.in_use():
                return work(self.with_gpus(gpus), call.also(beat))

        return self.threads.run(key, on_thread, self.times.step, lambda: held.hand_over(key))
