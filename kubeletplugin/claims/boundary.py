# SPDX-License-Identifier: Apache-2.0
"""Contains unexpected errors of one claim: they are logged, counted, reported as an Event; other claims go on."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from dra_driver.process.containment import Count, contained

from ..kinds.targets import ClaimRef

EventHook = Callable[[ClaimRef, str, str], None]
"""Called with events for users: the claim, a reason in one word, and a text."""


def unheard(*_: object) -> None:
    """A hook that does nothing."""


class ClaimBoundary:
    """The boundary around each piece of work for one claim. `count` is called with the kind of work that failed."""

    def __init__(self, on_event: EventHook = unheard, count: Count = unheard) -> None:
        self.on_event = on_event
        self.count = count

    def around(
        self,
        work: str,
        claim: ClaimRef,
        tell: Callable[[Exception], None] = unheard,
        expected: tuple[type[Exception], ...] = (),
    ) -> AbstractContextManager[None]:
        """See `dra_driver.process.containment.contained`. `tell` is called with an unexpected exception before the
        Event is sent.
        """

        def told(error: Exception) -> None:
            tell(error)
            text = f"dra-kubeletplugin failed unexpectedly to {work}: {error!r}; its log has more, and it tries again"
            self.on_event(claim, "InternalError", text)

        return contained(work, claim, self.count, told, expected=expected, claim_uid=claim.uid)


UNHEARD = ClaimBoundary()
"""A boundary that only logs failures."""
