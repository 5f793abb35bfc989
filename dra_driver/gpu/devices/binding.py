# SPDX-License-Identifier: Apache-2.0
"""Binding conditions (KEP-5007): what the scheduler waits for after it allocated a device, before it binds the pod.

Whoever prepares devices sets one of the two in the status of the claim.
"""

from dataclasses import replace
from typing import Final

from ... import DRIVER_NAME
from ...resource import Device

AVAILABLE: Final = f"{DRIVER_NAME}/Available"
"""True: the device is on the node and fit for use."""
UNAVAILABLE: Final = f"{DRIVER_NAME}/Unavailable"
"""True: it is not, and the scheduler should look for another one."""


def waiting_for_plugin(device: Device) -> Device:
    """The device with both conditions."""
    return replace(device, binding_conditions=(AVAILABLE,), binding_failure_conditions=(UNAVAILABLE,))
