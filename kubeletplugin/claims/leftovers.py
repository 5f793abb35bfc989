# SPDX-License-Identifier: Apache-2.0
"""Removes remains of claims that kubelet will never unprepare.

kubelet forgets a claim when its own state is lost, and a claim can be deleted by force. So every claim with a record is
regularly looked up in the API server by its UID. If the claim has been gone for a while, its devices are removed. If
the API server does not answer, no claim counts as gone. Then the node is checked for marked MIG instances, switched MIG
modes and CDI specs without a record.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dra_driver.gpu.mig import MigDevice
from dra_driver.process.containment import contained

from ..errors import PrepareError
from ..kinds.targets import ClaimRef, ContainerTarget, MigSlot, VfioGpu, Vgpu
from ..node.gpus import Gpus
from ..plans.plan import Plan
from ..records.locks import Held
from ..steps import (
    FabricStep,
    InstanceStep,
    MigModeStep,
    MpsStep,
    StrayMpsStep,
    Undoable,
    VfioStep,
    VgpuStep,
    changed_settings,
)
from .actions import EXPECTED_ERRORS, Actions
from .boundary import ClaimBoundary
from .recovery import not_long

log = logging.getLogger(__name__)


GONE: Final = "the claim is gone from the API server: what it had on this node is removed"


class AbsentClaims:
    """The claims that the API server no longer has, and since when. `is_gone` asks it for one claim, and returns None
    if it does not answer. A claim must be gone for `grace` seconds.
    """

    def __init__(self, is_gone: Callable[[ClaimRef], bool | None], grace: float, boundary: ClaimBoundary) -> None:
        self._is_gone = is_gone
        self._grace = grace
        self._boundary = boundary
        self._missed: dict[str, float] = {}

    @property
    def suspicious(self) -> bool:
        """Whether some claims are gone, but not yet for long enough."""
        return bool(self._missed)

    def gone(self, claims: Iterable[ClaimRef]) -> list[ClaimRef]:
        """Those of all recorded `claims` that have been gone for long enough."""
        now = time.monotonic()
        recorded = list(claims)
        for uid in self._missed.keys() - {claim.uid for claim in recorded}:
            del self._missed[uid]
        gone: list[ClaimRef] = []
        for claim in recorded:
            missing: bool | None = False
            with self._boundary.around("sweep claim", claim):
                missing = self._is_gone(claim)
            if missing is None:
                break  # one unanswered request is enough
            if not missing:
                self._missed.pop(claim.uid, None)
            elif now - self._missed.setdefault(claim.uid, now) >= self._grace:
                gone.append(claim)
        return gone

    def forget(self, claim: ClaimRef) -> None:
        """Nothing is left of a claim."""
        self._missed.pop(claim.uid, None)


class Leftovers:
    """Finds and removes leftovers. A claim must be gone for `grace` seconds. `unprepare` undoes a claim."""

    def __init__(self, actions: Actions, unprepare: Callable[[ClaimRef], None], grace: float) -> None:
        self._actions = actions
        self._unprepare = unprepare
        self._boundary = actions.boundary
        self.absent = AbsentClaims(actions.planner.is_gone, grace, actions.boundary)

    def sweep(self, gpus: Gpus) -> None:
        """Check everything once, and remove leftovers."""
        for claim in self.absent.gone(record.plan.claim for record in self._actions.ledger.all()):
            with self._boundary.around("sweep claim", claim):
                self._remove(claim)
        for claim in self._actions.ledger.settled_damaged():
            with self._boundary.around("sweep claim", claim):
                if claim.name and self._actions.planner.is_gone(claim):
                    self._actions.ledger.settle_damaged(claim.uid, gone=True)
        self.sweep_node(gpus)

    def retry(self, gpus: Gpus) -> None:
        """Try again to undo what is left on GPUs, where that is due."""
        for gpu_uuid in self._actions.unrestored.due():
            self._sweep_contained(gpu_uuid, gpus)

    def restore_for(self, plan: Plan, gpus: Gpus, held: Held) -> None:
        """Restore the settings that earlier claims have left on GPUs of this plan, unless the plan sets them itself.
        The caller holds the locks of the GPUs. Raises PrepareError if a setting cannot be restored, and errors of NVML.
        """
        if self._actions.ledger.unreadable():  # one of these claims may need the setting
            return
        needed = self._actions.ledger.needed_by_others(plan.claim.uid)
        own = {(type(step), step.gpu_uuid) for step in plan.steps}
        devices = [one for one in plan.devices if isinstance(one.target, ContainerTarget) and not one.admin]
        expecting = {one.target.gpu_uuid for one in devices}
        for step in list(changed_settings(self._actions.marks)):
            if step.gpu_uuid not in expecting or step in needed or (type(step), step.gpu_uuid) in own:
                continue
            problem = self._actions.undo_stray(step, gpus, held)
            if problem:
                self._actions.unrestored.add(step.gpu_uuid, str(step), problem)
                raise PrepareError(
                    f"GPU {step.gpu_uuid} still has the {step} of an earlier claim, which cannot be restored:"
                    f" {problem}; kubelet tries again"
                )
            self._actions.unrestored.remove(step.gpu_uuid, str(step))

    def sweep_node(self, gpus: Gpus) -> None:
        """Remove what has no record, without asking the API server."""
        for gpu_uuid in {step.gpu_uuid for step in self._marked(gpus)}:
            self._sweep_contained(gpu_uuid, gpus)
        known = self._known()
        for uid in self._actions.specs.claims():
            if uid not in known:
                with self._boundary.around("sweep claim", ClaimRef("", "", uid)):
                    self._sweep_spec(uid)

    def _known(self) -> set[str]:
        """The UIDs of all claims. Records are read first: one that is damaged meanwhile is readable or unreadable."""
        recorded = {record.plan.claim.uid for record in self._actions.ledger.all()}
        return recorded | self._actions.ledger.unreadable()

    def _remove(self, claim: ClaimRef) -> None:
        log.warning("%s", GONE, extra={"claim": str(claim), "claim_uid": claim.uid})
        try:
            self._unprepare(claim)
        except EXPECTED_ERRORS as error:
            log.warning("leftovers of a claim cannot be removed yet: %s", error, extra={"claim_uid": claim.uid})
        else:
            self.absent.forget(claim)
            self._boundary.on_event(claim, "LeftoverRemoved", GONE)

    def _marked(self, gpus: Gpus) -> Iterator[Undoable]:
        """A step for each mark on the node, in the order in which steps can be undone. GPUs of virtual machines come
        first, because the other changes need a GPU on NVIDIA's driver. NVSwitch partitions come last.
        """
        marks = self._actions.marks
        yield from (VfioStep(VfioGpu(one.gpu_uuid, one.address, -1)) for one in marks.vfio.all())
        yield from (VgpuStep(Vgpu(one, f"of type {one.type_id}")) for one in marks.vfio.vgpus.all())
        yield from map(StrayMpsStep, marks.mps.all())
        yield from changed_settings(marks)
        yield from (InstanceStep("", _slot(place, gpus)) for place in marks.instances.all())
        yield from (MigModeStep(one.gpu_uuid, not one.original) for one in marks.modes.all())
        yield from (FabricStep(one.partition, one.modules, one.gpus) for one in marks.fabric.all())

    def _sweep_contained(self, gpu_uuid: str, gpus: Gpus) -> None:
        unrestored = self._actions.unrestored
        with contained(
            "sweep GPU", gpu_uuid, self._boundary.count, lambda _: unrestored.failed(gpu_uuid), gpu=gpu_uuid
        ):
            self._sweep_gpu(gpu_uuid, gpus)

    def _sweep_gpu(self, gpu_uuid: str, gpus: Gpus) -> None:
        """Undo everything on a GPU that no record needs. What fails is tried again long before the next sweep."""
        problems: dict[str, str] = {}
        try:
            with self._actions.hold([gpu_uuid], not_long()) as held:
                strays = self._strays(gpu_uuid, gpus)
                if self._actions.ledger.unreadable():  # some of it may belong to these claims
                    self._actions.unrestored.failed(gpu_uuid)
                    return
                for step in strays:
                    if problem := self._actions.undo_stray(step, gpus, held):
                        problems[str(step)] = problem
        except EXPECTED_ERRORS as error:
            log.warning("leftovers cannot be removed yet: %s", error, extra={"gpu": gpu_uuid})
            problems = {str(step): str(error) for step in self._strays(gpu_uuid, gpus)} | problems
        self._actions.unrestored.tried(gpu_uuid, problems)

    def _strays(self, gpu_uuid: str, gpus: Gpus) -> list[Undoable]:
        """The marked changes of a GPU that no record needs. Marks are read first, because a record is older than its
        marks. Callers ask for unreadable records afterwards: a record that is damaged meanwhile is among them.
        """
        marked = [step for step in self._marked(gpus) if step.gpu_uuid == gpu_uuid]
        needed = {_mark(step) for record in self._actions.ledger.all() for step in record.plan.steps}
        return [step for step in marked if _mark(step) not in needed]

    def _sweep_spec(self, uid: str) -> None:
        with self._actions.claims.try_hold(uid) as free:
            if free and uid not in self._known():
                log.warning("removing the CDI spec of an unknown claim", extra={"claim_uid": uid})
                self._actions.specs.remove(uid)


def _mark(step: Undoable) -> object:
    """What the steps for one mark have in common. A step that was made from a mark lacks other values."""
    match step:
        case VfioStep(target):
            return target.address
        case VgpuStep(target):
            return target.place
        case MpsStep() | StrayMpsStep():
            return step.name
        case InstanceStep(slot=slot):
            return slot.place
        case FabricStep(partition):
            return partition
    return step


def _slot(place: MigDevice, gpus: Gpus) -> MigSlot:
    """The slot at a marked place. If the profile is unknown, a slot at which no instance can be found."""
    for gpu in gpus.inventory.gpus:
        for profile in gpu.mig_profiles:
            info = profile.info
            if gpu.uuid == place.gpu_uuid and info.id == place.profile_id:
                return MigSlot(gpu.uuid, gpu.minor, profile.name, info.id, info.slice_count, place.placement)
    return MigSlot(place.gpu_uuid, -1, f"profile {place.profile_id}", place.profile_id, 0, place.placement)
