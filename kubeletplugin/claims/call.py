# SPDX-License-Identifier: Apache-2.0
"""Who asked for work, and until when it is worth doing."""

import time
from collections.abc import Callable
from typing import Final

from ..errors import StoppedError

KUBELET_SECONDS: Final = 45.0
"""How long kubelet waits for an answer, in seconds."""

_LOOK_SECONDS: Final = 0.05


class Call:
    """A call of kubelet, or the plugin's own work. Each of `checks` raises an exception if the work is not wanted any
    more: no caller waits, the claim is being unprepared, a time limit has passed, or the plugin ends.
    """

    __slots__ = ("_checks",)

    def __init__(self, *checks: Callable[[], None]) -> None:
        self._checks = checks

    def check(self) -> None:
        """Raise an exception, usually StoppedError, if the work is not wanted any more."""
        for check in self._checks:
            check()

    def pause(self, seconds: float) -> None:
        """Sleep, and end early with the exception of `check`."""
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            left = deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _LOOK_SECONDS))

    def also(self, check: Callable[[], None]) -> "Call":
        """This call with one more check, which comes first."""
        return Call(check, *self._checks)

    def within(self, seconds: float, what: str) -> "Call":
        """This call, which also ends with StoppedError after `seconds`, because other work on `what` may hang."""
        deadline = time.monotonic() + seconds

        def in_time() -> None:
            if time.monotonic() > deadline:
                raise StoppedError(f"another call or another process of this plugin is still working on {what}")

        return Call(*self._checks, in_time)


OWN_WORK: Final = Call()
"""The plugin's own work, which nobody waits for and nobody stops."""


def kubelet_call(claim: object, is_waiting: Callable[[], bool]) -> Call:
    """The call of kubelet for a claim, which ends when `is_waiting` returns False."""

    def check() -> None:
        if not is_waiting():
            raise StoppedError(f"kubelet no longer waits for claim {claim}; its next call continues from here")

    return Call(check)
