# SPDX-License-Identifier: Apache-2.0
"""Whether the classes that requests name exist, and whether the capacity that they ask for does."""

import difflib
from collections.abc import Iterator

from ...resource import Quantity
from .catalog import Known
from .finding import Issue, warning
from .subject import Context, Requirement, Subject

UNKNOWN_CLASS = warning("unknown-class", "The DeviceClass is neither among the files nor one of the known ones.")
CAPACITY_UNMET = warning("capacity-never-met", "No known device that a request selects has the capacity it asks for.")
RULES = (UNKNOWN_CLASS, CAPACITY_UNMET)


_CLOSE = 0.85
"""So alike are two spellings of one name. Classes of NVIDIA's drivers have half of their names in common."""


def check_classes(subject: Subject, context: Context) -> Iterator[Issue]:
    """The classes and capacities that the requests of a claim name."""
    claim = subject.claim
    for one in claim.requirements() if claim is not None else ():
        yield from _class(one, context)
        yield from _capacity(one, context)


def _class(one: Requirement, context: Context) -> Iterator[Issue]:
    name, known = one.value.device_class_name, context.catalog.classes
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)
        hint = f"did you mean {close[0]!r}?" if close else "pass its file too, or take devices from your cluster"
        problem = f"there is no DeviceClass {name!r} (known: {', '.join(sorted(known))}); {hint}"
        yield Issue(UNKNOWN_CLASS, f"{one.path}.deviceClassName", problem)


def _capacity(one: Requirement, context: Context) -> Iterator[Issue]:
    candidates = context.catalog.candidates(one.value)
    for key, wanted in one.value.capacity_requests.items() if candidates else ():
        amounts = [amount for known in candidates if (amount := _amount(known, key)) is not None]
        if any(amount.value >= wanted.value for amount in amounts):
            continue
        if amounts:
            most = max(amounts, key=lambda amount: amount.value)
            problem = f"none of the {len(candidates)} known devices has {wanted} of it, the most is {most}"
        else:
            there = sorted({name for known in candidates for name in known.device.capacity})
            problem = f"none of the {len(candidates)} known devices has capacity {key!r} (there is {', '.join(there)})"
        yield Issue(CAPACITY_UNMET, f"{one.path}.capacity.requests[{key}]", problem)


def _amount(known: Known, key: str) -> Quantity | None:
    capacity = known.device.capacity.get(key)
    return None if capacity is None else capacity.value
