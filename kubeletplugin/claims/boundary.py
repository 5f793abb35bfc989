# SPDX-License-Identifier: Apache-2.0
"""The errors of claims: the expected ones, and the boundary that contains all others with one claim."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from dra_driver.gpu.fabric import FabricError
from dra_driver.gpu.nvml import NvmlError
from dra_driver.gpu.threads import HungError
from dra_driver.kube.api import ApiError
from dra_driver.process.containment import Count, contained

from ..errors import NoDriverError, PrepareError, RecordError, StoppedError
from .model import ClaimRef, Step

ERROR_TYPES: Final[Mapping[type[Exception], str]] = {
    PrepareError: "claim",
    RecordError: "record",
    NoDriverError: "no_driver",
    HungError: "hung",
    FabricError: "fabric_manager",
    StoppedError: "stopped",
    ApiError: "api_server",
    NvmlError: "nvml",
    OSError: "storage",
}
"""The errors with which a claim may fail, and of which kubelet is told. Their labels in metrics tell the cause."""

EXPECTED_ERRORS: Final = tuple(ERROR_TYPES)
"""Any other error is a defect of this driver."""

EventHook = Callable[[ClaimRef, str, str], None]
"""Called with events for users: the claim, a reason in one word, and a text."""

StepHook = Callable[[str, Step, float], None]
"""Called for every step that was carried out, with `do` or `undo`, the step, and its duration in seconds."""


def unheard(*_: object) -> None:
    """A hook that does nothing."""


class ClaimBoundary:
    """The boundary around each piece of work for one claim, and what is told to the outside: events for users
    (`on_event`), the kind of work that failed unexpectedly (`count`), and steps (`on_step`).
    """

    def __init__(self, on_event: EventHook = unheard, count: Count = unheard, on_step: StepHook = unheard) -> None:
        self.on_event = on_event
        self.count = count
        self.on_step = on_step

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


SILENT = ClaimBoundary()
"""A boundary that only logs failures."""
