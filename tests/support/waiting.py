# SPDX-License-Identifier: Apache-2.0
"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE = 0.01


def wait_for(condition: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """The condition's value as soon as it is true. Fails the test when that takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        time.sleep(_PAUSE)
