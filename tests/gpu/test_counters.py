# SPDX-License-Identifier: Apache-2.0
"""The scheduler's sums and the board's rules agree: what is allocated can always be made, and what could be made
is never withheld.

A set of MIG devices may be allocated when their counters add up to no more than the GPU's counter set. The board
takes a set of GPU instances when memory slices, engines and numbers of instances suffice. Both depend on the set
alone, not on the order, so every set is looked at once, in the order of the devices' names.
"""

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dra_driver.gpu.devices import GpuDevices, describe
from dra_driver.gpu.devices.names import mig_name
from dra_driver.gpu.inventory import Gpu, read_inventory
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import NvmlError, Placement, Return
from dra_driver.gpu.simulated import SimulatedNode
from dra_driver.gpu.simulated.board import Board, BoardModel, ProfileModel, boards
from dra_driver.gpu.simulated.description import parse_description
from dra_driver.gpu.simulated.state import BoardState
from tests.support import examples
from tests.support.geometries import one_of_each_geometry
from tests.support.nodes import board_gpu, board_inventory, mig_instances

SPLITTABLE = [model for model in boards().values() if model.profiles]
IDS = [model.model for model in SPLITTABLE]
GEOMETRIES = one_of_each_geometry(SPLITTABLE)

Place = tuple[ProfileModel, Placement]


@dataclass(frozen=True)
class Candidate:
    """A MIG device: where it goes on the board, and what it draws, counter by counter."""

    name: str
    mig: MigDevice
    drawn: tuple[int, ...]


def published(root: Path, model: BoardModel) -> tuple[Gpu, GpuDevices]:
    """What a node with one such GPU in MIG mode has and publishes."""
    text = f'driverVersion: 570.158.01\ncudaVersion: "12.8"\ngpus: [{{model: {model.model}, mig: true}}]'
    node = SimulatedNode.create(root, parse_description(text, model.model), "node-a")
    nvml = node.nvml()
    nvml.initialize()
    inventory = read_inventory(nvml, node.driver_root / "sys")
    (devices,) = describe(inventory).gpus
    return inventory.gpus[0], devices


def candidates(gpu: Gpu, devices: GpuDevices) -> tuple[tuple[int, ...], list[Candidate]]:
    """(the counter set's totals, every device that draws on it), counters in one order."""
    totals = {} if devices.counter_set is None else devices.counter_set.counters
    names = sorted(totals)
    placements = {mig_name(one): one for one in gpu.mig_devices()}
    found = []
    for device in devices.devices:
        if "uuid" in device.attributes:  # an administrator created it
            continue
        (consumption,) = device.consumes_counters
        assert devices.counter_set is not None
        assert consumption.counter_set == devices.counter_set.name
        assert set(consumption.counters) <= set(names)
        drawn = tuple(consumption.counters[name].value if name in consumption.counters else 0 for name in names)
        found.append(Candidate(device.name, placements[device.name], drawn))
    return tuple(totals[name].value for name in names), found


def disagreements(board: Board, left: tuple[int, ...], rest: list[Candidate], chosen: tuple[str, ...]) -> Iterator[str]:
    """Sets that extend `chosen` and that the board and the counters see differently.

    A device that neither takes is not tried again in larger sets: a device more gives nothing back to them.
    """
    fitting: list[tuple[Candidate, tuple[int, ...]]] = []
    for candidate in rest:
        remaining = tuple(map(operator.sub, left, candidate.drawn))
        allowed = min(remaining) >= 0
        refusal = refused(board, candidate)
        if allowed != (refusal is None) or (refusal and refusal.code is not Return.INSUFFICIENT_RESOURCES):
            yield f"{(*chosen, candidate.name)}: {refusal or 'the counters do not allow it'}"
        elif allowed:
            fitting.append((candidate, remaining))
    for position, (candidate, remaining) in enumerate(fitting):
        made = board.create_gpu_instance(candidate.mig.profile_id, candidate.mig.placement)
        later = [other for other, _ in fitting[position + 1 :]]
        yield from disagreements(board, remaining, later, (*chosen, candidate.name))
        board.destroy_gpu_instance(made.id)


def refused(board: Board, candidate: Candidate) -> NvmlError | None:
    """The error of the board for one more device. None if it takes the device."""
    try:
        made = board.create_gpu_instance(candidate.mig.profile_id, candidate.mig.placement)
    except NvmlError as error:
        return error
    board.destroy_gpu_instance(made.id)
    return None


def split_board(model: BoardModel, instances: Sequence[Place] = ()) -> Board | None:
    """A board in MIG mode with these instances; None when it does not take them together."""
    board = Board(model, BoardState(mig_current=True, mig_pending=True))
    try:
        for profile, placement in instances:
            board.create_gpu_instance(profile.info.id, placement)
    except NvmlError:
        return None
    return board


def takes(board: Board, profile_id: int, placement: Placement) -> bool:
    """Whether the board could make one more instance."""
    try:
        made = board.create_gpu_instance(profile_id, placement)
    except NvmlError:
        return False
    board.destroy_gpu_instance(made.id)
    return True


@pytest.mark.parametrize("model", SPLITTABLE, ids=IDS)
def test_the_counters_allow_exactly_what_the_board_takes(tmp_path: Path, model: BoardModel) -> None:
    totals, devices = candidates(*published(tmp_path, model))
    assert len(devices) == sum(len(profile.placements) for profile in model.profiles)
    board = split_board(model)
    assert board is not None
    assert list(disagreements(board, totals, devices, ())) == []


@pytest.mark.parametrize("model", GEOMETRIES, ids=lambda model: model.model)
def test_beside_what_an_administrator_made_they_do_too(model: BoardModel) -> None:
    """One foreign instance, at every place, and then two: what is published can be made, what is not cannot.
    Without EVERY_EXAMPLE=1 it is every ninth pair of one model of each geometry.
    """
    places = [(profile, placement) for profile in model.profiles for placement in profile.placements]
    tried = 0
    pairs = list(itertools.combinations(places, 2))
    for foreign in (*((one,) for one in places), *pairs[:: (len(pairs) // examples(len(pairs))) ** 2]):
        board = split_board(model, foreign)
        if board is None:
            continue
        tried += 1
        gpu = replace(board_gpu(model, 0, mig=True), mig_instances=mig_instances(board_gpu(model, 0), foreign))
        (described,) = describe(replace(board_inventory(model, 1), gpus=(gpu,))).gpus
        totals, devices = candidates(gpu, described)
        assert len(described.devices) - len(devices) == len(foreign)
        offered = {(one.mig.profile_id, one.mig.placement) for one in devices}
        for profile, placement in places:
            assert takes(board, profile.info.id, placement) == ((profile.info.id, placement) in offered)
        assert list(disagreements(board, totals, devices, ())) == []
    assert tried > len(places)
