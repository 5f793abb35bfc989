# SPDX-License-Identifier: Apache-2.0
"""When claims with problems are tried again."""

from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.claims.problems import Problems

DELAYED, PROMPT = ClaimRef("team", "delayed", "u1"), ClaimRef("team", "prompt", "u2")


def test_without_problems_no_claim_is_due() -> None:
    problems = Problems(3600.0)
    problems.add(PROMPT, "busy")
    problems.remove(PROMPT.uid)
    assert problems.due() == []
    assert problems.next_due() is None


def test_delayed_claim_is_due_later() -> None:
    problems = Problems(3600.0)
    problems.add(DELAYED, "busy", delayed=True)
    assert problems.due() == []
    assert not problems.is_due(DELAYED.uid)


def test_next_due_is_the_time_of_the_earliest_problem() -> None:
    problems = Problems(3600.0)
    problems.add(DELAYED, "busy", delayed=True)
    later = problems.next_due()
    problems.add(PROMPT, "busy")
    assert later is not None
    assert later > 0.0
    assert problems.next_due() == 0.0
    assert problems.due() == [PROMPT]
