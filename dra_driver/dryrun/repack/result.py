# SPDX-License-Identifier: Apache-2.0
"""The answer of `dra-dryrun repack`: the plan with pictures before and after, or why there is none and what helps."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from rich.text import Text

from ...gpu.picture import Claims, drawn
from ...kube.resource import ResourceClaim
from ...scheduler.repack import GUARD_TAINT, Guard, GuardKind, RepackPlan, RepackStep
from ..report import API_VERSION, Drawing, Json, Line, PlainTable, counted, listed
from ..report.picture import DeviceKey, node_picture
from ..status import ExitStatus, Note, documents_of
from .hints import Hints, hints_for
from .question import Repacking

KIND: Final = "RepackReport"
_INDENT: Final = "  "
_MOST_PICTURES: Final = 4
"""The number of nodes that are drawn, unless the output is wide."""
_DEMAND: Final = "the demand"


@dataclass(frozen=True)
class RepackResult:
    """The answer. `at_most` is the number of moves that the user allows."""

    repacking: Repacking
    at_most: int | None = None

    @property
    def plan(self) -> RepackPlan | None:
        """The plan, if there is one."""
        return self.repacking.result.plan

    @property
    def status(self) -> ExitStatus:
        """0 if there is a plan, with no more moves than allowed."""
        plan = self.plan
        fits = plan is not None and (self.at_most is None or len(plan.steps) <= self.at_most)
        return ExitStatus.of(fits=fits, unknown=bool(self._unknown))

    @property
    def _unknown(self) -> Sequence[Note]:
        source = self.repacking.question.source
        return (*source.unknown, *source.unknown_of_pods)

    @cached_property
    def hints(self) -> Hints:
        """Why no moves help, and what would."""
        if self.repacking.rejects:
            return Hints(tuple(self.repacking.rejects), ())
        return hints_for(self.repacking)

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """The plan as a table, and the nodes before and after. `wide` has the pictures of all nodes."""
        source = self.repacking.question.source
        yield Text(f"{counted(len(self.repacking.space.sites), 'node')}, from {source.where}", style="bold")
        for text in (*(f"simulating {assumption}" for assumption in source.assumptions), *source.warnings):
            yield Text(text, style="yellow")
        for note in self._unknown:
            yield Text.assemble(("not known", "bold yellow"), f"  {note}")
        plan = self.plan
        if plan is None:
            yield from self._without_plan()
            return
        yield self._headline(plan)
        if plan.steps:
            yield self._steps(plan)
            yield from (Text(f"{_INDENT}{text}", style="yellow") for text in self._harm(plan))
            yield Text(f"{_INDENT}{self._kept_free(plan)}", style="dim")
        for placement in plan.placements:
            yield Text(
                f"then free for the demand: {placement.node} {listed([device[2] for device in placement.devices])}"
            )
        if plan.steps:
            yield from self._pictures(plan, wide)
            yield Text("the commands with a check after each step: -o script", style="dim")

    def _headline(self, plan: RepackPlan) -> Text:
        words, result = self.repacking.question.words, self.repacking.result
        if not plan.steps:
            return Text.assemble(("fits now", "bold green"), f"  {words}: no pod has to move")
        text = f"  {words}: {counted(len(plan.steps), 'pod')} to move"
        if result.distance:
            return Text.assemble(("fits after moves", "bold green"), f"{text}; at least {result.bound} must")
        return Text.assemble(("fits after moves", "bold green"), f"{text}, the fewest that do")

    def _without_plan(self) -> Iterator[Line]:
        yield Text.assemble(("no moves help", "bold red"), f"  {self.repacking.question.words}")
        yield from (Text(f"{_INDENT}{reason}") for reason in self.hints.reasons)
        if self.hints.helps:
            yield Text(f"{_INDENT}this would help:")
        yield from (Text(f"{_INDENT * 2}{text}", style="green") for text in self.hints.helps)

    def _steps(self, plan: RepackPlan) -> PlainTable:
        table = PlainTable("Step", "Pod", "From", "To")
        for number, step in enumerate(plan.steps, 1):
            table.add_row(number, str(step.pod), _place(step.source, step.before), _place(step.target, step.after))
        return table

    def _harm(self, plan: RepackPlan) -> Iterator[str]:
        """What the moves do to the pods."""
        jobs = [str(step.pod) for step in plan.steps if step.pod.owner[0] == "Job"]
        if jobs:
            yield f"pods of Jobs begin again: {listed(jobs)}"
        priorities = sorted({step.pod.priority for step in plan.steps})
        if priorities[-1]:
            yield f"priorities of the pods that move: {', '.join(map(str, priorities))}"

    def _kept_free(self, plan: RepackPlan) -> str:
        guard = plan.steps[0].guard
        if self.repacking.question.guard is GuardKind.TAINTS:
            return f"meanwhile DeviceTaintRules ({GUARD_TAINT}) keep {counted(len(guard.devices), 'device')} free"
        return f"meanwhile {listed(sorted(guard.nodes))} is cordoned"

    def _pictures(self, plan: RepackPlan, wide: bool) -> Iterator[Line]:
        names = dict.fromkeys(
            [*(placement.node for placement in plan.placements)]
            + [name for step in plan.steps for name in (step.source, step.target)]
        )
        shown = list(names) if wide else list(names)[:_MOST_PICTURES]
        demand: dict[DeviceKey, Claims] = {
            device: (_DEMAND,) for placement in plan.placements for device in placement.devices
        }
        before, after = _held(plan.claims_before), _held(plan.claims_after)
        for name in shown:
            yield from self._picture(name, "before", before, {})
            yield from self._picture(name, "after", after, demand)
        if len(names) > len(shown):
            yield Text(f"and {len(names) - len(shown)} more nodes (all of them with -o wide)")

    def _picture(
        self, name: str, when: str, held: Mapping[DeviceKey, Claims], proposed: Mapping[DeviceKey, Claims]
    ) -> Iterator[Line]:
        cluster = self.repacking.space.snapshot.cluster
        features = self.repacking.question.features
        picture = node_picture(cluster, features, cluster.node_by_name[name], held, proposed)
        yield Text(f"{name} {when}:", style="dim")
        yield Drawing(lambda columns: (Text(_INDENT).append(line) for line in drawn(picture, columns - len(_INDENT))))

    def document(self) -> Json:
        """The answer as plain dicts and lists."""
        result, question = self.repacking.result, self.repacking.question
        plan = self.plan
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "source": question.source.where,
            "demand": question.words,
            "guard": question.guard.value,
            "fits": plan is not None,
            "moves": None if plan is None else len(plan.steps),
            "lowerBound": result.bound,
            "optimal": plan is not None and not result.distance,
            "steps": [] if plan is None else [_encode_step(step) for step in plan.steps],
            "placements": []
            if plan is None
            else [
                {
                    "node": placement.node,
                    "devices": _encode_devices(placement.devices),
                    "guard": _encode_guard(placement.guard),
                }
                for placement in plan.placements
            ],
            "reasons": list(self.hints.reasons) if plan is None else [],
            "helps": list(self.hints.helps) if plan is None else [],
            "assumptions": list(question.source.assumptions),
            "notes": documents_of(self._unknown),
        }


def _held(claims: Iterable[ResourceClaim]) -> dict[DeviceKey, Claims]:
    held: dict[DeviceKey, Claims] = defaultdict(tuple)
    for claim in claims:
        for result in claim.allocation.results if claim.allocation is not None else ():
            if not result.admin_access:
                held[result.driver, result.pool, result.device] += (str(claim.metadata),)
    return held


def _place(node: str, devices: Sequence[DeviceKey]) -> str:
    return " ".join([node, listed([device for _, _, device in devices])]).strip()


def _encode_step(step: RepackStep) -> dict[str, Any]:
    return {
        "pod": {"namespace": step.pod.namespace, "name": step.pod.name, "uid": step.pod.uid},
        "owner": {"kind": step.pod.owner[0], "name": step.pod.owner[1]},
        "priority": step.pod.priority,
        "from": {"node": step.source, "devices": _encode_devices(step.before)},
        "to": {"node": step.target, "devices": _encode_devices(step.after)},
        "guard": _encode_guard(step.guard),
    }


def _encode_devices(devices: Iterable[DeviceKey]) -> list[dict[str, str]]:
    return [{"driver": driver, "pool": pool, "device": device} for driver, pool, device in devices]


def _encode_guard(guard: Guard) -> dict[str, Any]:
    return {"devices": _encode_devices(sorted(guard.devices)), "nodes": sorted(guard.nodes)}
