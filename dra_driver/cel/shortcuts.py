# SPDX-License-Identifier: Apache-2.0
"""The commonest calls in selectors in one step: comparing with a text, and matching a known pattern.

They answer and cost what the general calls do, which they leave all rarer operands to.
"""

from collections.abc import Sequence
from typing import Any

from .calls import located
from .costs import matching, traversal
from .errors import Fault
from .frame import Frame
from .paths import Constant, Plan, Run
from .patterns import encoded
from .scalars import Extension
from .values import core_cost_size, equal, no_such_overload


def comparison(plans: Sequence[Plan], offset: int, *, negated: bool) -> Run | None:
    """`operand == 'text'` or `operand != 'text'`; None for others."""
    left, right = plans
    if not isinstance(right, Constant) or not isinstance(right.value, str):
        return None
    text, evaluate = right.value, left.run
    length = len(text)
    whole_cost = traversal(length)

    def run(frame: Frame) -> object:
        value = evaluate(frame)
        if value.__class__ is str:
            size = len(value)
            frame.cost = cost = frame.cost + (whole_cost if size >= length else traversal(size))
            if cost > frame.limit:
                frame.charge(0)
            return (value == text) is not negated
        return _compared(frame, value, text, offset, negated=negated)

    return run


def _compared(frame: Frame, value: object, text: str, offset: int, *, negated: bool) -> object:
    result: object
    if value.__class__ is Fault:
        result = value
    else:
        try:
            result = equal(value, text) is not negated
        except Fault as fault:  # what cannot be compared is not equal
            result = True if negated else located(fault, offset)
    if isinstance(value, Extension) and not negated:
        frame.charge(1)
    else:
        frame.charge(traversal(min(core_cost_size(value), len(text))))
    return result


def matches(subject: Plan, pattern: str, compiled: Any, offset: int) -> Run:
    """subject.matches('pattern')"""
    evaluate, search = subject.run, compiled.search
    pattern_size = len(pattern)

    def run(frame: Frame) -> object:
        text = evaluate(frame)
        if text.__class__ is Fault:
            return text
        result: object
        if isinstance(text, str):
            result = search(encoded(text)) is not None
        else:
            result = located(no_such_overload("matches", text, pattern), offset)
        frame.charge(matching(core_cost_size(text), pattern_size))
        return result

    return run
