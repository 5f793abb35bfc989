# SPDX-License-Identifier: Apache-2.0
"""Allocated claims for tests."""

import uuid
from collections.abc import Sequence
from typing import Any

from dra_driver.config import API_VERSION
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import V1, decode_claim
from dra_driver.names import DRIVER_NAME


def config_of(sharing: Any, devices: Sequence[str]) -> list[dict[str, Any]]:
    """The configurations of an allocation of these devices that are to be shared so; none without. Those of whole GPUs,
    except that a MIG device can have MPS.
    """
    if sharing is None:
        return []
    mig = "-mig-" in devices[0] and sharing["strategy"] == "MPS"
    parameters = {"apiVersion": API_VERSION, "kind": "MigDeviceConfig" if mig else "GpuConfig", "sharing": sharing}
    return [{"source": "FromClaim", "opaque": {"driver": DRIVER_NAME, "parameters": parameters}}]


def time_slicing(interval: str) -> dict[str, Any]:
    """Sharing with this time-slice interval."""
    return {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}


def mps(**settings: Any) -> dict[str, Any]:
    """Sharing by MPS with these settings."""
    return {"strategy": "MPS", "mpsConfig": settings}


def allocated_claim(
    name: str,
    devices: Sequence[str],
    pool: str = "node-a",
    uid: str = "",
    sharing: Any = None,
    machine: Any = None,
    **result: Any,
) -> ResourceClaim:
    """A claim that was given `devices` of `pool`, one a request named after its position. See `config_of`. `machine`
    has fields of a VfioDeviceConfig.
    """
    results = [
        {"request": f"r{index}", "driver": DRIVER_NAME, "pool": pool, "device": device, **result}
        for index, device in enumerate(devices)
    ]
    configs = config_of(sharing, devices)
    if machine is not None:
        parameters = {"apiVersion": API_VERSION, "kind": "VfioDeviceConfig", **machine}
        configs.append({"source": "FromClaim", "opaque": {"driver": DRIVER_NAME, "parameters": parameters}})
    value = {
        "metadata": {"name": name, "namespace": "team", "uid": uid or str(uuid.uuid4())},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results, "config": configs}}},
    }
    return decode_claim(value, V1)
