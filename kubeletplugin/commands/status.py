# SPDX-License-Identifier: Apache-2.0
"""`dra-kubeletplugin status`: the prepared claims of this node, their steps and devices, and a picture of each GPU."""

import json
import string
import sys
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from dra_driver.boot import boot_id
from dra_driver.command import UserError, logging_options, output_option, version_option

from ..options import Node, node_options
from ..reports.devicestatus import device_data
from .nodestate import ClaimState, GpuState, NodeState, StepState, read_node

_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
_FREE, _OTHER = "·", "#"
_WIDTH: Final = 160  # of what is no terminal
_STEP_MARKS: Final = {True: "done", False: "not done", None: ""}


@click.command()
@node_options
@output_option(("text", "json"), "STATUS_OUTPUT", "How it is printed.")
@logging_options
@version_option
def status(node: Node, output: str) -> None:
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
    """Everything, for programs."""
    return {
        "running": [str(path) for path in state.running],
        "driver": {
            "answers": state.driver_answers,
            "version" if state.driver_answers else "problem": state.driver,
            "hangs": list(state.hangs),
        },
        "claims": [_claim(claim) for claim in state.claims],
        "gpus": [_gpu(gpu) for gpu in state.gpus],
        "unreadable": dict(state.unreadable),
    }


def _claim(state: ClaimState) -> dict[str, Any]:
    plan, data = state.record.plan, device_data(state.record)
    return {
        "namespace": plan.claim.namespace,
        "name": plan.claim.name,
        "uid": plan.claim.uid,
        "state": state.record.state.value,
        "ofThisBoot": state.this_boot,
        "devices": [
            {
                "name": one.name,
                "request": one.request,
                **({"adminAccess": True} if one.admin else {}),
                **({"shareID": one.share_id} if one.share_id is not None else {}),
                **data[one.name, one.share_id or ""],
            }
            for one in plan.devices
        ],
        "steps": [{"step": one.text, "gpu": one.gpu_uuid, "done": one.done} for one in state.steps],
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
    """Everything, for people."""
    letters = {claim.record.plan.claim.uid: letter for claim, letter in zip(state.claims, _names(), strict=False)}
    running = ", ".join(path.name for path in state.running) or "no"
    console.print(f"plugin running: {running}")
    console.print(f"driver: {state.driver}")
    for hang in state.hangs:
        console.print(f"hangs: {hang}")
    console.print()
    console.print(_claims_table(state, letters) if state.claims else "no claims")
    if state.gpus:
        console.print()
        console.print(_gpu_table(state, letters))
    for name, problem in state.unreadable.items():
        console.print(f"record {name}: {problem}")


def _names() -> "list[str]":
    """What stands for a claim in the pictures: a letter, with a number when there are more claims than letters."""
    return [*_LETTERS, *(f"{letter}{number}" for number in range(2, 12) for letter in _LETTERS)]


def _claims_table(state: NodeState, letters: dict[str, str]) -> Table:
    table = Table("", "CLAIM", "STATE", "DEVICES", "STEPS", box=None, pad_edge=False)
    for claim in state.claims:
        plan = claim.record.plan
        told = claim.record.state.value if claim.this_boot else f"{claim.record.state.value}, before the last boot"
        devices = "\n".join(f"{one.name} ({one.request})" for one in plan.devices)
        steps = "\n".join(map(_step, claim.steps))
        table.add_row(letters[plan.claim.uid], f"{plan.claim}\n{plan.claim.uid}", told, devices, steps)
    return table


def _step(state: StepState) -> str:
    mark = _STEP_MARKS[state.done]
    return f"{state.text}: {mark}" if mark else state.text


def _gpu_table(state: NodeState, letters: dict[str, str]) -> Table:
    table = Table("GPU", "UUID", "MIG", "MEMORY SLICES", "CLAIMS", box=None, pad_edge=False)
    for gpu in state.gpus:
        mode = {True: "on", False: "off", None: ""}[gpu.mig_mode]
        table.add_row(f"gpu-{gpu.minor}", gpu.uuid, mode, picture(gpu, letters), _users(gpu, letters))
    return table


def picture(gpu: GpuState, letters: dict[str, str]) -> str:
    """A character for each memory slice: whose it is, `#` for a MIG instance without a claim, a dot for a free one."""
    if gpu.whole:
        return letters[gpu.whole[0]][0] * gpu.slices
    cells = [_FREE] * gpu.slices
    for place in gpu.others:
        cells[place.start : place.start + place.size] = _OTHER * place.size
    for uid, _, place in gpu.slots:
        cells[place.start : place.start + place.size] = letters[uid][0] * place.size
    return "".join(cells)


def _users(gpu: GpuState, letters: dict[str, str]) -> str:
    parts = [f"{letters[uid]}: whole" for uid in gpu.whole]
    parts += [f"{letters[uid]}: {profile} at {place}" for uid, profile, place in gpu.slots]
    parts += [f"{_OTHER}: no claim's, at {place}" for place in gpu.others]
    return ", ".join(parts)
