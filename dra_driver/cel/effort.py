# SPDX-License-Identifier: Apache-2.0
"""A bound on the work that CEL's cost does not see.

Concatenating lists costs one whatever their size, since Go only links them; comparing nested lists costs
by the outermost size; replace() costs by what it reads, not by what it writes. Such operations report
their real size here, and one evaluation gets so much of it. Kubernetes has a timeout instead.
"""

import threading
from typing import Final

from .errors import Abort

BUDGET: Final = 2_000_000
"""Elements, code points or comparisons. An expression that stays below it is evaluated as Kubernetes does."""


class _Meter(threading.local):
    left = BUDGET


_METER: Final = _Meter()


def refill() -> None:
    """Begin an evaluation."""
    _METER.left = BUDGET


def spend(amount: int) -> None:
    """Account for work. Raises Abort when there was too much of it."""
    _METER.left -= amount
    if _METER.left < 0:
        raise Abort("cost_limit", "the evaluation handles more data than any selector needs")
