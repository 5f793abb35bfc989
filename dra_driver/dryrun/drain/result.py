# SPDX-License-Identifier: Apache-2.0
"""The answer of `dra-dryrun drain`: objects for kubectl, a document for programs, and an explanation for people."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.text import Text

from ...kube.resource import DeviceTaintRule, TaintEffect
from ..explain import taint_text
from ..report import Line, PlainTable, counted, listed
from ..report.document import API_VERSION
from ..status import ExitStatus, Note, documents_of
from ..successors import PodPlace
from .effects import Blocked, Effects, Evicted, Staying

JSON = dict[str, Any]

KIND: Final = "DrainReport"
_SHOWN: Final = 20
"""The number of pods in a table, unless the output is wide."""
_RULES: Final = 3
"""The number of rules that are listed, unless the output is wide. Rules without a driver are always listed."""
_INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """A rule, its version of the API, and the number of devices that it taints, by driver."""

    rule: DeviceTaintRule
    devices: Mapping[str, int]

    @property
    def names_driver(self) -> bool:
        """Whether the selector of the rule has a driver."""
        return self.rule.selector is not None and self.rule.selector.driver is not None

    @property
    def text(self) -> str:
        """What the rule selects: `without a selector, this rule matches 812 devices of 3 drivers`."""
        selector = self.rule.selector
        total = sum(self.devices.values())
        drivers = ", ".join(f"{driver} {count}" for driver, count in sorted(self.devices.items()))
        where = f" of {counted(len(self.devices), 'driver')} ({drivers})" if len(self.devices) > 1 else ""
        where = where or (f" of {drivers.rpartition(' ')[0]}" if drivers else "")
        found = f"this rule matches {counted(total, 'device')}{where}"
        if selector is None:
            return f"without a selector, {found}"
        if selector.driver is None and selector.pool is None and selector.device is None:
            return f"with an empty selector, {found}"
        return found if self.names_driver else f"without a driver, {found}"


@dataclass(frozen=True, slots=True)
class DrainResult:
    """What takes the devices out of use (or with `is_undo`, what brings them back), and the effects.

    `objects` are the DeviceTaintRules, or without `rules` the values of the driver's chart. `version` is the version of
    the rules, empty without rules.
    """

    where: str
    wanted: str
    effects: Effects
    objects: Sequence[JSON]
    rules: Sequence[RuleFacts] = ()
    version: str = ""
    is_undo: bool = False
    assumptions: Sequence[str] = ()
    notes: Sequence[str] = ()
    unknown: Sequence[Note] = ()

    @property
    def status(self) -> ExitStatus:
        """1 if an evicted pod has no place then, or if a pending pod can no longer start."""
        fits = self.is_undo or not (self.effects.without_place or self.effects.blocked)
        return ExitStatus.of(fits=fits, unknown=bool(self.unknown) or not self.effects.are_pods_known)

    def document(self) -> JSON:
        """The answer as plain dicts and lists."""
        effects = self.effects
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "source": self.where,
            "selected": self.wanted,
            "undo": self.is_undo,
            "devices": [
                {
                    "driver": device.driver,
                    "pool": device.pool,
                    "device": device.device.name,
                    "node": device.node or None,
                }
                for device in effects.devices
            ],
            "devicesInUse": effects.allocated,
            "objects": list(self.objects),
            "evicted": [_evicted(evicted) for evicted in effects.evicted],
            "staying": [
                {"pod": str(staying.pod), "devices": list(staying.devices), "reason": staying.reason}
                for staying in effects.staying
            ],
            ("startingAgain" if self.is_undo else "blocked"): [
                {"pod": str(blocked.pod), "now": _place(blocked.before), "then": _place(blocked.after)}
                for blocked in effects.blocked
            ],
            "holders": list(effects.holders),
            "assumptions": list(self.assumptions),
            "notes": [*documents_of(self.unknown), *documents_of(Note("", note) for note in self.notes)],
        }

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """The explanation for a terminal. `wide` has all pods and rules."""
        effects = self.effects
        nodes = sorted({device.node or device.pool for device in effects.devices})
        drivers = sorted(effects.by_driver)
        heading = f"{'undo the drain' if self.is_undo else 'drain'} of {self.wanted}, from {self.where}"
        yield Text(heading, style="bold")
        for text in (*(f"simulating {assumption}" for assumption in self.assumptions), *self.notes):
            yield Text(text, style="yellow")
        for note in self.unknown:
            yield Text.assemble(("not known", "bold yellow"), f"  {note}")
        if effects.devices:
            of = f" of {listed(drivers)} on {listed(nodes)}"
            yield Text(f"{counted(len(effects.devices), 'device')}{of}; {effects.allocated} in use")
        yield from self._rules(wide)
        yield from _table("evicted", effects.evicted, [_evicted_row(evicted) for evicted in _ordered(effects)], wide)
        yield from _table("stays", effects.staying, [_staying_row(staying) for staying in effects.staying], wide)
        title = "can start then" if self.is_undo else "can no longer start"
        yield from _table(title, effects.blocked, [_blocked_row(blocked) for blocked in effects.blocked], wide)
        if not effects.are_pods_known:
            yield Text(f"used by: {listed(effects.holders, 20) or 'no pod'}")
        elif not (effects.evicted or effects.staying or effects.blocked):
            yield Text("no pod is concerned")
        yield Text(self._next_step, style="dim")

    def _rules(self, wide: bool) -> Iterator[Text]:
        plain = [facts for facts in self.rules if facts.names_driver]
        left_out = set() if wide else set(map(id, plain[_RULES:]))
        for facts in self.rules:
            if id(facts) in left_out:
                continue
            name = facts.rule.metadata.name
            yield Text.assemble(
                f"{_INDENT}DeviceTaintRule ", (name, "bold"), f" ({taint_text(facts.rule.taint)}): {facts.text}"
            )
            if facts.rule.selector is None and facts.devices and facts.rule.taint.effect == TaintEffect.NO_EXECUTE:
                yield Text(f"{_INDENT * 2}no pod can start on them, and up to Kubernetes 1.37 it evicts none")
        if left_out:
            yield Text(f"{_INDENT}and {counted(len(left_out), 'more rule')} (all of them with -o wide)")

    @property
    def _next_step(self) -> str:
        if not self.version:
            verb = "remove these rules from" if self.is_undo else "add these rules at the end of"
            return f"the cluster has no DeviceTaintRules: {verb} the chart's value policy.gpus, and upgrade the release"
        if self.is_undo:
            return "the rules of -o yaml are for: kubectl delete -f -"
        return "the rules of -o yaml are for: kubectl apply -f -; the way back is the same command with --undo"


def _ordered(effects: Effects) -> list[Evicted]:
    """The evicted pods, those first that have no place."""
    return sorted(effects.evicted, key=lambda evicted: (bool(evicted.place.node), not evicted.is_made_again))


def _table(title: str, pods: Sequence[object], rows: Sequence[tuple[str, ...]], wide: bool) -> Iterator[Line]:
    if not rows:
        return
    yield Text(f"{title}: {counted(len(pods), 'pod')}", style="bold")
    headings = {"evicted": ("POD", "EVICTED", "FROM", "THEN"), "stays": ("POD", "DEVICES", "WHY")}
    table = PlainTable(*(f"{heading}" for heading in headings.get(title, ("POD", "NOW", "THEN"))))
    shown = rows if wide else rows[:_SHOWN]
    for row in shown:
        table.add_row(*row)
    yield table
    if len(rows) > len(shown):
        yield Text(f"{_INDENT}and {len(rows) - len(shown)} more pods (all of them with -o wide)")


def _evicted_row(evicted: Evicted) -> tuple[str, ...]:
    when = "at once" if not evicted.seconds else f"after {evicted.seconds:g}s"
    place = _place_text(evicted.place)
    if not evicted.is_made_again:
        place = f"gone: it has no controller; made again, it {place.replace('goes', 'would go', 1)}"
    elif evicted.again:
        place = f"{place}, and is evicted again, because it gets a device with the taint"
    return str(evicted.pod), when, listed(evicted.devices), place


def _staying_row(staying: Staying) -> tuple[str, ...]:
    return str(staying.pod), listed(staying.devices), staying.reason


def _blocked_row(blocked: Blocked) -> tuple[str, ...]:
    return str(blocked.pod), _place_text(blocked.before), _place_text(blocked.after)


def _place_text(place: PodPlace) -> str:
    if place.preempts:
        return f"goes to {place.node} only if {listed(place.preempts)} are removed (preemption)"
    if not place.node:
        return f"fits nowhere: {place.reason}"
    others = f" or {counted(place.others, 'other node')}" if place.others else ""
    return f"goes to {place.node}{others}" + (f": {listed(place.devices)}" if place.devices else "")


def _evicted(evicted: Evicted) -> JSON:
    return {
        "pod": str(evicted.pod),
        "afterSeconds": evicted.seconds,
        "devices": list(evicted.devices),
        "madeAgain": evicted.is_made_again,
        "evictedAgain": evicted.again,
        "then": _place(evicted.place),
    }


def _place(place: PodPlace) -> JSON:
    return {
        "node": place.node or None,
        "otherNodes": place.others,
        "devices": list(place.devices),
        "preempts": list(place.preempts),
        "reason": place.reason or None,
    }
