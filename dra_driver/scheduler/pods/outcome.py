# SPDX-License-Identifier: Apache-2.0
"""The answers of the scheduler's filters, and the texts in which the scheduler reports that a pod does not fit.

The texts are those of `FitError` and of the FailedScheduling event in 1.36.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from .snapshot import Site

NO_NODES: Final = "no nodes available to schedule pods"

_MOST_BYTES: Final = 1024
_CUT: Final = " ..."


class Code(enum.StrEnum):
    """The scheduler's codes for a refusal."""

    UNSCHEDULABLE = "Unschedulable"
    """Preemption may help."""
    UNRESOLVABLE = "UnschedulableAndUnresolvable"
    """Preemption does not help."""
    ERROR = "Error"
    """The scheduling attempt ends with an error."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a filter refuses a node, or a pod before any node is looked at, in the scheduler's own words.

    `plugin` is the scheduler's name for the filter. It is empty for nodes that the scheduler skipped because of another
    filter.
    """

    plugin: str
    reasons: tuple[str, ...]
    code: Code = Code.UNRESOLVABLE

    @property
    def message(self) -> str:
        """The reasons in one line."""
        return ", ".join(self.reasons)


Filter = Callable[[Site], Refusal | None]
"""A filter that is prepared for one pod: why it refuses the pod on a site, or None."""
Prepared = Filter | Refusal | None
"""A filter for one pod, a refusal of the pod before any node is looked at, or None if no node can be refused."""

NARROWED: Final = Refusal("", ("node(s) didn't satisfy plugin(s) [NodeAffinity]",))
"""A node that is not among those that the pod's node affinity names."""


def none_available(count: int, text: str) -> str:
    """The text for `count` nodes, which refuse a pod."""
    return f"0/{count} nodes are available:" + (f" {text}." if text else "")


def counted(reasons: Iterable[str]) -> str:
    """Each reason with the number of nodes that give it."""
    return ", ".join(sorted(f"{times} {reason}" for reason, times in Counter(reasons).items()))


def aggregated(errors: Iterable[str]) -> str:
    """Several errors in one text, each once, as apimachinery's `util/errors.NewAggregate` writes them."""
    distinct = list(dict.fromkeys(errors))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"


def event_text(fit_error: str, after: str) -> str:
    """The message of the FailedScheduling event; `after` is the message of PostFilter."""
    text = f"{fit_error} {after}" if after else fit_error
    data = text.encode()
    if len(data) <= _MOST_BYTES:
        return text
    return data[: _MOST_BYTES - len(_CUT)].decode(errors="ignore") + _CUT
