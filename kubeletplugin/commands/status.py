# SPDX-License-Identifier: Apache-2.0
"""`dra-kubeletplugin status`: the prepared claims of this node, their steps and devices, and a picture of each GPU.

The records have the prepared claims and their steps. NVML is asked, for a limited time, whether this is still so.
Nothing is changed, whether the plugin runs or not.
"""

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.gpu.fabric import FabricError
from dra_driver.gpu.inventory import Gpu
from dra_driver.gpu.nvml import NvmlError, Placement
from dra_driver.gpu.picture import Cell, GpuPicture, NodePicture, drawn, joined_cells, letters_of
from dra_driver.gpu.threads import CallLimits
from dra_driver.process.boot import boot_id
from dra_driver.process.command import UserError, logging_options, output_option, version_option

from ..claims.model import Record, Step
from ..claims.records import read_records
from ..drivers import gpu_driver
from ..errors import PrepareError
from ..kubelet.instance import sockets_of_all
from ..kubelet.sockets import is_served
from ..node.folders import NodeFolders
from ..node.gpus import Gpus
from ..node.node import Node
from ..options import node_options
from ..reports.devicestatus import device_data
from .domains import DomainsState, domains_document, domains_table, read_domains

log = logging.getLogger(__name__)

MEMORY_SLICES: Final = 8
"""The number of memory slices of a GPU whose profiles are unknown. All but the smallest boards have 8."""

_NO_CLAIM: Final = "no claim"
"""The label of a MIG instance that belongs to no claim."""
_WIDTH: Final = 160  # if the output is not a terminal
_STEP_MARKS: Final = {True: ": done", False: ": not done", None: ""}


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU and its users: `whole` and `slots` have claim UIDs, `others` are MIG instances without a claim."""

    uuid: str
    minor: int
    slices: int
    mig_mode: bool | None
    whole: tuple[str, ...] = ()
    slots: tuple[tuple[str, str, Placement], ...] = ()
    others: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class DriverState:
    """`version` is the driver's version, or why NVML does not answer. `hangs` are calls that have not returned, as
    texts. `done` tells, by claim UID and step number, whether the step is done, as far as the hardware could be read.
    """

    version: str
    answers: bool = False
    gpus: tuple[Gpu, ...] = ()
    done: Mapping[tuple[str, int], bool] = field(default_factory=dict)
    hangs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of the node. `running` are the sockets of running plugins. `unreadable` has the reason for each record
    file that cannot be read. `boot_id` is that of the current boot.
    """

    running: tuple[Path, ...]
    records: list[Record]
    unreadable: Mapping[str, str]
    driver: DriverState
    gpus: tuple[GpuState, ...]
    domains: DomainsState
    boot_id: str

    def steps(self, record: Record) -> Iterator[tuple[Step, bool | None]]:
        """The steps of a claim, and whether each is done. None if the hardware could not be read."""
        for index, step in enumerate(record.plan.steps):
            if not step.SPEC_ONLY:
                yield step, self.driver.done.get((record.plan.claim.uid, index))


def read_node(folders: NodeFolders, boot_id: str) -> NodeState:
    """Read the state of the node. Raises OSError if the driver's folder cannot be read."""
    records, unreadable = read_records(folders.records, gpu_driver())
    driver = _ask_nvml(Node("", boot_id, folders, yields=False), records)
    sockets = sockets_of_all(folders.folder, folders.registry)
    sockets += sockets_of_all(folders.domain_folder, folders.registry, DOMAIN_DRIVER)
    running = tuple(path for path in sockets if is_served(path))
    gpus = tuple(_gpus(records, driver.gpus))
    return NodeState(running, records, unreadable, driver, gpus, read_domains(folders), boot_id)


def _ask_nvml(node: Node, records: Iterable[Record]) -> DriverState:
    try:
        gpus = Gpus(node.session, node.folders.hardware.proc_root)
    except (NvmlError, OSError) as error:
        return DriverState(str(error), hangs=tuple(map(str, node.threads.hangs())))
    node = node.with_gpus(gpus)
    done: dict[tuple[str, int], bool] = {}
    for record in records:
        for index, step in enumerate(record.plan.steps):
            if step.SPEC_ONLY:
                continue
            answers = node.threads.gather({step.key: partial(_is_done, step, node)}, CallLimits().look)
            answer = answers[step.key]
            if isinstance(answer, bool):
                done[record.plan.claim.uid, index] = answer
            else:
                log.debug("step %s cannot be checked: %s", step, answer)
    hangs = tuple(map(str, node.threads.hangs()))
    return DriverState(gpus.inventory.driver_version, True, gpus.inventory.gpus, done, hangs)


