# SPDX-License-Identifier: Apache-2.0
"""Sets limits of GPU memory on the cgroups of containers and pods.

A claim's memory is for one pod. If a second pod has the same claim, it is refused while a process of the first one
runs, because each of them would get the memory once more. Containers of one pod share the memory of a claim: each
container's cgroup gets the limit, so that CUDA reports it as the GPU's memory, and the pod's cgroup gets the sum of all
limited devices of this GPU in the pod. The sum is computed from the recorded uses, so a repeated request changes
nothing.

Where the driver accounts for itself instead of the kernel, the pod's limit does not bound its containers (see
`Cgroups.nests`). There, a device of a claim is refused to a second container of the pod while the first one runs.
"""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from dra_driver.gpu.memory_limits import MemoryLimits, cgroup_root
from dra_driver.gpu.nvml import NO_DRIVER, NvmlError, Return
from dra_driver.gpu.threads import Beat, HungError
from dra_driver.process.backoff import Backoff

from ...claims.call import Call
from ...claims.locks import FileRanges, Held, KeyedLocks
from ...errors import LaterError, LimitError, NoDriverError
from ...node.gpus import Gpus
from ...node.node import Node
from .cgroups import Cgroups, ContainerCgroup
from .files import limit_files
from .uses import ClaimUse, DeviceUse, Uses

log = logging.getLogger(__name__)

SET_SECONDS: Final = 5.0
"""The time limit of the NVML calls for one container, of waiting for other work for the GPU, and of waiting for
locks. Together they are shorter than the time limit of the hook program.
"""
TIDY_SECONDS: Final = 60.0
FIRST_PAUSE: Final = 5.0
"""The pause before limits are set again that a driver has lost, in seconds."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The memory of a device of a claim, on the GPU with this UUID."""

    gpu_uuid: str
    mebibytes: int


LimitOf = Callable[[str, str], Limit]
"""The limit of a prepared claim's device: UID of the claim, name of the device in its CDI spec. Raises LimitError."""


class GpuMemory:
    """Limits of the memory that cgroups use on a GPU, through one initialization of NVML."""

    def __init__(self, gpus: Gpus) -> None:
        self._nvml = gpus.nvml
        self._find = gpus.device

    def limit(self, gpu_uuid: str, cgroup: str, size: int) -> None:
        """Limit the memory of the cgroup with this path to `size` bytes, and guarantee it nothing, so that nothing has
        to be undone when the cgroup ends. Raises NvmlError, also if the limit is not set afterwards.
        """
        gpu = self._find(gpu_uuid)
        self._nvml.set_memory_limits(gpu, cgroup, MemoryLimits(hard=size))
        found = self._nvml.memory_limits(gpu, cgroup)
        if found.hard > size:
            detail = f"the limit of {cgroup} is {found.hard} after it was set to {size} bytes"
            raise NvmlError(Return.UNKNOWN, "nvmlDeviceGetMemoryLimits_v1", detail)


