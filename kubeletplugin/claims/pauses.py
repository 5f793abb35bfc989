# SPDX-License-Identifier: Apache-2.0
"""Pauses between attempts of a claim that disturb other claims.

While a GPU is taken for a virtual machine, no claim of the node can use NVML. kubelet repeats a failed prepare every
few seconds. If the GPU was taken each time and given back, a claim that cannot succeed would disturb all others for
ever.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dra_driver.process.backoff import Backoff

from ..errors import PrepareError

LONGEST_PAUSE: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Pause:
    """The next attempt is refused with `text` until `due` (seconds of the clock)."""

    text: str
    due: float
    backoff: Backoff


class Pauses:
    """The pauses of claims, by UID. The first one is `first` seconds, at most, and they double to LONGEST_PAUSE."""

    def __init__(self, first: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first = first
        self._clock = clock
        self._guard = threading.Lock()
        self._pauses: dict[str, _Pause] = {}

    def check(self, uid: str) -> None:
        """Raises PrepareError if the claim must not be tried yet."""
        with self._guard:
            pause = self._pauses.get(uid)
        if pause is not None and self._clock() < pause.due:
            raise PrepareError(pause.text)

    def begin(self, uid: str, error: Exception) -> None:
        """An attempt of the claim was undone because of this error. The next one has to wait. A claim without attempts
        for long is forgotten.
        """
        now = self._clock()
        with self._guard:
            self._pauses = {key: pause for key, pause in self._pauses.items() if now < pause.due + LONGEST_PAUSE}
            known = self._pauses.get(uid)
            backoff = Backoff(self._first, LONGEST_PAUSE) if known is None else known.backoff
            seconds = backoff.pause()
            text = f"{error}; the GPU was given back, and is taken for this claim again after {seconds:.0f} s"
            self._pauses[uid] = _Pause(text, now + seconds, backoff)

    def end(self, uid: str) -> None:
        """The claim was prepared or unprepared."""
        with self._guard:
            self._pauses.pop(uid, None)