def _is_done(step: Step, node: Node) -> bool | str:
    """Whether the step is done, or why that is unknown. Raises NvmlError."""
    try:
        return step.is_done(node)
    except (FabricError, PrepareError) as error:
        return str(error)


def _gpus(records: Iterable[Record], found: Iterable[Gpu]) -> Iterator[GpuState]:
    """Every GPU that exists or has a claim, in the order of minor numbers."""
    live = {gpu.uuid: gpu for gpu in found}
    minors = {uuid: gpu.minor for uuid, gpu in live.items()}
    whole: dict[str, list[str]] = {}
    slots: dict[str, list[tuple[str, str, Placement]]] = {}
    for record in records:
        uid = record.plan.claim.uid
        for kind in (device.kind for device in record.plan.devices):
            for key in kind.keys:
                minors.setdefault(key, kind.minor)
                if kind.part is None:
                    whole.setdefault(key, []).append(uid)
                else:
                    slots.setdefault(key, []).append((uid, *kind.part))
    for uuid, minor in sorted(minors.items(), key=lambda item: (item[1], item[0])):
        gpu = live.get(uuid)
        taken = {placement for _, _, placement in slots.get(uuid, ())}
        instances = () if gpu is None else tuple(gpu_instance.device.placement for gpu_instance in gpu.gpu_instances)
        yield GpuState(
            uuid=uuid,
            minor=minor,
            slices=_slices(gpu, (*taken, *instances)),
            mig_mode=None if gpu is None else gpu.in_mig_mode,
            whole=tuple(whole.get(uuid, ())),
            slots=tuple(slots.get(uuid, ())),
            others=tuple(instance for instance in instances if instance not in taken),
        )


def _slices(gpu: Gpu | None, placements: Iterable[Placement]) -> int:
    profiles = () if gpu is None else gpu.mig_profiles
    known = [placement for profile in profiles for placement in profile.placements]
    ends = [placement.start + placement.size for placement in (*known, *placements)]
    return max(ends if known else [MEMORY_SLICES, *ends])


@click.command()
@node_options
@output_option(("text", "json"), "STATUS_OUTPUT", "How it is printed.")
@logging_options
@version_option
def status(node: NodeFolders, output: str) -> None:
    """Show the prepared claims of this node, their steps and devices, and which claim has which part of each GPU.

    Reads the plugin's records, whether the plugin runs or not, and NVML if the driver is loaded. Changes nothing.
    """
    try:
        state = read_node(node, boot_id())
    except OSError as error:
        raise UserError(f"the state of the node cannot be read: {error}") from None
    if output == "json":
        click.echo(json.dumps(document(state), indent=2))
    else:
        show(state, Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _WIDTH))


# JSON


def document(state: NodeState) -> dict[str, Any]:
    """The state of the node as JSON values."""
    return {
        "running": [str(path) for path in state.running],
        "driver": {
            "answers": state.driver.answers,
            "version" if state.driver.answers else "problem": state.driver.version,
            "hangs": list(state.driver.hangs),
        },
        "claims": [_claim(record, state) for record in state.records],
        "gpus": [_gpu(gpu) for gpu in state.gpus],
        "unreadable": state.unreadable,
        "computeDomains": domains_document(state.domains, state.boot_id),
    }


def _claim(record: Record, state: NodeState) -> dict[str, Any]:
    plan, data = record.plan, device_data(record)
    return {
        "namespace": plan.claim.namespace,
        "name": plan.claim.name,
        "uid": plan.claim.uid,
        "state": record.state.value,
        "ofThisBoot": record.boot_id == state.boot_id,
        "devices": [
            {
                "name": device.name,
                "request": device.request,
                **({"adminAccess": True} if device.admin else {}),
                **({"shareID": device.share_id} if device.share_id is not None else {}),
                **data[device.name, device.share_id or ""],
            }
            for device in plan.devices
        ],
        "steps": [{"step": str(step), "gpu": step.key, "done": done} for step, done in state.steps(record)],
    }


