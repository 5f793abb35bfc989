# SPDX-License-Identifier: Apache-2.0
"""Changes of GPUs that no claim needs any more, and that could not be undone.

The claim that needed the change is unprepared anyway, because no pod should wait for that. The mark of the change
stays, so the next process knows the change too. This process tries again after pauses that grow.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.process.backoff import Backoff

LONGEST_PAUSE: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Left:
    """What is left on a GPU: why, by the name of the change. It is tried again after `due` (seconds of the clock)."""

    problems: Mapping[str, str]
    due: float
    backoff: Backoff


class Unrestored:
    """The GPUs on which something is left, by UUID. `changed` is called when something is added. The first pause is
    `first` seconds, at most. All methods may be called from several threads.
    """

    def __init__(self, changed: Callable[[], None], first: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._changed = changed
        self._first = first
        self._clock = clock
        self._guard = threading.Lock()
        self._left: dict[str, _Left] = {}

    def add(self, gpu_uuid: str, change: str, problem: str) -> None:
        """A change of a GPU could not be undone."""
        with self._guard:
            left = self._left.get(gpu_uuid) or self._later(self._backoff(), {})
            self._left[gpu_uuid] = replace(left, problems={**left.problems, change: problem})
        self._changed()

    def remove(self, gpu_uuid: str, change: str) -> None:
        """A change of a GPU is undone."""
        with self._guard:
            left = self._left.pop(gpu_uuid, None)
            others = {} if left is None else {key: text for key, text in left.problems.items() if key != change}
            if left is not None and others:
                self._left[gpu_uuid] = replace(left, problems=others)

    def tried(self, gpu_uuid: str, problems: Mapping[str, str]) -> None:
        """Everything that is left on a GPU was tried again. These changes could not be undone."""
        with self._guard:
            known = self._left.pop(gpu_uuid, None)
            if problems:
                backoff = self._backoff() if known is None else known.backoff
                self._left[gpu_uuid] = self._later(backoff, problems)

    def failed(self, gpu_uuid: str) -> None:
        """Nothing could be tried on a GPU at the moment."""
        with self._guard:
            known = self._left.get(gpu_uuid)
            if known is not None:
                self._left[gpu_uuid] = self._later(known.backoff, known.problems)

    def due(self) -> list[str]:
        """The GPUs on which it is time to try again."""
        now = self._clock()
        with self._guard:
            return [gpu_uuid for gpu_uuid, left in self._left.items() if left.due <= now]

    def next_due(self) -> float | None:
        """When the next GPU is due (seconds of the clock). None if nothing is left."""
        with self._guard:
            return min((left.due for left in self._left.values()), default=None)

    def count(self) -> int:
        """The number of changes that are left."""
        with self._guard:
            return sum(len(left.problems) for left in self._left.values())

    def _backoff(self) -> Backoff:
        return Backoff(self._first, LONGEST_PAUSE)

    def _later(self, backoff: Backoff, problems: Mapping[str, str]) -> _Left:
        return _Left(problems, self._clock() + backoff.pause(), backoff)
