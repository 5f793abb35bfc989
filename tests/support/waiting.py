# SPDX-License-Identifier: Apache-2.0
"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.4


def wait_for(condition: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """The condition's value as soon as it is true. Fails the test when that takes too long."""
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        assert waited < seconds, f"waited {seconds} s in vain for {what}"
        # Asking is work that slows down who is waited for: seldom, after a while.
        time.sleep(min(max(_FIRST_PAUSE, waited / 5), _LONGEST_PAUSE))
