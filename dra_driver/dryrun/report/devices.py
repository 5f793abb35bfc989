# SPDX-License-Identifier: Apache-2.0
"""What a device says of itself, as text."""

from ...resource import Device
from ..conjuncts import shown


def attribute(device: Device | None, name: str) -> str:
    """An attribute; empty without it."""
    value = device.attributes.get(name) if device is not None else None
    return shown(value) if value is not None else ""


def memory(device: Device | None) -> str:
    """The memory as published, `80Gi`; empty without it."""
    capacity = device.capacity.get("memory") if device is not None else None
    return str(capacity.value) if capacity is not None else ""
