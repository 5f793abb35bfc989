# SPDX-License-Identifier: Apache-2.0
"""The records of all GPUs of a node: which there are, under which policy and which driver. Times are passed in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...resource import ResourceSlice, Version
from ...resource.semver import from_dotted
from ..inventory import Inventory
from ..nvml import Placement
from ..policy import HealthPolicy, NodePolicy
from .findings import Finding
from .meanings import UNMONITORED
from .readings import Reading
from .records import GpuRecord, aged, joined, judged, looked, noted, reset
from .rules import Condition
from .taints import published_findings


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU's record, where it sits if that is known, and since when the inventory lacks it (seconds of the epoch)."""

    record: GpuRecord
    pci_address: str | None = None
    missing_since: float | None = None


class Ledger:
    """Not safe between threads by itself. `booted_at` (seconds of the epoch): what was found before is not restored."""

    def __init__(self, booted_at: float = 0.0) -> None:
        self._booted_at = booted_at
        self._policy = HealthPolicy()
        self._gpus: dict[str, _Gpu] = {}
        self._ignored: frozenset[str] = frozenset()
        self._driver: Version | None = None

    def gpus(self) -> dict[str, bool]:
        """The GPUs to watch, by UUID; whether a look should tell their MIG instances."""
        return {uuid: gpu.record.confined for uuid, gpu in self._gpus.items()}

    def findings(self) -> tuple[Finding, ...]:
        """Everything held against the GPUs, in their order."""
        return tuple(finding for gpu in self._gpus.values() for finding in gpu.record.findings)

    # What there is

    def watch(self, inventory: Inventory, policy: NodePolicy, now: float) -> None:
        """These GPUs are there. One that is not any more stays, unless it went to another kernel driver."""
        self._policy = policy.health
        there = {gpu.uuid for gpu in inventory.gpus}
        elsewhere = {pci.address for pci in inventory.pci_gpus if pci.driver != "nvidia"}
        gpus = {}
        for gpu in inventory.gpus:
            if policy.for_gpu(gpu).health:
                known = self._gpus.get(gpu.uuid)
                gpus[gpu.uuid] = _Gpu(GpuRecord(gpu.uuid) if known is None else known.record, gpu.pci_address)
        for uuid, one in self._gpus.items():
            if uuid not in there and one.pci_address not in elsewhere:
                gpus[uuid] = one if one.missing_since is not None else replace(one, missing_since=now)
        self._gpus, self._ignored = gpus, frozenset(there - gpus.keys())
        self._change(lambda record: judged(record, self._policy))
        self.age(now)

    def restore(self, slices: Sequence[ResourceSlice], now: float) -> None:
        """An earlier process published these. What it held against a GPU before another driver came counts no more."""
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
        """NVML is initialized, with this driver. `was_gone`: it is known to have been unloaded meanwhile."""
        runs = from_dotted(version)
        if was_gone or (None not in (runs, self._driver) and runs != self._driver):
            self._change(lambda record: reset(record, now))
        self._driver = runs or self._driver

    # What is found

    def noted(self, uuid: str, condition: Condition, now: float, placement: Placement | None) -> None:
        """Something happened to a GPU; see `records.noted`. One that is not watched is passed over."""
        self._change_one(uuid, lambda record: noted(record, condition, now, self._policy, placement))

    def looked(self, uuid: str, reading: Reading, now: float, *, watched: bool) -> None:
        """A GPU was looked at; see `records.looked`."""
        self._change_one(uuid, lambda record: looked(record, reading, now, self._policy, watched=watched))

    def unmonitored(self, now: float) -> None:
        """No GPU can be watched at the moment."""
        self._change(lambda record: noted(record, Condition(UNMONITORED, ""), now, self._policy))

    def age(self, now: float) -> None:
        """Time has passed."""
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
