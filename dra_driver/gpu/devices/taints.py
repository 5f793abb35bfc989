# SPDX-License-Identifier: Apache-2.0
"""Withdraws devices with taints, for an API server that does not store taints."""

from collections.abc import Iterable
from dataclasses import replace

from ...resource import Device, TaintEffect
from .describe import Description, GpuDevices
from .forms import LeftOut, Reason

_FORBIDDING = (TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE)


def without_tainted(gpus: Iterable[GpuDevices]) -> Description:
    """The same without the devices that should not be allocated, and without taints.

    A device that is in use is withdrawn with the others, and the scheduler then no longer counts what it draws. So with
    a device that draws on counters go all that draw on the same.
    """
    kept: list[GpuDevices] = []
    left_out: list[LeftOut] = []
    for gpu in gpus:
        tainted = [device for device in gpu.devices if _is_forbidden(device)]
        counted = any(device.consumes_counters for device in tainted)
        devices = tuple(
            replace(device, taints=())
            for device in gpu.devices
            if not (_is_forbidden(device) or (counted and device.consumes_counters))
        )
        if tainted:
            keys = ", ".join(sorted({taint.key for device in tainted for taint in device.taints}))
            text = f"{len(gpu.devices) - len(devices)} devices: the API server keeps no taints, these have {keys}"
            left_out.append(LeftOut(gpu.key, Reason.TAINTED, text))
        if devices:
            names = {device.name for device in devices}
            placements = {name: placement for name, placement in gpu.placements.items() if name in names}
            counter_set = None if counted else gpu.counter_set
            kept.append(replace(gpu, devices=devices, counter_set=counter_set, placements=placements))
    return Description(tuple(kept), tuple(left_out))


def _is_forbidden(device: Device) -> bool:
    return any(taint.effect in _FORBIDDING for taint in device.taints)
