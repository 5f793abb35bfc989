# SPDX-License-Identifier: Apache-2.0
"""GPUs that were published and have vanished, and the health records of all GPUs of a node.

The devices of a GPU that vanished stay in the pool for a while with a taint, and are then withdrawn. If they
disappeared at once, their users would not learn the reason. With a taint, pods that do not tolerate it are kept away
or evicted, and the slice shows what happened.

The health monitor reports the same for a GPU that NVML calls lost, with the effect of the policy. This is not
sufficient, because the monitor does not know GPUs that it does not watch, nor any GPU while there is no driver. If
both report a GPU, the worse effect is published, and a report of the monitor is kept, so that the taint does not
become weaker before the GPU is withdrawn. Times are passed in.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...resource import CounterSet, Device, ResourceSlice, TaintEffect, Version
from ...resource.device import from_dotted
from ...resource.meta import EMPTY
from ..devices import PCI_BUS_ID, GpuDevices
from ..inventory import Inventory
from ..nvml import Placement
from ..passthrough import VfioMark
from ..policy import HealthPolicy, NodePolicy
from .conditions import Condition, Reading, switch_conditions
from .meanings import GPU_LOST, HUNG, MEANINGS, UNMONITORED
from .records import Finding, GpuRecord, aged, joined, judged, looked, noted, reset
from .taints import devices_by_gpu, published_findings


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
        self._hung = frozenset(one.uuid for one in inventory.failures if one.hung and one.uuid is not None)
        taken = {
            key: [away[one] for one in (key, *gpu.others) if one in away] if key in away or key in current else []
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
        stuck = [_stuck(mark, self._since[key]) for key, mark in marks if mark.stuck and key in self._since]
        gone = [gpu.key for gpu in lost if gpu.key not in away]
        return lost, (*(one for key in gone for one in (*self._heard[key], self._finding(key))), *stuck)

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
        hung = key in self._hung
        gone = f"GPU {key} does not answer any more: it fell off the bus, was removed, or its driver is gone"
        return Finding(
            gpu_uuid=key,
            key=GPU_LOST,
            value=HUNG if hung else "",
            effect=TaintEffect.NO_SCHEDULE,
            since=self._since[key],
            message=MEANINGS[GPU_LOST, HUNG].text if hung else gone,
        )


def _stuck(mark: VfioMark, since: float) -> Finding:
    return Finding(
        gpu_uuid=mark.gpu_uuid,
        key=GPU_LOST,
        value=HUNG,
        effect=TaintEffect.NO_SCHEDULE,
        since=since,
        message=mark.stuck,
    )


def _about(key: str, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(one for one in findings if (one.gpu_uuid, one.key) == (key, GPU_LOST))


def published_gpus(slices: Iterable[ResourceSlice]) -> tuple[GpuDevices, ...]:
    """The GPUs in published slices, without taints. Devices without a GPU's UUID are ignored."""
    slices = list(slices)
    sets = {counters.name: counters for one in slices for counters in one.shared_counters}
    return tuple(
        _untainted(GpuDevices(key=key, gpu=None, devices=tuple(found), counter_set=_counter_set(found, sets)))
        for key, found in devices_by_gpu(slices).items()
    )


def _counter_set(devices: Iterable[Device], sets: dict[str, CounterSet]) -> CounterSet | None:
    names = (consumed.counter_set for device in devices for consumed in device.consumes_counters)
    return next((sets[name] for name in names if name in sets), None)


def _addresses(gpu: GpuDevices) -> set[object]:
    return {device.attributes.get(PCI_BUS_ID) for device in gpu.devices}


def _untainted(gpu: GpuDevices) -> GpuDevices:
    return replace(gpu, devices=tuple(replace(device, taints=()) for device in gpu.devices))


@dataclass(frozen=True, slots=True)
class _Gpu:
    """The findings of a GPU, its PCI address if that is known, and since when the inventory lacks the GPU (seconds of
    the epoch). `switches` are the problems that Fabric Manager reports, see `switch_conditions`.
    """

    record: GpuRecord
    pci_address: str | None = None
    missing_since: float | None = None
    switches: frozenset[Condition] | None = None


