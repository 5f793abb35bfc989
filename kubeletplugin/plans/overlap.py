# SPDX-License-Identifier: Apache-2.0
"""Which devices exclude each other: the same one, a GPU and its slices, slices that have memory in common.

The scheduler sees to that with counters, but it can be told by an API server that does not know them, and it can be
forced by whoever writes a claim's status. A device is used by two claims only as shares of it (consumable capacity),
or when one of them is an administrator's, who only looks.
"""

import itertools
from collections.abc import Iterable

from ..hardware.targets import MigSlot, PrepareError, Target
from .plan import Plan, PlannedDevice


def require_no_overlap(plan: Plan) -> None:
    """Raises PrepareError when two devices of one claim exclude each other."""
    for first, second in itertools.combinations(plan.devices, 2):
        if first.name != second.name and exclusive(first, second):
            raise PrepareError(
                f"devices {first.name} and {second.name} of one claim are the same part of GPU"
                f" {first.target.gpu_uuid}: only one of them can be had"
            )


def conflicts(plan: Plan, others: Iterable[Plan]) -> Iterable[tuple[str, str, Plan]]:
    """(device, the other's device, the other plan) of every pair that excludes each other."""
    for other in others:
        for mine, theirs in itertools.product(plan.devices, other.devices):
            if exclusive(mine, theirs):
                yield mine.name, theirs.name, other


def exclusive(first: PlannedDevice, second: PlannedDevice) -> bool:
    """Whether only one of the two can be used at a time."""
    if first.admin or second.admin or not _overlap(first.target, second.target):
        return False
    shares = first.share_id is not None and second.share_id is not None
    return not (shares and first.target == second.target)


def _overlap(first: Target, second: Target) -> bool:
    if first.gpu_uuid != second.gpu_uuid:
        return False
    if not (isinstance(first, MigSlot) and isinstance(second, MigSlot)):
        return True  # one of them is the whole GPU
    one, other = first.placement, second.placement
    return one.start < other.start + other.size and other.start < one.start + one.size
