# SPDX-License-Identifier: Apache-2.0
"""GPUs that were published and are gone: kept in the pool for a while, tainted, and then withdrawn.

A device that disappears at once says nothing to whoever uses it. A taint does: pods that don't tolerate it are kept
away, or evicted, and what happened can be read from the slice.

The monitor finds the same of a GPU that NVML calls lost, with the effect that the policy wants. That is not enough
here: it knows nothing of GPUs that it does not watch, nor of any while there is no driver. Of both, the worse is
published; what the monitor has said stays said, so that the taint does not get weaker before the GPU is withdrawn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...resource import CounterSet, Device, ResourceSlice, TaintEffect
from ..devices import GPU_TYPE, MIG_TYPE, GpuDevices
from ..inventory import Inventory
from .findings import Finding
from .meanings import GPU_LOST, HUNG, MEANINGS


class LostGpus:
    """The GPUs that are missed. Told with every look at the hardware what is there."""

    def __init__(self) -> None:
        self._known: dict[str, GpuDevices] = {}
        self._hung: frozenset[str] = frozenset()
        self._since: dict[str, float] = {}
        self._heard: dict[str, tuple[Finding, ...]] = {}

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Miss the GPUs of these slices, too, which an earlier process published."""
        self._known = {gpu.key: gpu for gpu in published_gpus(slices)} | self._known

    def update(
        self,
        described: Sequence[GpuDevices],
        inventory: Inventory,
        findings: Sequence[Finding],
        now: float,
        withdraw_after: float,
    ) -> tuple[tuple[GpuDevices, ...], tuple[Finding, ...]]:
        """The GPUs to publish although they are gone, and what to say about them beside the monitor's `findings`.
        Times are in seconds.
        """
        self._known |= {gpu.key: _untainted(gpu) for gpu in described}
        there = {gpu.uuid for gpu in inventory.gpus}
        elsewhere = {gpu.address for gpu in inventory.pci_gpus if gpu.driver not in (None, "nvidia")}
        current = {gpu.key for gpu in described}
        self._hung = frozenset(one.uuid for one in inventory.failures if one.hung and one.uuid is not None)
        for key, gpu in list(self._known.items()):
            not_wanted = key in there or _addresses(gpu) & elsewhere
            if key in current:
                self._since.pop(key, None)
            elif not_wanted or now - self._since.setdefault(key, now) >= withdraw_after:
                self._forget(key)
        lost = tuple(gpu for key, gpu in self._known.items() if key not in current)
        self._heard = {gpu.key: _about(gpu.key, findings) or self._heard.get(gpu.key, ()) for gpu in lost}
        return lost, tuple(one for gpu in lost for one in (*self._heard[gpu.key], self._finding(gpu.key)))

    @property
    def knows_any(self) -> bool:
        """Whether there is any GPU to miss."""
        return bool(self._known)

    @property
    def since(self) -> tuple[float, ...]:
        """Since when each missed GPU is missed."""
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


def _about(key: str, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(one for one in findings if (one.gpu_uuid, one.key) == (key, GPU_LOST))


def published_gpus(slices: Iterable[ResourceSlice]) -> tuple[GpuDevices, ...]:
    """What slices say of each GPU, without taints. Devices that name no GPU are passed over."""
    slices = list(slices)
    sets = {counters.name: counters for one in slices for counters in one.shared_counters}
    devices: dict[str, list[Device]] = {}
    for one in slices:
        for device in one.devices:
            key = _gpu_of(device)
            if key is not None:
                devices.setdefault(key, []).append(replace(device, taints=()))
    return tuple(
        GpuDevices(key=key, gpu=None, devices=tuple(found), counter_set=_counter_set(found, sets))
        for key, found in devices.items()
    )


def _gpu_of(device: Device) -> str | None:
    match device.attributes.get("type"):
        case t if t == GPU_TYPE:
            key = device.attributes.get("uuid")
        case t if t == MIG_TYPE:
            key = device.attributes.get("parentUUID")
        case _:
            key = None
    return key if isinstance(key, str) else None


def _counter_set(devices: Iterable[Device], sets: dict[str, CounterSet]) -> CounterSet | None:
    names = (consumed.counter_set for device in devices for consumed in device.consumes_counters)
    return next((sets[name] for name in names if name in sets), None)


def _addresses(gpu: GpuDevices) -> set[object]:
    return {device.attributes.get("resource.kubernetes.io/pciBusID") for device in gpu.devices}


def _untainted(gpu: GpuDevices) -> GpuDevices:
    return replace(gpu, devices=tuple(replace(device, taints=()) for device in gpu.devices))
