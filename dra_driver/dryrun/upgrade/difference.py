# SPDX-License-Identifier: Apache-2.0
"""A difference between the cluster now and then."""

import enum
from dataclasses import dataclass


class Aspect(enum.StrEnum):
    """What differs. The order is that of the report."""

    VERDICT = "verdict"
    POOL = "pool"
    EXPRESSION = "expression"
    FIELD = "field"
    VERSION = "apiVersion"
    GATE = "gate"
    DEFECT = "defect"


class Effect(enum.StrEnum):
    """BREAKS: something that works or fits now does not then. HELPS: the other way round. CHANGES: neither."""

    BREAKS = "breaks"
    CHANGES = "changes"
    HELPS = "helps"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. `now` and `then` are texts about the two.

    `namespace` is empty for objects without one and for releases. `members` are the objects that are concerned, if
    `subject` stands for several equal ones, and `count` is their number.
    """

    aspect: Aspect
    effect: Effect
    subject: str
    now: str
    then: str
    namespace: str = ""
    members: tuple[str, ...] = ()
    count: int = 1
