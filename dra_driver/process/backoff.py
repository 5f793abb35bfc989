# SPDX-License-Identifier: Apache-2.0
"""Pauses between failed attempts."""

import random


class Backoff:
    """Pauses in seconds, which double from `first` to `longest`.

    Each pause is shortened randomly. Otherwise processes that failed at the same time, for example because the API
    server stopped, would all try again at the same time.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def pause(self) -> float:
        """The seconds to wait after a failure."""
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    def reset(self) -> None:
        """Start with the shortest pause again, after a successful attempt."""
        self._next = self._first
