# SPDX-License-Identifier: Apache-2.0
"""Pauses between attempts that fail."""

import random


class Backoff:
    """Pauses (seconds) that double from `first` to `longest`, each cut by chance: processes that failed together, as
    when the API server went away, should not come back together.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def pause(self) -> float:
        """How long to wait after a failure."""
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    def reset(self) -> None:
        """An attempt has worked."""
        self._next = self._first