class Limiter:
    """Sets limits for the claims of `limit_of` on the node's GPUs. `seconds` and `first_pause` are times in seconds.
    One thread calls `restore` and `attend`.
    """

    def __init__(
        self, node: Node, limit_of: LimitOf, seconds: float = SET_SECONDS, first_pause: float = FIRST_PAUSE
    ) -> None:
        files = node.of(limit_files)
        self._node = node
        self._limit_of = limit_of
        self._cgroups = Cgroups(cgroup_root(node.folders.hardware.sys_root))
        self._uses = Uses(files.claims)
        self._locks = KeyedLocks(FileRanges(files.folder / "locks"))
        self._seconds = seconds
        self._backoff = Backoff(first_pause, TIDY_SECONDS)
        self._unset: set[tuple[str, ContainerCgroup]] = set()  # GPUs and containers; only of the thread that attends
        self._due = 0.0

    def apply(self, claim: str, device: str, cgroup: str) -> None:
        """Limit a container that has `device` of a claim, and whose cgroup has the path `cgroup` (/proc/PID/cgroup).

        When this returns, the limit is set. Raises LimitError.
        """
        container = self._cgroups.container(cgroup)
        limit = self._limit_of(claim, device)
        try:
            gpus = self._node.gpus()
            with self._locks.hold(f"claim {claim}", limit.gpu_uuid, call=self._patience(limit.gpu_uuid)) as held:
                self._uses.write(self._with(self._uses.read(claim), claim, device, limit, container))
                self._set(gpus, limit.gpu_uuid, container, held)
        except (NoDriverError, OSError, TimeoutError) as error:
            raise LaterError(str(error)) from None
        except NvmlError as error:
            kind = LaterError if error.code in NO_DRIVER else LimitError
            raise kind(_explained(error, cgroup)) from None
        extra = {"claim": claim, "device": device, "gpu": limit.gpu_uuid, "cgroup": cgroup}
        log.info("limited the GPU memory of a container to %d MiB", limit.mebibytes, extra=extra)

    def restore(self) -> None:
        """Set all limits again, because a driver that was reloaded may have lost them. Raises OSError."""
        self.tidy()
        uses = [(use, device) for use in self._uses.all() for device in use.devices.values()]
        pairs = {(device.gpu, ContainerCgroup(path, use.pod)) for use, device in uses for path in device.containers}
        self._backoff.reset()
        self._set_again(pairs)

    def attend(self) -> float:
        """Set the limits that `restore` could not set, after pauses that grow, and tidy up. Returns the seconds until
        the next call. Raises OSError.
        """
        if self._unset and time.monotonic() >= self._due:
            self._set_again(self._unset)
        seconds = self.tidy()
        return min(seconds, max(0.0, self._due - time.monotonic())) if self._unset else seconds

    def _set_again(self, pairs: Collection[tuple[str, ContainerCgroup]]) -> None:
        """Set the limits of these GPUs and containers, as far as the containers exist."""
        hung: set[str] = set()
        unset: set[tuple[str, ContainerCgroup]] = set()
        for gpu, container in sorted(pairs, key=lambda pair: (pair[0], pair[1].path)):
            if not self._cgroups.exists(container.path):
                continue
            if gpu in hung:
                unset.add((gpu, container))
                continue
            try:
                with self._locks.hold(gpu, call=self._patience(gpu)) as held:
                    self._set(self._node.gpus(), gpu, container, held)
            except (NoDriverError, NvmlError, LimitError, TimeoutError) as error:
                text = "the GPU memory of a container is not limited any more: %s"
                log.error(text, error, extra={"cgroup": container.path})
                unset.add((gpu, container))
                if isinstance(error, HungError):
                    hung.add(gpu)
        self._unset, self._due = unset, time.monotonic() + self._backoff.pause()

    def tidy(self) -> float:
        """Forget the claims of pods that no longer exist. Returns the seconds until the next time. Raises OSError."""
        for use in self._uses.all():
            if not self._cgroups.exists(use.pod):
                with self._locks.try_hold(f"claim {use.claim}") as held:
                    if held and self._uses.read(use.claim) == use:
                        self._uses.remove(use.claim)
        return TIDY_SECONDS

    def _with(
        self, before: ClaimUse | None, claim: str, device: str, limit: Limit, container: ContainerCgroup
    ) -> ClaimUse:
        """The use of the claim with this container. Raises LimitError if another pod has the claim."""
        if before is not None and before.pod != container.pod:
            if self._cgroups.is_alive(before.pod):
                raise LimitError(
                    f"the claim with UID {claim} is used by another pod ({before.pod}), and the memory of a claim with"
                    " a limit is for one pod: give each pod its own claim with a ResourceClaimTemplate"
                )
            before = None
        devices = {} if before is None else before.devices
        containers = devices[device].containers if device in devices else frozenset()
        kept = frozenset(filter(self._cgroups.exists, containers)) | {container.path}
        added = DeviceUse(limit.gpu_uuid, limit.mebibytes, kept)
        return ClaimUse(claim, container.pod, {**devices, device: added})

    def _set(self, gpus: Gpus, gpu: str, container: ContainerCgroup, held: Held) -> None:
        """Set the limits of pod and container on a GPU. The caller holds the lock of the GPU. Raises LimitError,
        NvmlError, or TimeoutError if the GPU is busy with other work.
        """
        of_pod, of_container, shared = self._sums(gpu, container)

        def work(_beat: Beat) -> None:
            with gpus.in_use():
                gpus.of(GpuMemory).limit(gpu, self._cgroups.folder(container.pod), of_pod << 20)
                if shared and not self._cgroups.nests(container.pod):
                    raise LimitError(
                        f"another container of the pod uses {shared}, and without the controller dmem (Linux 6.14) the"
                        " driver cannot limit the memory of two containers together: give each container a request or"
                        " claim of its own"
                    )
                gpus.of(GpuMemory).limit(gpu, self._cgroups.folder(container.path), of_container << 20)

        job = self._node.threads.start(gpu, work, self._seconds)
        self._node.threads.wait(job, 2 * self._seconds, lambda: held.hand_over(gpu))

    def _sums(self, gpu: str, container: ContainerCgroup) -> tuple[int, int, str]:
        """The memory in MiB that the pod and the container may use on a GPU, and a device of this container that
        another running container of the pod also has, or "".
        """
        of_pod = of_container = 0
        shared = ""
        for use in self._uses.all():
            for name, device in use.devices.items():
                if use.pod != container.pod or device.gpu != gpu:
                    continue
                of_pod += device.mebibytes
                if container.path in device.containers:
                    of_container += device.mebibytes
                    if any(map(self._cgroups.is_alive, device.containers - {container.path})):
                        shared = f"{name} of the claim with UID {use.claim}"
        return of_pod, of_container, shared

    def _patience(self, gpu: str) -> Call:
        """A call that raises HungError if a call for the GPU hangs, which keeps its lock, and TimeoutError
        after the time limit.
        """
        deadline = time.monotonic() + self._seconds

        def check() -> None:
            self._node.threads.check((gpu,))
            if time.monotonic() > deadline:
                raise TimeoutError("another request for this claim or GPU is still running")

        return Call(check)


def _explained(error: NvmlError, cgroup: str) -> str:
    if error.code is Return.NOT_FOUND and error.call == "nvmlDeviceSetMemoryLimits_v1":
        return (
            f"{error}: the kernel's controller dmem must be enabled for the cgroup {cgroup} (+dmem in the"
            " cgroup.subtree_control of each cgroup above it, which container runtimes write)"
        )
    return str(error)
