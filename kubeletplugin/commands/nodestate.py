# SPDX-License-Identifier: Apache-2.0
"""What the driver has on a node, read without changing anything, whether the plugin runs or not.

The records say what was prepared and by which steps; NVML is asked, for a few seconds at most, whether that is still
so. Everything here is a value, which `status` prints.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from dra_driver.gpu.inventory import Gpu
from dra_driver.gpu.nvml import NvmlError, Placement
from dra_driver.resource.meta import empty

from ..hardware.gpus import Gpus
from ..hardware.marks import Marks
from ..hardware.targets import MigSlot
from ..kubelet.instance import sockets_of_all
from ..kubelet.sockets import is_served
from ..options import Node
from ..records.store import Record, read_records
from ..steps import Tools

log = logging.getLogger(__name__)

T = TypeVar("T")

MEMORY_SLICES: Final = 8
"""Of a GPU that nothing more is known of: what all but the smallest boards have."""

_NVML_SECONDS: Final = 10.0


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
    or why it is not known.
    """

    running: tuple[Path, ...]
    claims: tuple[ClaimState, ...]
    gpus: tuple[GpuState, ...]
    unreadable: Mapping[str, str] = field(default_factory=empty)
    driver: str = ""
    driver_answers: bool = False


def read_node(node: Node, boot_id: str) -> NodeState:
    """The node as it is now. Raises OSError when the driver's folder cannot be read."""
    records, unreadable = read_records(node.records)
    gpus, driver = _ask_nvml(node, lambda gpus: _hardware(gpus, node.folder, records))
    found, done = gpus if gpus is not None else ((), {})
    claims = tuple(
        ClaimState(
            record,
            tuple(
                StepState(str(step), step.gpu_uuid, done.get((record.plan.claim.uid, index)))
                for index, step in enumerate(record.plan.steps)
            ),
            record.boot_id == boot_id,
        )
        for record in records
    )
    running = tuple(path for path in sockets_of_all(node.folder, node.registry) if is_served(path))
    return NodeState(running, claims, tuple(_gpus(records, found)), unreadable, driver, gpus is not None)


_Hardware = tuple[tuple[Gpu, ...], dict[tuple[str, int], bool]]
"""The GPUs, and by claim UID and step number what is done."""


def _hardware(gpus: Gpus, folder: Path, records: Iterable[Record]) -> _Hardware:
    tools = Tools(gpus.mig, Marks(folder))
    done: dict[tuple[str, int], bool] = {}
    for record in records:
        for index, step in enumerate(record.plan.steps):
            try:
                done[record.plan.claim.uid, index] = step.is_done(tools)
            except NvmlError as error:
                log.debug("step %s cannot be seen: %s", step, error)
    return gpus.inventory.gpus, done


def _ask_nvml(node: Node, ask: Callable[[Gpus], T]) -> tuple[T | None, str]:
    """What `ask` finds, and the driver's version; None and the reason when NVML fails or takes too long."""
    answers: list[tuple[T | None, str]] = []

    def run() -> None:
        try:
            gpus = Gpus(node.session())
            answers.append((ask(gpus), gpus.inventory.driver_version))
        except (NvmlError, OSError) as error:
            answers.append((None, str(error)))

    thread = threading.Thread(target=run, name="nvml", daemon=True)  # a driver in trouble may never answer
    thread.start()
    thread.join(_NVML_SECONDS)
    return answers[0] if answers else (None, f"NVML does not answer within {_NVML_SECONDS:g} s")


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
