# SPDX-License-Identifier: Apache-2.0
"""The claims for which some work has failed, and is to be tried again."""

import threading
import time
from dataclasses import dataclass
from typing import Final

from dra_driver.process.backoff import Backoff

from .model import ClaimRef

LONGEST_PAUSE: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Problem:
    """A problem of a claim. It is tried again after `due` (monotonic seconds)."""

    claim: ClaimRef
    text: str
    backoff: Backoff
    due: float = 0.0


class Problems:
    """The problems of claims, one for each. The first delay is `first` seconds, at most. Thread-safe."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._guard = threading.Lock()
        self._problems: dict[str, _Problem] = {}

    def add(self, claim: ClaimRef, text: str, *, delayed: bool = False) -> bool:
        """Try the claim again at the next occasion, or after a delay that grows if `delayed`. Returns whether this
        problem is new.
        """
        with self._guard:
            known = self._problems.get(claim.uid)
            backoff = Backoff(self._first, LONGEST_PAUSE) if known is None else known.backoff
            due = time.monotonic() + backoff.pause() if delayed else 0.0
            self._problems[claim.uid] = _Problem(claim, text, backoff, due)
        return known is None or known.text != text

    def remove(self, uid: str) -> None:
        """The claim has no problem any more."""
        with self._guard:
            self._problems.pop(uid, None)

    def __contains__(self, uid: str) -> bool:
        """Whether the claim has a problem."""
        return uid in self._problems

    def due(self) -> list[ClaimRef]:
        """The claims that are to be tried again now."""
        now = time.monotonic()
        with self._guard:
            return [problem.claim for problem in self._problems.values() if problem.due <= now]

    def is_due(self, uid: str) -> bool:
        """Whether the claim may be tried again now."""
        problem = self._problems.get(uid)
        return problem is None or problem.due <= time.monotonic()

    def next_due(self) -> float | None:
        """When the next claim is due (monotonic seconds). None if there are no problems."""
        with self._guard:
            return min((problem.due for problem in self._problems.values()), default=None)
