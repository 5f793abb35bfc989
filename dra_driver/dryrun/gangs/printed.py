# SPDX-License-Identifier: Apache-2.0
"""The answers about groups, for people and for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.text import Text

from ...kube.resource import ResourceClaim
from ...process.words import counted, listed
from ...scheduler.gangs import GangPlacement, PodResult
from ..report import API_VERSION, Json, Line, PlainTable
from ..sources import Source
from ..status import ExitStatus, Note, documents_of
from .ask import GangAnswer, GangOutcome

_SHOWN: Final = 12
"""The number of pods in a table, unless the output is wide."""
_TEXTS: Final = {
    GangOutcome.SCHEDULED: "kube-scheduler schedules it",
    GangOutcome.REFUSED: "kube-scheduler refuses it",
    GangOutcome.WAITING: "its pods do not enter the scheduling queue",
    GangOutcome.UNKNOWN: "it is not known whether kube-scheduler schedules it",
    GangOutcome.DEPENDS: "kube-scheduler schedules it or refuses it, depending on which nodes score best",
    GangOutcome.REJECTED: "the API server refuses it",
}
_STYLES: Final = {GangOutcome.SCHEDULED: "green", GangOutcome.DEPENDS: "yellow", GangOutcome.UNKNOWN: "yellow"}


@dataclass(frozen=True, slots=True)
class GangReport:
    """The answers about the groups, and what has to be said about how the objects were read.

    `others` are the names of pods and claims that belong to no group.
    """

    answers: Sequence[GangAnswer]
    source: Source
    others: Sequence[str] = ()
    unknown: Sequence[Note] = ()
    errors: Sequence[Note] = ()

    @property
    def status(self) -> ExitStatus:
        """The exit status. A group whose verdict depends on scores is uncertain."""
        outcomes = {answer.outcome for answer in self.answers}
        uncertain = GangOutcome.DEPENDS in outcomes or any(answer.unknown for answer in self.answers)
        fits = outcomes <= {GangOutcome.SCHEDULED, GangOutcome.DEPENDS, GangOutcome.UNKNOWN}
        return ExitStatus.of(fits=fits, errors=bool(self.errors), unknown=bool(self.unknown) or uncertain)

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """Each group with the verdict, the assignment and the changes. `wide` has all pods."""
        yield Text(f"from {self.source.where}", style="bold")
        for text in (*self.source.notes, *self.source.warnings, *self.source.assumptions):
            yield Text(text, style="yellow")
        for answer in self.answers:
            yield Text("")
            yield from _lines(answer, wide=wide)
        if self.others:
            yield Text("")
            yield Text(f"{counted(len(self.others), 'object')} with no group: {listed(self.others)}")
        yield from (Text(f"not known: {note}", style="yellow") for note in self.unknown)

    def document(self) -> Json:
        """The answers as plain dicts and lists."""
        return {
            "apiVersion": API_VERSION,
            "kind": "GangReport",
            "source": self.source.where,
            "notes": documents_of(self.unknown),
            "errors": documents_of(self.errors),
            "groups": [_document(answer) for answer in self.answers],
        }


def _lines(answer: GangAnswer, *, wide: bool) -> Iterator[Line]:
    outcome = answer.outcome
    told = (_TEXTS[outcome], _STYLES.get(outcome, "red"))
    yield Text.assemble((answer.group.title, "bold"), f": {_size(answer)}: ", told)
    yield from (Text(f"  {text}") for text in answer.rejects)
    yield from (Text(f"  not known: {text}", style="yellow") for text in answer.unknown)
    if answer.verdicts and answer.verdict.message and outcome is not GangOutcome.UNKNOWN:
        yield Text(f"  {answer.verdict.message}")
    yield from _refused(answer) if answer.verdicts and outcome in (GangOutcome.REFUSED, GangOutcome.DEPENDS) else ()
    if answer.joint is not None:
        yield from _joint(answer, wide=wide)
    elif outcome is GangOutcome.SCHEDULED:
        yield from _table(_rows(answer.verdict.results), wide=wide)
    if answer.defect:
        yield Text(f"  defect: {answer.defect}", style="yellow")
    if answer.changes:
        helps = "with one of these changes, kube-scheduler schedules the group:"
        yield Text(f"  {helps if answer.joint is not None else 'to avoid it, make one of these changes:'}")
        yield from (Text(f"  - {change.text}") for change in answer.changes)
    elif answer.changes is not None and answer.joint is not None:
        yield Text("  none of the changes that were tried makes kube-scheduler find an assignment")
    yield from (Text(f"  {note}", style="dim") for note in answer.notes)


def _size(answer: GangAnswer) -> str:
    running = f", {len(answer.gang.running)} with a node" if answer.gang.running else ""
    policy = answer.group.policy
    least = "" if policy is None else "basic" if policy.min_count is None else f"minCount {policy.min_count}"
    key = f", one domain of {policy.topology_key}" if policy is not None and policy.topology_key else ""
    return ", ".join(filter(None, (f"{counted(len(answer.gang.members), 'pod')}{running}", least))) + key


def _refused(answer: GangAnswer) -> Iterator[Text]:
    """The first pod without a node, and its text."""
    message = answer.verdict.message
    failed = [result for result in answer.verdict.results if result.node is None and result.text != message]
    yield from (Text(f"  pod {result.member.pod.name}: {result.text}") for result in failed[:1])


def _joint(answer: GangAnswer, *, wide: bool) -> Iterator[Line]:
    joint = answer.joint
    assert joint is not None
    if joint.placements:
        yield Text("  an assignment exists:", style="green")
        yield from _table(_rows(joint.placements), wide=wide)
    elif joint.proof:
        yield Text(f"  no assignment exists: {joint.proof}")
    else:
        yield Text("  whether an assignment exists was not found out in time (--search-timeout)", style="yellow")


def _rows(placed: Sequence[GangPlacement] | Sequence[PodResult]) -> list[tuple[str, str, str]]:
    return [
        (
            placement.member.pod.name,
            placement.node,
            " ".join(name for claim in placement.claims for name in _devices(claim)),
        )
        for placement in placed
        if placement.node is not None
    ]


def _devices(claim: ResourceClaim) -> list[str]:
    return [result.device for result in claim.allocation.results] if claim.allocation is not None else []


def _table(rows: Sequence[tuple[str, str, str]], *, wide: bool) -> Iterator[Line]:
    table = PlainTable("  Pod", "Node", "Devices")
    shown = rows if wide else rows[:_SHOWN]
    for pod, node, devices in shown:
        table.add_row(f"  {pod}", node, devices)
    yield table
    if len(shown) < len(rows):
        yield Text(f"  and {len(rows) - len(shown)} more (all of them with -o wide)")


def _document(answer: GangAnswer) -> Json:
    policy, joint = answer.group.policy, answer.joint
    return {
        "group": answer.group.title,
        "pods": len(answer.gang.members),
        "running": len(answer.gang.running),
        "minCount": policy.min_count if policy is not None else None,
        "topologyKey": (policy.topology_key or None) if policy is not None else None,
        "outcome": answer.outcome.value,
        "rejects": list(answer.rejects),
        "message": (answer.verdict.message or None) if answer.verdicts else None,
        "condition": answer.verdict.condition if answer.verdicts else None,
        "scheduler": [
            {**_placed(result), "message": result.text or None}
            for result in (answer.verdict.results if answer.verdicts else ())
        ],
        "assignment": [_placed(placement) for placement in joint.placements] if joint and joint.placements else None,
        "noAssignment": (joint.proof or None) if joint is not None else None,
        "isDecided": joint.is_decided if joint is not None else None,
        "defect": answer.defect or None,
        "changes": [
            {"kind": change.kind, "text": change.text, "order": list(change.order) or None}
            for change in answer.changes or ()
        ],
        "notes": list(answer.notes),
        "unknown": list(answer.unknown),
    }


def _placed(placement: GangPlacement | PodResult) -> dict[str, Any]:
    return {
        "pod": str(placement.member.pod),
        "node": placement.node,
        "claims": [{"claim": str(claim.metadata), "devices": _devices(claim)} for claim in placement.claims],
    }
