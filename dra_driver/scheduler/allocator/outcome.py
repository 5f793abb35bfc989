# SPDX-License-Identifier: Apache-2.0
"""The allocator's answers for one node and for all nodes of a cluster. Equivalent nodes share one decision.

AllocationError ends an allocation attempt at once, without backtracking.
"""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ...errors import DriverError
from ...kube.resource import AllocationResult

ALLOCATED: Final = "allocated"
UNAVAILABLE: Final = "unavailable"
ERROR: Final = "error"

OutcomeKind = Literal["allocated", "unavailable", "error"]


class ErrorKind(enum.StrEnum):
    """Why a search failed. All kinds except the last two end the whole scheduling attempt.

    SEARCH_LIMIT represents the time limit of the scheduler, which is ten seconds for each node.
    """

    CLASS_NOT_FOUND = "class-not-found"
    CEL_COMPILE = "cel-compile"
    CEL_RUNTIME = "cel-runtime"
    ALL_INCOMPLETE_POOL = "all-incomplete-pool"
    ALL_INVALID_POOL = "all-invalid-pool"
    ALL_CONSTRAINT = "all-constraint"
    TOO_MANY_DEVICES = "too-many-devices"
    CAPACITY = "capacity-not-representable"
    DERIVED_ATTRIBUTE = "derived-attribute"
    NODE_SELECTOR = "node-selector"
    FEATURE_DISABLED = "feature-disabled"
    UNSUPPORTED_CONSTRAINT = "unsupported-constraint"
    UNSUPPORTED_MODE = "unsupported-mode"
    INVALID_POOLS = "invalid-pools"
    SEARCH_LIMIT = "search-limit"


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The answer for `node`: `allocated` with one AllocationResult for each pending claim, `unavailable`, or `error`.

    `fatal` marks an error that stops scheduling of the pod. Other errors only exclude this node. `reason` is the text
    of kube-scheduler for the error.
    """

    node: str
    kind: OutcomeKind
    allocations: tuple[AllocationResult, ...] = ()
    error_kind: ErrorKind | None = None
    fatal: bool = False
    message: str = ""
    reason: str = ""


class AllocationError(DriverError):
    """An error with its kind and text. It stops scheduling of the pod (`fatal`) or only excludes the node.

    `reason` is the text of kube-scheduler. Without it, the text of the error is used.
    """

    def __init__(self, kind: ErrorKind, message: str, *, fatal: bool = True, reason: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.fatal = fatal
        self.reason = reason or message


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes whose outcomes differ only in names. `outcome` is that of the first node."""

    outcome: NodeOutcome
    nodes: tuple[str, ...]


class Outcomes(Mapping[str, NodeOutcome]):
    """The outcome of each node by the node's name, computed when it is first read. `groups` are computed before."""

    def __init__(
        self, nodes: Sequence[str], groups: Sequence[Group], write: Callable[[str, Group], NodeOutcome]
    ) -> None:
        """`nodes` is the order of the iteration. `write` makes the outcome of a node that is not first in a group."""
        self.groups = tuple(groups)
        self._nodes = nodes
        self._write = write
        self._group_of = {name: group for group in groups for name in group.nodes}
        self._written = {group.outcome.node: group.outcome for group in groups}

    def __getitem__(self, node: str) -> NodeOutcome:
        outcome = self._written.get(node)
        if outcome is None:
            outcome = self._written[node] = self._write(node, self._group_of[node])
        return outcome

    def kind(self, node: str) -> OutcomeKind:
        """The kind of the node's outcome, without computing the outcome."""
        return self._group_of[node].outcome.kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)
