# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a GPU, or with one MIG instance of it."""

from dataclasses import dataclass

from ...resource import TaintEffect
from ..nvml import Placement


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, as the taint that says so.

    `key` is the taint's (`gpu.nvidia.com/xid`), `value` what was seen (the XID), `since` in seconds of the epoch.
    `placement` is the memory slices of the MIG instance concerned, None when it is the whole GPU. `message` is for
    people: what it is and what to do.
    """

    gpu_uuid: str
    key: str
    value: str
    effect: TaintEffect
    since: float
    message: str
    placement: Placement | None = None