def _gpu(state: GpuState) -> dict[str, Any]:
    return {
        "uuid": state.uuid,
        "minor": state.minor,
        "migMode": state.mig_mode,
        "memorySlices": state.slices,
        "wholeFor": list(state.whole),
        "slicesFor": [
            {"claim": uid, "profile": profile, "start": place.start, "size": place.size}
            for uid, profile, place in state.slots
        ],
        "otherInstances": [{"start": place.start, "size": place.size} for place in state.others],
    }


# Text


def show(state: NodeState, console: Console) -> None:
    """Print the state of the node as text."""
    picture = node_picture(state)
    running = ", ".join(path.name for path in state.running) or "no"
    console.print(f"plugin running: {running}")
    console.print(f"driver: {state.driver.version}")
    for hang in state.driver.hangs:
        console.print(f"hangs: {hang}")
    console.print()
    console.print(_claims_table(state, letters_of(picture)) if state.records else "no claims")
    if state.gpus:
        console.print()
        console.print(_gpu_table(state))
        console.print()
        for line in drawn(picture, console.width, every=True):
            console.print(line)
    for name, problem in state.unreadable.items():
        console.print(f"record {name}: {problem}")
    domains = state.domains
    if domains.claims:
        console.print()
        console.print(f"ComputeDomain of this node: {domains.domain or 'none'}")
        console.print(domains_table(domains, state.boot_id))
    for name, problem in domains.unreadable.items():
        console.print(f"record {name} of ComputeDomains: {problem}")


def _claims_table(state: NodeState, letters: Mapping[str, str]) -> Table:
    """The prepared claims. Claims with MIG devices begin with their letter in the picture."""
    table = Table("", "CLAIM", "STATE", "DEVICES", "STEPS", box=None, pad_edge=False)
    names = _claim_names(state.records)
    for record in state.records:
        plan = record.plan
        told = record.state.value + ("" if record.boot_id == state.boot_id else ", before the last boot")
        devices = "\n".join(f"{device.name} ({device.request})" for device in plan.devices)
        steps = "\n".join(f"{step}{_STEP_MARKS[done]}" for step, done in state.steps(record))
        letter = letters.get(names[plan.claim.uid], "")
        table.add_row(letter, f"{plan.claim}\n{plan.claim.uid}", told, devices, steps)
    return table


def _gpu_table(state: NodeState) -> Table:
    table = Table("GPU", "UUID", "MIG", box=None, pad_edge=False)
    for gpu in state.gpus:
        table.add_row(f"gpu-{gpu.minor}", gpu.uuid, {True: "on", False: "off", None: ""}[gpu.mig_mode])
    return table


def node_picture(state: NodeState) -> NodePicture:
    """The picture of the node's GPUs, as `dra-dryrun gpus` draws it from the API server's objects."""
    names = _claim_names(state.records)
    return NodePicture("", tuple(gpu_picture(gpu, names) for gpu in state.gpus))


def _claim_names(records: Iterable[Record]) -> dict[str, str]:
    """The names of claims by UID. A claim that was created again under its name is followed by its UID."""
    names: dict[str, str] = {}
    for record in records:
        name = str(record.plan.claim)
        names[record.plan.claim.uid] = f"{name} ({record.plan.claim.uid})" if name in names.values() else name
    return names


def gpu_picture(gpu: GpuState, names: Mapping[str, str]) -> GpuPicture:
    """The picture of a GPU. `names` are those of the claims by UID."""
    name = f"gpu-{gpu.minor}"
    if gpu.whole or not (gpu.mig_mode or gpu.slots or gpu.others):
        return GpuPicture(name, "", 0, (Cell(0, 0, (name,), "whole", tuple(names[uid] for uid in gpu.whole)),))
    devices = [(place, Cell(0, 1, (f"{uid} at {place}",), profile, (names[uid],))) for uid, profile, place in gpu.slots]
    devices += [(place, Cell(0, 1, (f"at {place}",), _NO_CLAIM)) for place in gpu.others]
    parts = [[cell for place, cell in devices if number in place.slices] for number in range(gpu.slices)]
    return GpuPicture(name, "", gpu.slices, tuple(joined_cells(parts)))
