# SPDX-License-Identifier: Apache-2.0
"""The state of the driver on a node, read without changing anything, whether the plugin runs or not.

The records have the prepared claims and their steps. NVML is asked, for a limited time, whether this is still so. The
result consists of plain values, which `status` prints.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.gpu.calls import Limits
from dra_driver.gpu.inventory import Gpu
from dra_driver.gpu.nvml import NvmlError, Placement
from dra_driver.resource.meta import empty

from ..hardware.gpus import Gpus
from ..hardware.marks import Marks
from ..hardware.mps import MpsServices
from ..hardware.targets import MigSlot
from ..kubelet.instance import sockets_of_all
from ..kubelet.sockets import is_served
from ..options import Node
from ..records.store import Record, read_records
from ..steps import Tools

log = logging.getLogger(__name__)

MEMORY_SLICES: Final = 8
"""Of a GPU that nothing more is known of: what all but the smallest boards have."""


@dataclass(frozen=True, slots=True)
class StepState:
    """A step of a claim. `done` is None when the hardware could not be asked."""

    text: str
    gpu_uuid: str
    done: bool | None = None


@dataclass(frozen=True, slots=True)
class ClaimState:
    """A claim with a record, its steps, and whether it was prepared since the machine was last started."""

    record: Record
    steps: tuple[StepState, ...]
    this_boot: bool


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU, and who has what of it: `whole` and `slots` by claim UID, `others` are MIG instances without a claim."""

    uuid: str
    minor: int
    slices: int
    mig_mode: bool | None
    whole: tuple[str, ...] = ()
    slots: tuple[tuple[str, str, Placement], ...] = ()
    others: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeState:
    """Everything. `unreadable` are records that cannot be read, by file name, with the reason; `driver` is its version,
    or why it is not known; `hangs` are the calls to it that have not returned, in words.
    """

    running: tuple[Path, ...]
    claims: tuple[ClaimState, ...]
    gpus: tuple[GpuState, ...]
    unreadable: Mapping[str, str] = field(default_factory=empty)
    driver: str = ""
    driver_answers: bool = False
    hangs: tuple[str, ...] = ()


def read_node(node: Node, boot_id: str) -> NodeState:
    """The node as it is now. Raises OSError when the driver's folder cannot be read."""
    records, unreadable = read_records(node.records)
    hardware = _ask_nvml(node, records)
    claims = tuple(
        ClaimState(
            record,
            tuple(
                StepState(str(step), step.gpu_uuid, hardware.done.get((record.plan.claim.uid, index)))
                for index, step in enumerate(record.plan.steps)
            ),
            record.boot_id == boot_id,
        )
        for record in records
    )
    running = tuple(path for path in sockets_of_all(node.folder, node.registry) if is_served(path))
    gpus = tuple(_gpus(records, hardware.gpus))
    return NodeState(running, claims, gpus, unreadable, hardware.driver, hardware.answers, hardware.hangs)


@dataclass(frozen=True, slots=True)
class _Hardware:
    """What NVML says: the GPUs, and by claim UID and step number what is done; or why it says nothing."""

    driver: str
    answers: bool = False
    gpus: tuple[Gpu, ...] = ()
    done: Mapping[tuple[str, int], bool] = field(default_factory=dict)
    hangs: tuple[str, ...] = ()


def _ask_nvml(node: Node, records: Iterable[Record]) -> _Hardware:
    session = node.hardware.session()
    try:
        gpus = Gpus(session)
    except (NvmlError, OSError) as error:
        return _Hardware(str(error), hangs=tuple(map(str, session.calls.hangs())))
    marks = Marks(node.folder)
    tools = Tools(gpus.mig, gpus.compute_modes, node.time_slices, MpsServices(marks.mps), marks)
    done: dict[tuple[str, int], bool] = {}
    for record in records:
        for index, step in enumerate(record.plan.steps):
            answers = session.calls.gather({step.gpu_uuid: partial(step.is_done, tools)}, Limits().look)
            answer = answers[step.gpu_uuid]
            if isinstance(answer, bool):
                done[record.plan.claim.uid, index] = answer
            else:
                log.debug("step %s cannot be seen: %s", step, answer)
    hangs = tuple(map(str, session.calls.hangs()))
    return _Hardware(gpus.inventory.driver_version, True, gpus.inventory.gpus, done, hangs)


def _gpus(records: Iterable[Record], found: Iterable[Gpu]) -> Iterable[GpuState]:
    """Every GPU that is there or has a claim, in the order of their minors."""
    live = {gpu.uuid: gpu for gpu in found}
    minors = {uuid: gpu.minor for uuid, gpu in live.items()}
    whole: dict[str, list[str]] = {}
    slots: dict[str, list[tuple[str, str, Placement]]] = {}
    for record in records:
        for device in record.plan.devices:
            target, uid = device.target, record.plan.claim.uid
            minors.setdefault(target.gpu_uuid, target.minor)
            if isinstance(target, MigSlot):
                slots.setdefault(target.gpu_uuid, []).append((uid, target.profile, target.placement))
            else:
                whole.setdefault(target.gpu_uuid, []).append(uid)
    for uuid, minor in sorted(minors.items(), key=lambda one: (one[1], one[0])):
        gpu = live.get(uuid)
        taken = {placement for _, _, placement in slots.get(uuid, ())}
        instances = () if gpu is None else tuple(one.placement for one in gpu.mig_instances)
        yield GpuState(
            uuid=uuid,
            minor=minor,
            slices=_slices(gpu, (*taken, *instances)),
            mig_mode=None if gpu is None else gpu.in_mig_mode,
            whole=tuple(whole.get(uuid, ())),
            slots=tuple(slots.get(uuid, ())),
            others=tuple(one for one in instances if one not in taken),
        )


def _slices(gpu: Gpu | None, placements: Iterable[Placement]) -> int:
    profiles = () if gpu is None else gpu.mig_profiles
    known = [one for profile in profiles for one in profile.placements]
    ends = [one.start + one.size for one in (*known, *placements)]
    return max(ends if known else [MEMORY_SLICES, *ends])
