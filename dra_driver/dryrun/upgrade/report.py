# SPDX-License-Identifier: Apache-2.0
"""The comparison for people and for programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rich.text import Text

from ...kube.releases import RELEASED, minor_release
from ..report import API_VERSION, Json, Line, PlainTable, counted
from ..status import documents_of
from .comparison import Comparison, NamespaceCount
from .difference import Aspect, Difference, Effect
from .releases import RULE_APPLIES, RULE_DOES_NOT_APPLY
from .sides import Side

KIND: Final = "UpgradeReport"

_SHOWN: Final = 10
"""The number of differences of one aspect that are printed, unless the output is wide."""
_TITLES: Final[Mapping[Aspect, str]] = {
    Aspect.VERDICT: "verdicts that change:",
    Aspect.POOL: "pools and slices:",
    Aspect.EXPRESSION: "expressions:",
    Aspect.FIELD: "fields:",
    Aspect.VERSION: "API versions:",
    Aspect.GATE: "feature gates:",
    Aspect.DEFECT: "rules and known defects:",
}
_STYLES: Final[Mapping[Effect, str]] = {
    Effect.BREAKS: "bold red",
    Effect.CHANGES: "yellow",
    Effect.HELPS: "green",
}
_INDENT: Final = "  "


@dataclass(frozen=True)
class UpgradeReport:
    """The comparison as a subcommand's report."""

    comparison: Comparison

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """The lines for a terminal. `wide` has all differences, and all objects of each."""
        comparison = self.comparison
        source, now, then = comparison.source, comparison.sides.now, comparison.sides.then
        yield Text(f"from {_named(now)} to {_named(then)}, {source.where}", style="bold")
        for note in (*source.warnings, *source.notes, *comparison.notes):
            yield Text(note, style="yellow")
        for unknown in comparison.unknown if wide else comparison.unknown[:_SHOWN]:
            yield Text.assemble(("not known", "bold yellow"), f"  {unknown}")
        if len(comparison.unknown) > _SHOWN and not wide:
            yield Text(f"{_INDENT}and {len(comparison.unknown) - _SHOWN} more (all of them with -o wide)")
        counts = comparison.namespaces
        if counts:
            yield _table(counts)
        if comparison.unaffected:
            others = counted(comparison.unaffected, "other pod")
            yield Text(f"{others} without devices: no release decides differently about them")
        for aspect, group in groupby(comparison.differences, lambda difference: difference.aspect):
            found = list(group)
            yield Text(_TITLES[aspect], style="bold")
            if aspect is Aspect.GATE:
                yield _gates(found)
                continue
            for difference in found if wide else found[:_SHOWN]:
                yield from _difference(difference, wide=wide)
            if len(found) > _SHOWN and not wide:
                yield Text(f"{_INDENT}and {len(found) - _SHOWN} more (all of them with -o wide)")
        yield _summary(comparison)

    def document(self) -> Json:
        """The comparison as plain dicts and lists."""
        comparison = self.comparison
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "source": comparison.source.where,
            "now": _side(comparison.sides.now),
            "then": _side(comparison.sides.then),
            "breaks": comparison.breaks,
            "notes": documents_of(comparison.unknown),
            "errors": documents_of(comparison.errors),
            "namespaces": [_count(count) for count in comparison.namespaces],
            "unaffectedPods": comparison.unaffected,
            "differences": [_encoded(difference) for difference in comparison.differences],
        }


def _named(side: Side) -> str:
    return side.name if minor_release(side.release) in RELEASED else f"{side.name} (a preview)"


def _table(counts: Sequence[NamespaceCount]) -> PlainTable:
    table = PlainTable("NAMESPACE", "OBJECTS", "FIT NOW", "FIT THEN", "BREAK", "CHANGE", "HELP", "NOT KNOWN")
    for count in counts:
        numbers = (count.objects, count.fit_now, count.fit_then, *(count.effects[effect] for effect in Effect))
        table.add_row(count.namespace, *map(str, numbers), str(count.unknown))
    return table


def _gates(differences: Sequence[Difference]) -> PlainTable:
    table = PlainTable("GATE", "NOW", "THEN")
    for difference in differences:
        style = _STYLES[difference.effect] if difference.effect is Effect.BREAKS else ""
        table.add_row(difference.subject, difference.now, Text(difference.then, style=style))
    return table


def _difference(difference: Difference, *, wide: bool) -> Iterator[Text]:
    if difference.now in (RULE_APPLIES, RULE_DOES_NOT_APPLY):
        ends = difference.now == RULE_APPLIES
        word = ("ends", _STYLES[Effect.HELPS]) if ends else ("begins", _STYLES[Effect.CHANGES])
        yield Text.assemble(_INDENT, word, f"  {difference.subject}")
        return
    namespace = f"{difference.namespace}: " if difference.namespace else ""
    times = f" ({counted(difference.count, 'object')})" if difference.count > 1 and not difference.members else ""
    yield Text.assemble(
        _INDENT, (difference.effect, _STYLES[difference.effect]), f"  {namespace}{difference.subject}{times}"
    )
    yield Text(f"{_INDENT * 2}now:  {difference.now}")
    yield Text(f"{_INDENT * 2}then: {difference.then}")
    if wide and len(difference.members) > 1:
        yield Text(f"{_INDENT * 2}{', '.join(difference.members)}")


def _summary(comparison: Comparison) -> Text:
    counts = dict.fromkeys(Effect, 0)
    for difference in comparison.differences:
        counts[difference.effect] += 1
    if not comparison.differences:
        return Text("nothing differs", style="bold green")
    breaks = counts[Effect.BREAKS]
    text = f"{breaks} break, {counts[Effect.CHANGES]} change, {counts[Effect.HELPS]} help"
    return Text(text, style="bold red" if breaks else "bold green")


def _side(side: Side) -> Json:
    return {"kubernetesVersion": side.release, "featureGates": dict(sorted(side.gates.items()))}


def _count(count: NamespaceCount) -> Json:
    return {
        "namespace": count.namespace,
        "objects": count.objects,
        "fitNow": count.fit_now,
        "fitThen": count.fit_then,
        **{effect.value: count.effects[effect] for effect in Effect},
        "notKnown": count.unknown,
    }


def _encoded(difference: Difference) -> Json:
    return {
        "aspect": difference.aspect.value,
        "effect": difference.effect.value,
        "namespace": difference.namespace or None,
        "subject": difference.subject,
        "now": difference.now,
        "then": difference.then,
        "count": difference.count,
        "members": list(difference.members),
    }
