# SPDX-License-Identifier: Apache-2.0
"""What the allocator answers for one node."""

import enum
from dataclasses import dataclass
from typing import Final, Literal

from ..resource import AllocationResult

ALLOCATED: Final = "allocated"
UNAVAILABLE: Final = "unavailable"
ERROR: Final = "error"

Kind = Literal["allocated", "unavailable", "error"]


class ErrorKind(enum.StrEnum):
    """Why a search could not be carried out. All but the last two end the whole scheduling attempt.

    SEARCH_LIMIT stands for the scheduler's ten seconds per node.
    """

    CLASS_NOT_FOUND = "class-not-found"
    CEL_COMPILE = "cel-compile"
    CEL_RUNTIME = "cel-runtime"
    ALL_INCOMPLETE_POOL = "all-incomplete-pool"
    ALL_INVALID_POOL = "all-invalid-pool"
    ALL_CONSTRAINT = "all-constraint"
    TOO_MANY_DEVICES = "too-many-devices"
    NODE_SELECTOR = "node-selector"
    FEATURE_DISABLED = "feature-disabled"
    UNSUPPORTED_CONSTRAINT = "unsupported-constraint"
    UNSUPPORTED_MODE = "unsupported-mode"
    INVALID_POOLS = "invalid-pools"
    SEARCH_LIMIT = "search-limit"


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The answer for `node`: `allocated` with one AllocationResult for each pending claim, `unavailable`, or `error`.

    `fatal` tells an error that stops scheduling of the pod from one that only rules out this node. `reason` is what
    kube-scheduler says of an error.
    """

    node: str
    kind: Kind
    allocations: tuple[AllocationResult, ...] = ()
    error_kind: ErrorKind | None = None
    fatal: bool = False
    message: str = ""
    reason: str = ""
