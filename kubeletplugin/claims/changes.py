# SPDX-License-Identifier: Apache-2.0
"""Carries out the steps of plans, and undoes them, on the threads of what they change.

Callers hold the locks of the plan's keys. So two claims never change the same GPU at the same time, and never check at
the same time whether they may have it.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeVar

from ..node.node import Node
from .boundary import ClaimBoundary
from .call import KUBELET_SECONDS, OWN_WORK, Call
from .locks import Held, KeyedLocks
from .model import JSON, ClaimRef, Plan, Record, Step, Undoable
from .records import Records
from .unrestored import Unrestored

log = logging.getLogger(__name__)

T = TypeVar("T")

U = TypeVar("U", bound=Undoable)


class WaitsError(Exception):
    """A step is done, and what it waits for is not there yet."""

    def __init__(self, step: Step) -> None:
        super().__init__(str(step))
        self.step = step


class Changes:
    """The changes of the node for claims. `unrestored` has the changes that could not be undone. `locks` are the locks
    of what is changed.
    """

    def __init__(
        self, node: Node, records: Records, locks: KeyedLocks, unrestored: Unrestored, boundary: ClaimBoundary
    ) -> None:
        self._node = node
        self._records = records
        self._locks = locks
        self._unrestored = unrestored
        self._boundary = boundary

    def hold(self, keys: Iterable[str], call: Call) -> AbstractContextManager[Held]:
        """A context with the locks of these keys. Raises HungError if a call for one of them hangs, or StoppedError if
        a lock is held by others for too long.
        """
        names = sorted(keys)

        def nothing_hangs() -> None:
            self._node.threads.check(names)

        nothing_hangs()
        waiting = call.also(nothing_hangs).within(KUBELET_SECONDS, ", ".join(names))
        return self._locks.hold(*names, call=waiting)

    def do(self, plan: Plan, held: Held, call: Call, *, was_prepared: bool = False) -> dict[str, JSON]:
        """Do the steps. Returns what they found, by device name. Steps that are already done change nothing. Raises
        WaitsError after a step that waits, unless the claim `was_prepared` before, errors of steps, and those of `call`
        between two steps.
        """
        found: dict[str, JSON] = {}
        for steps in _visits(plan.steps):
            found |= self._visit(steps, partial(self._do, plan, steps), held, call)
            for step in steps:
                if not was_prepared and step.waits_for(self._node):
                    raise WaitsError(step)
        return found

    def are_done(self, steps: Iterable[Step], held: Held) -> bool:
        """Whether all these steps of a claim are done."""
        return all(self._visit(visit, partial(_are_done, visit), held, OWN_WORK) for visit in _visits(steps))

    def undo(self, record: Record, held: Held, call: Call) -> None:
        """Undo everything of a claim that no other claim needs."""
        plan = record.plan
        needed = self._records.marks_of_others(plan.claim.uid)
        own = [step for step in plan.steps if step.mark not in needed and step.is_marked(self._node)]
        for steps in _visits(own[::-1]):
            problems = self._visit(steps, partial(self._undo, plan, steps), held, call)
            ending = self._records.marks_of_others(plan.claim.uid, also_ending=True) if problems else frozenset()
            for step, problem in problems.items():
                if step.mark not in ending:  # the other claim still uses it, and undoes it when it ends
                    self._tell_unrestored(plan.claim, step, problem)

    def undo_stray(self, stray: Undoable, held: Held) -> str:
        """Undo a change that no claim has. See Undoable.undo."""
        log.warning("undoing a step that belongs to no claim on this node: %s", stray, extra={"key": stray.key})
        return self._visit([stray], stray.undo, held, OWN_WORK)

    def leaves_something(self, plan: Plan) -> bool:
        """Whether undoing the claim changes the node."""
        return any(step.is_marked(self._node) for step in plan.steps)

    def are_disruptive(self, plan: Plan) -> bool:
        """Whether the state of the plan's devices disturbs other claims."""
        return any(step.is_disruptive(self._node) for step in plan.steps)

    # As work for a GPU

    def _visit(self, steps: Sequence[Undoable], work: Callable[[Node, Call], T], held: Held, call: Call) -> T:
        """The result of `work` for `steps`, which have the same key."""
        return self._node.run(steps[0].key, work, held, call, nvml=steps[0].NVML)

    def _do(self, plan: Plan, steps: Sequence[Step], node: Node, call: Call) -> dict[str, JSON]:
        found: dict[str, JSON] = {}
        for step in steps:
            call.check()
            with self._told("do", plan, step):
                found.update(step.do(node, call))
        return found

    def _undo(self, plan: Plan, steps: Sequence[Step], node: Node, call: Call) -> Mapping[Step, str]:
        """Undo the steps. Returns why something of them stays."""
        problems: dict[Step, str] = {}
        for step in steps:
            call.check()
            with self._told("undo", plan, step):
                if problem := step.undo(node, call):
                    problems[step] = problem
        return problems

    # Parts

    def _tell_unrestored(self, claim: ClaimRef, step: Step, problem: str) -> None:
        self._unrestored.add(step.key, str(step), problem)
        text = f"{step} of {step.target} could not be undone after the claim: {problem}; the plugin tries again"
        self._boundary.on_event(claim, "NotRestored", text)

    @contextmanager
    def _told(self, verb: str, plan: Plan, step: Step) -> Iterator[None]:
        began = time.monotonic()
        failed = True
        try:
            yield
            failed = False
        finally:
            seconds = time.monotonic() - began
            extra = {**fields_of(plan), "key": step.key, "seconds": round(seconds, 4), "failed": failed}
            log.info("step: %s %s", verb, step, extra=extra)
            self._boundary.on_step(verb, step, seconds)


def _are_done(steps: Sequence[Step], node: Node, _: Call) -> bool:
    return all(step.is_done(node) for step in steps)


def _visits(steps: Iterable[U]) -> list[list[U]]:
    """Groups of consecutive steps of one key that all use NVML, or all do not, each for one visit of the thread."""
    changing = (step for step in steps if not step.SPEC_ONLY)
    groups = itertools.groupby(changing, key=lambda step: (step.key, step.NVML))
    return [list(group) for _, group in groups]


def fields_of(plan: Plan) -> dict[str, object]:
    """The fields of every log line about a claim."""
    claim = plan.claim
    return {"claim": str(claim), "claim_uid": claim.uid, "devices": ",".join(device.name for device in plan.devices)}
