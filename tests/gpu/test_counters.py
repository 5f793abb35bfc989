# SPDX-License-Identifier: Apache-2.0
"""The scheduler's sums and the board's rules agree: what is allocated can always be made, and what could be made
is never withheld.

A set of MIG devices may be allocated when their counters add up to no more than the GPU's counter set. The board
takes a set of GPU instances when memory slices, engines and numbers of instances suffice. Both depend on the set
alone, not on the order, so every set is looked at once, in the order of the devices' names.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_driver.gpu.devices import GpuDevices, MigPlacement, describe, mig_placements
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.simulation import SimulatedNode
from dra_driver.gpu.simulation.board import Board, BoardState
from dra_driver.gpu.simulation.description import parse_description
from dra_driver.gpu.simulation.models import BoardModel, boards


@dataclass(frozen=True)
class Candidate:
    """A MIG device: where it goes on the board, and what it draws, counter by counter."""

    name: str
    mig: MigPlacement
    drawn: tuple[int, ...]


def published(root: Path, model: BoardModel) -> GpuDevices:
    """What a node with one such GPU in MIG mode publishes."""
    text = f'driverVersion: 570.158.01\ncudaVersion: "12.8"\ngpus: [{{model: {model.model}, mig: true}}]'
    node = SimulatedNode.create(root, parse_description(text, model.model), "node-a")
    nvml = node.nvml()
    nvml.initialize()
    (gpu,) = describe(read_inventory(nvml, node.driver_root / "sys"))
    return gpu


def candidates(gpu: GpuDevices) -> tuple[tuple[int, ...], list[Candidate]]:
    """(the counter set's totals, every MIG device), counters in one order."""
    assert gpu.counter_set is not None
    names = sorted(gpu.counter_set.counters)
    placements = dict(mig_placements(gpu.gpu))
    found = []
    for device in gpu.devices:
        (consumption,) = device.consumes_counters
        assert consumption.counter_set == gpu.counter_set.name
        assert set(consumption.counters) <= set(names)
        drawn = tuple(consumption.counters[name].value if name in consumption.counters else 0 for name in names)
        found.append(Candidate(device.name, placements[device.name], drawn))
    return tuple(gpu.counter_set.counters[name].value for name in names), found


def disagreements(board: Board, left: tuple[int, ...], rest: list[Candidate], chosen: tuple[str, ...]) -> Iterator[str]:
    """Sets that extend `chosen` and that the board and the counters see differently."""
    for position, candidate in enumerate(rest):
        remaining = tuple(have - want for have, want in zip(left, candidate.drawn, strict=True))
        allowed = min(remaining) >= 0
        names = (*chosen, candidate.name)
        try:
            made = board.create_gpu_instance(candidate.mig.profile.info.id, candidate.mig.placement)
        except NvmlError as error:
            if allowed or error.code is not Return.INSUFFICIENT_RESOURCES:
                yield f"{names}: {error}"
            continue
        if not allowed:
            yield f"{names}: the counters do not allow it"
        yield from disagreements(board, remaining, rest[position + 1 :], names)
        board.destroy_gpu_instance(made.id)


@pytest.mark.parametrize("model", boards().values(), ids=list(boards()))
def test_the_counters_allow_exactly_what_the_board_takes(tmp_path: Path, model: BoardModel) -> None:
    totals, devices = candidates(published(tmp_path, model))
    assert len(devices) == sum(len(profile.placements) for profile in model.profiles)
    board = Board(model, BoardState(mig_current=True, mig_pending=True))
    assert list(disagreements(board, totals, devices, ())) == []