class HealthRecords:
    """The findings of all GPUs of a node. Not thread-safe. Findings from before `booted_at` (seconds of the epoch) are
    not restored.
    """

    def __init__(self, booted_at: float = 0.0) -> None:
        self._booted_at = booted_at
        self._policy = HealthPolicy()
        self._gpus: dict[str, _Gpu] = {}
        self._ignored: frozenset[str] = frozenset()
        self._driver: Version | None = None

    def gpus(self) -> dict[str, bool]:
        """The UUIDs of the GPUs to watch. The value tells whether their MIG instances must be read."""
        return {uuid: gpu.record.confined for uuid, gpu in self._gpus.items()}

    def findings(self) -> tuple[Finding, ...]:
        """All findings, by GPU."""
        return tuple(finding for gpu in self._gpus.values() for finding in gpu.record.findings)

    # What there is

    def watch(self, inventory: Inventory, policy: NodePolicy, now: float) -> None:
        """Set the GPUs of the node. A GPU that has vanished stays, unless another kernel driver is now bound to it."""
        self._policy = policy.health
        there = {gpu.uuid for gpu in inventory.gpus}
        elsewhere = {pci.address for pci in inventory.pci_gpus if pci.driver != "nvidia"}
        gpus = {}
        for gpu in inventory.gpus:
            if policy.for_gpu(gpu).health:
                known = self._gpus.get(gpu.uuid)
                record = GpuRecord(gpu.uuid) if known is None else known.record
                switches = switch_conditions(gpu, inventory.switches)
                gpus[gpu.uuid] = _Gpu(record, gpu.pci_address, switches=switches)
        for uuid, one in self._gpus.items():
            if uuid not in there and one.pci_address not in elsewhere:
                gpus[uuid] = one if one.missing_since is not None else replace(one, missing_since=now)
        self._gpus, self._ignored = gpus, frozenset(there - gpus.keys())
        self._change(lambda record: judged(record, self._policy))
        self.age(now)

    def restore(self, slices: Sequence[ResourceSlice], now: float) -> None:
        """Take over the findings in the slices of an earlier process. If the driver has changed since, findings that a
        reset ends are left out.
        """
        before = _published_driver(slices)
        if self._driver is None:
            self._driver = before
        by_gpu: dict[str, list[Finding]] = {}
        for finding in published_findings(slices, self._policy, self._booted_at):
            by_gpu.setdefault(finding.gpu_uuid, []).append(finding)
        for uuid, found in by_gpu.items():
            if uuid in self._ignored:
                continue
            earlier = joined(GpuRecord(uuid), found, self._policy)
            if before is not None and before != self._driver:
                earlier = reset(earlier, now)
            gpu = self._gpus.get(uuid) or _Gpu(GpuRecord(uuid), missing_since=now)
            self._gpus[uuid] = replace(gpu, record=joined(gpu.record, earlier.findings, self._policy))

    def driver_runs(self, version: str, was_gone: bool, now: float) -> None:
        """NVML was initialized with this driver version. `was_gone` tells that the driver was unloaded meanwhile."""
        runs = from_dotted(version)
        if was_gone or (None not in (runs, self._driver) and runs != self._driver):
            self._change(lambda record: reset(record, now))
        self._driver = runs or self._driver

    # What is found

    def noted(self, uuid: str, condition: Condition, now: float, placement: Placement | None) -> None:
        """An event of a GPU, see `records.noted`. Ignored if the GPU is not watched."""
        self._change_one(uuid, lambda record: noted(record, condition, now, self._policy, placement))

    def looked(self, uuid: str, reading: Reading, now: float, *, watched: bool) -> None:
        """A GPU was read, see `records.looked`."""
        gpu = self._gpus.get(uuid)
        switches = None if gpu is None else gpu.switches
        self._change_one(
            uuid, lambda record: looked(record, reading, now, self._policy, watched=watched, switches=switches)
        )

    def unmonitored(self, now: float) -> None:
        """No GPU can be watched at the moment."""
        self._change(lambda record: noted(record, Condition(UNMONITORED, ""), now, self._policy))

    def age(self, now: float) -> None:
        """End the findings and GPUs whose time is over."""
        for uuid, gpu in list(self._gpus.items()):
            if gpu.missing_since is not None and now - gpu.missing_since >= self._policy.withdraw_after:
                del self._gpus[uuid]
        self._change(lambda record: aged(record, now, self._policy))

    def _change(self, change: Callable[[GpuRecord], GpuRecord]) -> None:
        for uuid in self._gpus:
            self._change_one(uuid, change)

    def _change_one(self, uuid: str, change: Callable[[GpuRecord], GpuRecord]) -> None:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return
        record = change(gpu.record)
        if record is not gpu.record:
            self._gpus[uuid] = replace(gpu, record=record)


def _published_driver(slices: Sequence[ResourceSlice]) -> Version | None:
    versions = (device.attributes.get("driverVersion") for one in slices for device in one.devices)
    return next((version for version in versions if isinstance(version, Version)), None)
