# SPDX-License-Identifier: Apache-2.0
"""What differs between two releases, whatever the cluster has: feature gates, rules, and known defects."""

from collections.abc import Iterator
from typing import Final

from ...kube.releases import GATES, RULES, minor_release
from .difference import Aspect, Difference, Effect
from .sides import Side, Sides

_UNKNOWN: Final = "does not exist"
_GONE: Final = "gone: remove it from the flags of the processes"
RULE_APPLIES: Final = "applies"
RULE_DOES_NOT_APPLY: Final = "does not apply"


def gate_differences(sides: Sides) -> Iterator[Difference]:
    """The gates whose stage or value differs, and the gates with which processes of the release do not start."""
    now, then = sides.now, sides.then
    for conflict in sides.conflicts:
        value = "true" if conflict.value else "false"
        yield Difference(
            Aspect.GATE,
            Effect.BREAKS,
            conflict.gate,
            f"set to {value}",
            f"{conflict.reason}: kube-apiserver and kube-scheduler do not start until it is removed from their flags",
        )
    refused = {conflict.gate for conflict in sides.conflicts}
    for gate in sorted(now.gates.keys() | then.gates.keys()):
        before, after = _gate_text(now, gate), _gate_text(then, gate)
        if before == after or gate in refused:
            continue
        if after == _UNKNOWN:
            after = _GONE
        yield Difference(Aspect.GATE, Effect.CHANGES, gate, before, after)


def _gate_text(side: Side, gate: str) -> str:
    stage = GATES[minor_release(side.release)].get(gate)
    if stage is None:
        return _UNKNOWN
    said = f"{stage.stage}, {'on' if side.gates[gate] else 'off'}"
    return f"{said}, locked" if stage.is_locked else said


def rule_differences(sides: Sides) -> Iterator[Difference]:
    """The rules and known defects that only one of the releases has."""
    for rule in RULES.values():
        before, after = rule.applies_to(sides.now.release), rule.applies_to(sides.then.release)
        if before != after:
            subject = f"{rule.text} ({rule.issue})" if rule.issue else rule.text
            texts = (RULE_APPLIES, RULE_DOES_NOT_APPLY)
            yield Difference(Aspect.DEFECT, Effect.CHANGES, subject, *(texts if before else reversed(texts)))
