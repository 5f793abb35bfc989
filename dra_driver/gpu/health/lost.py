# SPDX-License-Identifier: Apache-2.0
"""GPUs that were published and have vanished.

The devices of a GPU that vanished stay in the pool for a while with a taint, and are then withdrawn. If they
disappeared at once, their users would not learn the reason. With a taint, pods that do not tolerate it are kept away
or evicted, and the slice shows what happened.

The health monitor reports the same for a GPU that NVML calls lost, with the effect of the policy. This is not
sufficient, because the monitor does not know GPUs that it does not watch, nor any GPU while there is no driver. If
both report a GPU, the worse effect is published, and a report of the monitor is kept, so that the taint does not
become weaker before the GPU is withdrawn. Times are passed in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...kube.resource import CounterSet, Device, ResourceSlice, TaintEffect
from ...kube.resource.meta import EMPTY
from ..devices import PCI_BUS_ID, GpuDevices
from ..inventory import Inventory
from ..passthrough import VfioMark
from .meanings import GPU_LOST, HUNG, MEANINGS
from .taints import Finding, devices_by_gpu


class LostGpus:
    """The GPUs that have vanished. `update` is called with each new inventory."""

    def __init__(self) -> None:
        self._known: dict[str, GpuDevices] = {}
        self._hung: frozenset[str] = frozenset()
        self._since: dict[str, float] = {}
        self._heard: dict[str, tuple[Finding, ...]] = {}

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Add the GPUs in the slices of an earlier process, so that they are missed too."""
        self._known = {gpu.key: gpu for gpu in published_gpus(slices)} | self._known

    def update(
        self,
        described: Sequence[GpuDevices],
        inventory: Inventory,
        findings: Sequence[Finding],
        now: float,
        withdraw_after: float,
        away: Mapping[str, VfioMark] = EMPTY,
    ) -> tuple[tuple[GpuDevices, ...], tuple[Finding, ...]]:
        """The vanished GPUs that stay published, and their findings in addition to those of the monitor. Times are in
        seconds. A GPU that is `away` (by UUID) was given to a virtual machine. It stays published without a finding,
        also if it is one of several GPUs of a device, unless the kernel does not finish a change of it.
        """
        self._known |= {gpu.key: _untainted(gpu) for gpu in described}
        there = {gpu.uuid for gpu in inventory.gpus} | {gpu.pci_address for gpu in inventory.gpus}
        elsewhere = {gpu.address for gpu in inventory.pci_gpus if gpu.driver not in (None, "nvidia")}
        current = {gpu.key for gpu in described}
        self._hung = frozenset(
            failure.uuid for failure in inventory.failures if failure.hung and failure.uuid is not None
        )
        taken = {
            key: [away[other] for other in (key, *gpu.others) if other in away] if key in away or key in current else []
            for key, gpu in self._known.items()
        }
        for key, gpu in list(self._known.items()):
            not_wanted = key in there or _addresses(gpu) & elsewhere
            if any(mark.stuck for mark in taken[key]):
                self._since.setdefault(key, now)
            elif key in current or key in away:
                self._since.pop(key, None)
            elif not_wanted or now - self._since.setdefault(key, now) >= withdraw_after:
                self._forget(key)
        lost = tuple(gpu for key, gpu in self._known.items() if key not in current)
        self._heard = {gpu.key: _about(gpu.key, findings) or self._heard.get(gpu.key, ()) for gpu in lost}
        marks = ((key, mark) for key, found in taken.items() for mark in found)
        stuck = [
            _lost(mark.gpu_uuid, HUNG, self._since[key], mark.stuck)
            for key, mark in marks
            if mark.stuck and key in self._since
        ]
        gone = [gpu.key for gpu in lost if gpu.key not in away]
        return lost, (*(finding for key in gone for finding in (*self._heard[key], self._finding(key))), *stuck)

    @property
    def knows_any(self) -> bool:
        """Whether any GPU was ever published."""
        return bool(self._known)

    @property
    def since(self) -> tuple[float, ...]:
        """The times since when GPUs are missing."""
        return tuple(self._since.values())

    def _forget(self, key: str) -> None:
        self._known.pop(key, None)
        self._since.pop(key, None)

    def _finding(self, key: str) -> Finding:
        if key in self._hung:
            return _lost(key, HUNG, self._since[key], MEANINGS[GPU_LOST, HUNG].text)
        gone = f"GPU {key} does not answer any more: it fell off the bus, was removed, or its driver is gone"
        return _lost(key, "", self._since[key], gone)


def _lost(uuid: str, value: str, since: float, message: str) -> Finding:
    return Finding(uuid, GPU_LOST, value, TaintEffect.NO_SCHEDULE, since, message)


def _about(key: str, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if (finding.gpu_uuid, finding.key) == (key, GPU_LOST))


def published_gpus(slices: Iterable[ResourceSlice]) -> tuple[GpuDevices, ...]:
    """The GPUs in published slices, without taints. Devices without a GPU's UUID are ignored."""
    slices = list(slices)
    sets = {counters.name: counters for slice_ in slices for counters in slice_.shared_counters}
    return tuple(_published_gpu(key, found, sets) for key, found in devices_by_gpu(slices).items())


def _published_gpu(key: str, devices: Sequence[Device], sets: Mapping[str, CounterSet]) -> GpuDevices:
    consumed = [consumption.counter_set for device in devices for consumption in device.consumes_counters]
    counter_set = next((sets[name] for name in consumed if name in sets), None)
    # Static MIG devices do not exclude each other, but their slices do not tell that for certain.
    return _untainted(GpuDevices(key, tuple(devices), counter_set, overlapping=len(consumed) > 1))


def _addresses(gpu: GpuDevices) -> set[object]:
    return {device.attributes.get(PCI_BUS_ID) for device in gpu.devices}


def _untainted(gpu: GpuDevices) -> GpuDevices:
    return replace(gpu, devices=tuple(replace(device, taints=()) for device in gpu.devices))
