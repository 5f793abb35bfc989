# SPDX-License-Identifier: Apache-2.0
"""Allocated claims for tests."""

import uuid
from collections.abc import Sequence
from typing import Any

from dra_driver import DRIVER_NAME
from dra_driver.resource import ResourceClaim
from dra_driver.resource.codec import V1, decode_claim


def allocated_claim(
    name: str, devices: Sequence[str], pool: str = "node-a", uid: str = "", **result: Any
) -> ResourceClaim:
    """A claim that was given `devices` of `pool`, one a request named after its position."""
    results = [
        {"request": f"r{index}", "driver": DRIVER_NAME, "pool": pool, "device": device, **result}
        for index, device in enumerate(devices)
    ]
    value = {
        "metadata": {"name": name, "namespace": "team", "uid": uid or str(uuid.uuid4())},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    return decode_claim(value, V1)
