# SPDX-License-Identifier: Apache-2.0
"""The answer of one release for one pod, claim, template or class, and how two answers differ."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..changes import Suggestion
from ..report import counted, listed
from ..verdict import Placed, Verdict
from .difference import Aspect, Difference, Effect

_RELEASE: Final = re.compile(r"^known defect of kube-scheduler \S+ ?")
_NO_DEFECT: Final = "no known defect concerns it"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether it fits, with which `devices` on which `node`, or for which `reason` it does not.

    `fitting` are all nodes that fit, if they were tried. `defect` is a known defect that decides, and `evicted` is the
    taint for which a running pod is evicted. `unknown` are facts on which the answer depends.
    """

    fits: bool
    node: str = ""
    devices: tuple[str, ...] = ()
    reason: str = ""
    fitting: tuple[str, ...] = ()
    defect: str = ""
    evicted: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The answer in words."""
        if not self.fits:
            return f"fits nowhere: {self.reason}" if self.reason else "fits nowhere"
        with_devices = f" with {listed(self.devices, 8)}" if self.devices else ""
        others = f", and on {counted(len(self.fitting) - 1, 'other node')}" if len(self.fitting) > 1 else ""
        return f"fits on {self.node}{with_devices}{others}"

    @property
    def answer(self) -> tuple[object, ...]:
        """The part of the answer that decides whether two answers are the same. Reasons are told in other words."""
        return self.fits, self.node, self.devices, self.fitting


@dataclass(frozen=True, slots=True)
class Judged:
    """Both answers for equal objects: `members` are their names, of which the first was judged."""

    kind: str
    namespace: str
    members: tuple[str, ...]
    now: Judgement
    then: Judgement

    @property
    def subject(self) -> str:
        """`Pod train-0 and 3 equal ones`."""
        more = len(self.members) - 1
        return f"{self.kind} {self.members[0]}" + (f" and {more} equal {'ones' if more > 1 else 'one'}" if more else "")

    @property
    def unknown(self) -> tuple[str, ...]:
        """The facts on which one of the answers depends, each once."""
        return tuple(dict.fromkeys((*self.now.unknown, *self.then.unknown)))

    @property
    def effect(self) -> Effect | None:
        """What the upgrade does to them. None if both answers are the same."""
        effects = [difference.effect for difference in self.differences]
        return next((effect for effect in Effect if effect in effects), None)

    @property
    def differences(self) -> Sequence[Difference]:
        """The differences of the answers."""
        return tuple(self._differences())

    def _differences(self) -> Iterator[Difference]:
        now, then = self.now, self.then
        if bool(now.evicted) != bool(then.evicted):
            stays = "keeps its devices"
            texts = (_evicted(now) or stays, _evicted(then) or stays)
            yield self._difference(Aspect.VERDICT, Effect.BREAKS if then.evicted else Effect.HELPS, *texts)
        if now.answer != then.answer:
            effect = Effect.CHANGES
            if now.fits != then.fits:
                effect = Effect.HELPS if then.fits else Effect.BREAKS
            yield self._difference(Aspect.VERDICT, effect, *_texts(now, then))
        if now.defect != then.defect:
            effect = Effect.CHANGES if then.defect else Effect.HELPS
            texts = (now.defect or _NO_DEFECT, then.defect or _NO_DEFECT)
            yield self._difference(Aspect.DEFECT, effect, *texts)

    def _difference(self, aspect: Aspect, effect: Effect, now: str, then: str) -> Difference:
        return Difference(
            aspect, effect, self.subject, now, then, self.namespace, self.members, count=len(self.members)
        )


def _evicted(judgement: Judgement) -> str:
    return f"is evicted: {judgement.evicted}" if judgement.evicted else ""


def _texts(now: Judgement, then: Judgement) -> tuple[str, str]:
    """Both answers in words. If only nodes differ, the added and the removed nodes are named."""
    before, after = set(now.fitting), set(then.fitting)
    if not before or not after or before == after:
        return now.text, then.text
    lost = [node for node in now.fitting if node not in after]
    gained = [node for node in then.fitting if node not in before]
    parts = [f"not on {listed(lost)}"] if lost else []
    parts += [f"also on {listed(gained)}"] if gained else []
    return now.text, f"{then.text}: {', '.join(parts)}"


def defect_text(found: Suggestion | None) -> str:
    """The text about a defect without the release that has it. Empty without a defect."""
    return _RELEASE.sub("", found.text) if found is not None else ""


def device_texts(placed: Iterable[Placed]) -> tuple[str, ...]:
    """The devices, each with what a share of it consumes: `gpu-0 (memory 20Gi)`."""
    return tuple(f"{each.name}{_consumed(each)}" for each in placed)


def _consumed(placed: Placed) -> str:
    amounts = ", ".join(
        f"{name.rpartition('/')[2]} {amount}" for name, amount in sorted(placed.consumed.items()) if amount.nanos
    )
    return f" ({amounts})" if amounts else ""


def judgement_of(verdict: Verdict, unknown: Iterable[str] = ()) -> Judgement:
    """The judgement that a verdict tells. `unknown` are further facts on which it depends."""
    return Judgement(
        verdict.fits,
        verdict.node or "",
        device_texts(verdict.placed),
        _reason(verdict),
        verdict.fitting,
        defect_text(verdict.defect),
        unknown=(*verdict.unknown, *unknown),
    )


def _reason(verdict: Verdict) -> str:
    """Why a demand does not fit, in one line."""
    if verdict.rejects or verdict.problems or verdict.error or verdict.summary:
        return "; ".join(filter(None, (*verdict.rejects, *verdict.problems, verdict.error, verdict.summary)))
    for refused in verdict.refused[:1] if verdict.node is None else ():
        explanation = refused.explanation
        if explanation.error:
            return explanation.error
        lacking = [
            f"request {request.text}" + "".join(f"; {removal.devices} {removal.text}" for removal in request.removals)
            for request in explanation.requests
            if request.missing
        ]
        return "; ".join((*explanation.pools, *lacking)) or "the devices cannot be given together"
    return ""
