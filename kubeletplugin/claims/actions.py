# SPDX-License-Identifier: Apache-2.0
"""Carries out plans and undoes them: record, change the hardware, record the result.

All steps of a claim are recorded together before the first of them changes the node, and their results after the last
one. Everything happens under the locks of the claim's GPUs. So two claims never change the same GPU at the same time,
and never check at the same time whether they may have it. The steps run on the GPUs' own threads (see
`dra_driver.gpu.calls`).

A claim may fail with EXPECTED_ERRORS, which kubelet is told. Any other error is a defect of this driver.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from dra_driver.errors import DriverError
from dra_driver.gpu.calls import Beat, Calls, HungError
from dra_driver.gpu.fabric import FabricError
from dra_driver.gpu.nvml import NvmlError
from dra_driver.kube.api import ApiError

from ..containers.specs import ClaimSpecs
from ..errors import NoDriverError, PrepareError, RecordError
from ..features.fabric.partitions import FabricPartitions
from ..kinds.targets import ClaimRef, MigInstanceIds
from ..node.gpus import Gpus
from ..node.marks import Marks
from ..plans.plan import Plan
from ..plans.planning import Planner
from ..records.files import State
from ..records.format import MARKED_SINCE, Record
from ..records.ledger import Ledger
from ..records.locks import Held, KeyedLocks, wait_on
from ..steps import FabricStep, InstanceStep, MigModeStep, Step, Tools, Undoable, VfioStep, VgpuStep
from .boundary import ClaimBoundary
from .unrestored import Unrestored

log = logging.getLogger(__name__)

T = TypeVar("T")

Check = Callable[[], None]
"""Raises an exception if no caller waits any more."""

StepHook = Callable[[str, Step, float], None]
"""Called for every step that was carried out, with `do` or `undo`, the step, and its duration in seconds."""

KUBELET_SECONDS = 45.0
"""How long kubelet waits for an answer, in seconds."""


class StoppedError(DriverError):
    """A call was stopped between two steps. The text tells why. Finished steps stay recorded."""


ERROR_TYPES: Final[Mapping[type[Exception], str]] = {
    PrepareError: "claim",
    RecordError: "record",
    NoDriverError: "no_driver",
    HungError: "hung",
    FabricError: "fabric_manager",
    StoppedError: "stopped",
    ApiError: "api_server",
    NvmlError: "nvml",
    OSError: "storage",
}
"""The errors with which a claim may fail. Their labels in metrics tell the cause."""

EXPECTED_ERRORS: Final = tuple(ERROR_TYPES)


def within(seconds: float, what: str, check: Check = wait_on) -> Check:
    """Like `check`, and in addition raises StoppedError after `seconds`, because other work on `what` may hang."""
    deadline = time.monotonic() + seconds

    def still_worth_it() -> None:
        check()
        if time.monotonic() > deadline:
            raise StoppedError(f"another call or another process of this plugin is still working on {what}")

    return still_worth_it


def always() -> bool:
    """A caller always waits for the answer."""
    return True


def still_wanted(ref: ClaimRef, wanted: Callable[[], bool], obstacle: Callable[[], str] = str) -> Check:
    """A check that raises StoppedError if `obstacle` has a text, or no caller waits any more."""

    def check() -> None:
        if text := obstacle():
            raise StoppedError(f"claim {ref} {text}")
        if not wanted():
            raise StoppedError(f"kubelet no longer waits for claim {ref}; its next call continues from here")

    return check


@dataclass(frozen=True)
class Actions:
    """Changes of the node for claims, and what all work for claims needs. Callers hold the claim's lock, one of
    `claims`. `boot_id` is that of the current boot. `boundary` contains unexpected errors with one claim. `unrestored`
    has the changes that could not be undone. `tools` are the objects that steps use; its second argument raises an
    exception if no caller waits any more.
    """

    boot_id: str
    planner: Planner
    ledger: Ledger
    specs: ClaimSpecs
    marks: Marks
    claims: KeyedLocks
    gpu_locks: KeyedLocks
    boundary: ClaimBoundary
    calls: Calls
    fabric: FabricPartitions
    unrestored: Unrestored
    tools: Callable[[Gpus, Callable[[], None]], Tools]
    current: Callable[[], Gpus]
    step_seconds: float
    on_step: StepHook

    @contextmanager
    def hold(self, gpu_uuids: Iterable[str], check: Check = wait_on) -> Iterator[Held]:
        """A context with the locks of these GPUs. Raises HungError if a call for one of them hangs, or StoppedError if
        a lock is held by others for too long.
        """
        keys = tuple(gpu_uuids)

        def nothing_hangs() -> None:
            self.calls.check(keys)
            check()

        nothing_hangs()
        with self.gpu_locks.hold(*keys, check=within(KUBELET_SECONDS, ", ".join(keys), nothing_hangs)) as held:
            yield held

    def begin(self, plan: Plan, gpus: Gpus, held: Held) -> Record:
        """Record a new claim. If its steps are only MIG modes that are already set, it is prepared at once. Raises
        PrepareError if another claim has one of its devices.
        """
        ready = all(isinstance(step, MigModeStep) for step in plan.steps) and self.all_done(plan, gpus, held)
        record = Record(State.PREPARED if ready else State.PREPARING, self.boot_id, plan)
        self.ledger.open(record)
        return record

    def finish(self, record: Record, gpus: Gpus, held: Held, check: Check = wait_on) -> Record:
        """Carry out the remaining steps of a claim that this or an earlier call has recorded. See `carry_out`."""
        if record.state is State.PREPARED:
            self.specs.write(record)
            return record
        return self.carry_out(record, gpus, held, check)

    def carry_out(self, record: Record, gpus: Gpus, held: Held, check: Check = wait_on) -> Record:
        """Do the steps, write the CDI spec, and record the result. Steps that are already done change nothing. Raises
        errors of steps, and of `check` between two steps.
        """
        instances: dict[str, MigInstanceIds] = {}
        for steps in _by_gpu(self._open(record.plan)):
            instances |= self._on_gpu(steps, gpus, partial(self._do, record, steps), held, check)
        prepared = replace(record, state=State.PREPARED, instances=instances)
        self.specs.write(prepared)
        return record if prepared == record else self.ledger.save(prepared)

    def all_done(self, plan: Plan, gpus: Gpus, held: Held) -> bool:
        """Whether all steps of the plan are done."""
        return all(self._on_gpu(steps, gpus, partial(_are_done, steps), held) for steps in _by_gpu(self._open(plan)))

    def _open(self, plan: Plan) -> list[Step]:
        """The steps without those that were done before the GPU was taken for a virtual machine, because NVML does not
        see it since.
        """
        taken = {step.gpu_uuid for step in plan.steps if isinstance(step, VfioStep) and step.left_something(self.marks)}
        return [step for step in plan.steps if not _uses_nvml(step) or step.gpu_uuid not in taken]

    def adopt(self, record: Record, gpus: Gpus, held: Held) -> None:
        """Mark those instances of the claim that were created before there were marks, or whose mark was lost."""
        for step in record.plan.steps:
            if isinstance(step, InstanceStep) and not step.left_something(self.marks):
                noted = record.instances.get(step.device)
                if (noted is None and record.version < MARKED_SINCE) or (noted is not None and noted.made):
                    self._on_gpu([step], gpus, partial(_adopt, step, noted), held)

    def undo(self, record: Record, current: Callable[[], Gpus], check: Check = wait_on) -> None:
        """Undo everything of a claim, and then remove its record. `current` is called only if something needs
        a driver.
        """
        self.specs.remove(record.plan.claim.uid)
        if self.leaves_something(record):
            with self.hold(record.plan.gpus(), check) as held:
                self.undo_held(record, current(), held, check)
        else:
            self._close(record)

    def undo_held(self, record: Record, gpus: Gpus, held: Held, check: Check = wait_on) -> None:
        """Like `undo`, for a caller who holds the locks of the claim's GPUs."""
        self.specs.remove(record.plan.claim.uid)
        needed = self.ledger.needed_by_others(record.plan.claim.uid)
        ours = [step for step in record.plan.steps if step not in needed and step.left_something(self.marks)]
        for steps in _by_gpu(ours[::-1]):
            problems = self._on_gpu(steps, gpus, partial(self._undo, record, steps), held, check)
            for step, problem in problems.items():
                self._tell_unrestored(record.plan.claim, step, problem)
        self._close(record)

    def undo_stray(self, step: Undoable, gpus: Gpus, held: Held) -> str | None:
        """Undo a step that no claim has. See Undoable.undo."""
        log.warning("undoing a step that belongs to no claim on this node: %s", step, extra={"gpu": step.gpu_uuid})
        return self._on_gpu([step], gpus, step.undo, held)

    def has_taken_a_gpu(self, record: Record, gpus: Gpus) -> bool:
        """Whether a GPU is not at the driver from which the claim takes it."""
        tools = self.tools(gpus, wait_on)
        return any(isinstance(step, VfioStep) and step.has_changed(tools) for step in record.plan.steps)

    def leaves_something(self, record: Record) -> bool:
        """Whether undoing the claim needs a driver."""
        return any(step.left_something(self.marks) for step in record.plan.steps)

    # On a GPU's thread

    def _on_gpu(
        self, steps: Sequence[Undoable], gpus: Gpus, work: Callable[[Tools], T], held: Held, check: Check = wait_on
    ) -> T:
        """The result of `work` for `steps`, which are of one GPU."""
        gpu_uuid, uses_nvml = steps[0].gpu_uuid, _uses_nvml(steps[0])
        if uses_nvml and not gpus.is_current:
            gpus = self._renewed(gpus)

        def run(beat: Beat) -> T:
            def going_on() -> None:
                beat()
                check()

            with gpus.in_use() if uses_nvml else contextlib.nullcontext():
                return work(self.tools(gpus, going_on))

        return self.calls.run(gpu_uuid, run, self.step_seconds, lambda: held.hand_over(gpu_uuid))

    def _renewed(self, gpus: Gpus) -> Gpus:
        """The GPUs of the next initialization of NVML, after a GPU was taken for a virtual machine or came back. If
        there is none, calls fail with the error of NVML.
        """
        try:
            return self.current()
        except NoDriverError:
            return gpus

    def _do(self, record: Record, steps: Sequence[Step], tools: Tools) -> dict[str, MigInstanceIds]:
        instances: dict[str, MigInstanceIds] = {}
        for step in steps:
            tools.going_on()
            with self._told("do", record, step):
                instances |= step.do(tools) or {}
        return instances

    def _undo(self, record: Record, steps: Sequence[Step], tools: Tools) -> dict[Step, str]:
        """Undo the steps. Returns why something of them stays."""
        problems: dict[Step, str] = {}
        for step in steps:
            tools.going_on()
            with self._told("undo", record, step):
                if problem := step.undo(tools):
                    problems[step] = problem
        return problems

    # Parts

    def _tell_unrestored(self, claim: ClaimRef, step: Step, problem: str) -> None:
        self.unrestored.add(step.gpu_uuid, str(step), problem)
        text = f"{step} of GPU {step.gpu_uuid} could not be undone after the claim: {problem}; the plugin tries again"
        self.boundary.on_event(claim, "NotRestored", text)

    def _close(self, record: Record) -> None:
        self.ledger.close(record.plan.claim.uid)
        log.info("unprepared", extra=fields_of(record))

    @contextmanager
    def _told(self, verb: str, record: Record, step: Step) -> Iterator[None]:
        began = time.monotonic()
        failed = True
        try:
            yield
            failed = False
        finally:
            seconds = time.monotonic() - began
            extra = {**fields_of(record), "gpu": step.gpu_uuid, "seconds": round(seconds, 4), "failed": failed}
            log.info("step: %s %s", verb, step, extra=extra)
            self.on_step(verb, step, seconds)


def _are_done(steps: Sequence[Step], tools: Tools) -> bool:
    return all(step.is_done(tools) for step in steps)


def _adopt(step: InstanceStep, noted: MigInstanceIds | None, tools: Tools) -> None:
    there = tools.mig.gpu_instance(step.slot) is not None if noted is None else tools.mig.find(step.slot) == noted
    if there:
        tools.marks.instances.set(step.slot.place)


def _by_gpu(steps: Iterable[Step]) -> list[list[Step]]:
    """Groups of consecutive steps of the same GPU that all use NVML, or all do not."""
    groups = itertools.groupby(steps, key=lambda step: (step.gpu_uuid, _uses_nvml(step)))
    return [list(group) for _, group in groups]


def _uses_nvml(step: Undoable) -> bool:
    return not isinstance(step, FabricStep | VfioStep | VgpuStep)


def fields_of(record: Record) -> dict[str, object]:
    """The fields of every log line about a claim."""
    claim = record.plan.claim
    return {"claim": str(claim), "claim_uid": claim.uid, "devices": ",".join(one.name for one in record.plan.devices)}
