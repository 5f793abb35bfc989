# SPDX-License-Identifier: Apache-2.0
"""What the filters of the scheduler answer."""

import enum
from dataclasses import dataclass
from typing import Final


class Code(enum.StrEnum):
    """How final a refusal is, by the scheduler's names."""

    SUCCESS = "Success"
    UNSCHEDULABLE = "Unschedulable"
    """Preemption may help."""
    UNRESOLVABLE = "UnschedulableAndUnresolvable"
    """Preemption does not help."""
    ERROR = "Error"
    """The scheduling attempt ends with an error."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a filter refuses a node, or a pod before any node is looked at, in the scheduler's own words.

    `plugin` is the scheduler's name for the filter; it is empty for nodes that another filter made it pass over.
    """

    plugin: str
    reasons: tuple[str, ...]
    code: Code = Code.UNRESOLVABLE

    @property
    def message(self) -> str:
        """The reasons in one line."""
        return ", ".join(self.reasons)


NARROWED: Final = Refusal("", ("node(s) didn't satisfy plugin(s) [NodeAffinity]",))
"""A node that is not among those that the pod's node affinity names."""
