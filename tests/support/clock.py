# SPDX-License-Identifier: Apache-2.0
"""A clock for code that takes one as a parameter."""


class Clock:
    """A clock that stands still until a test changes `now`, in seconds."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
