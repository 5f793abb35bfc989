# SPDX-License-Identifier: Apache-2.0
"""What a simulated board accepts and refuses, as hardware would."""

import copy
import json
import os

import pytest

from dra_driver.gpu.nvml import Placement, Return
from dra_driver.gpu.simulated.board import COMPUTE_PROFILES, Board, ProfileModel, boards
from dra_driver.gpu.simulated.state import BoardState, GpuInstanceState, ProcessState, fields_of
from tests.gpu.calls import refusal
from tests.support.hardware import reset_board

MODELS = list(boards())


def board(model: str = "H100-SXM5-80GB", *, mig: bool = True) -> Board:
    """A board without instances."""
    return Board(boards()[model], BoardState(mig_current=mig, mig_pending=mig))


def profile(on: Board, name: str) -> ProfileModel:
    """The profile called `name`."""
    found = on.model.profile_by_name(name)
    assert found is not None
    return found


def create(on: Board, name: str, start: int) -> GpuInstanceState:
    """Make a GPU instance of the profile at this memory slice."""
    wanted = profile(on, name)
    return on.create_gpu_instance(wanted.info.id, Placement(start, wanted.placements[0].size))


EVERY_PLACEMENT = [
    (model.model, one.info.id, placement)
    for model in boards().values()
    for one in model.profiles
    for placement in one.placements
]


# GPU instances


@pytest.mark.parametrize(("model", "profile_id", "placement"), EVERY_PLACEMENT)
def test_an_empty_board_takes_every_profile_at_each_of_its_placements(
    model: str, profile_id: int, placement: Placement
) -> None:
    made = board(model).create_gpu_instance(profile_id, placement)
    assert (made.profile_id, made.start, made.size) == (profile_id, placement.start, placement.size)


@pytest.mark.parametrize("model", MODELS)
def test_no_profile_can_be_elsewhere(model: str) -> None:
    on = board(model)
    for one in on.model.profiles:
        for start in range(-1, 9):
            for size in range(10):
                placement = Placement(start, size)
                if placement not in one.placements:
                    assert refusal(on.create_gpu_instance, one.info.id, placement) is Return.INVALID_ARGUMENT
    assert on.state == BoardState(mig_current=True, mig_pending=True)


REFUSED = {
    "the same place again": ([("3g.40gb", 0)], ("3g.40gb", 0)),
    "a part of a taken place": ([("3g.40gb", 0)], ("1g.10gb", 3)),
    "around a taken place": ([("1g.10gb", 3)], ("3g.40gb", 0)),
    "the whole board beside one instance": ([("1g.10gb", 0)], ("7g.80gb", 0)),
    "anything beside the whole board": ([("7g.80gb", 0)], ("1g.20gb", 6)),
    "a second instance with all media engines": ([("1g.10gb+me", 0)], ("1g.10gb+me", 1)),
    "a second 4g": ([("4g.40gb", 0)], ("4g.40gb", 0)),
}


@pytest.mark.parametrize(("existing", "wanted"), REFUSED.values(), ids=list(REFUSED))
def test_a_board_has_no_room_for(existing: list[tuple[str, int]], wanted: tuple[str, int]) -> None:
    on = board()
    for one in existing:
        create(on, *one)
    before = copy.deepcopy(on.state)
    assert refusal(create, on, *wanted) is Return.INSUFFICIENT_RESOURCES
    assert on.state == before


def test_engines_run_out_before_memory_slices_do() -> None:
    """The A30's only OFA engine and JPEG engine are in either +me profile."""
    on = board("A30-PCIE-24GB")
    create(on, "1g.6gb+me", 0)
    assert refusal(create, on, "2g.12gb+me", 2) is Return.INSUFFICIENT_RESOURCES
    create(on, "2g.12gb", 2)


LAYOUTS = [
    ("H100-SXM5-80GB", [("1g.10gb", start) for start in range(7)], list(range(7, 14))),
    ("H100-SXM5-80GB", [("1g.10gb+me", 6), ("1g.10gb", 0)], [7, 8]),
    ("H100-SXM5-80GB", [("1g.20gb", start) for start in (0, 2, 4, 6)], [7, 8, 9, 10]),
    ("H100-SXM5-80GB", [("2g.20gb", start) for start in (0, 2, 4)], [3, 4, 5]),
    ("H100-SXM5-80GB", [("3g.40gb", 4), ("3g.40gb", 0)], [1, 2]),
    ("H100-SXM5-80GB", [("4g.40gb", 0), ("3g.40gb", 4)], [1, 2]),
    ("H100-SXM5-80GB", [("7g.80gb", 0)], [0]),
    ("H100-SXM5-80GB", [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 4)], [7, 8, 3, 1]),
    ("A30-PCIE-24GB", [("1g.6gb", start) for start in range(4)], [3, 4, 5, 6]),
    ("A30-PCIE-24GB", [("2g.12gb", 0), ("2g.12gb", 2)], [1, 2]),
    ("A30-PCIE-24GB", [("4g.24gb", 0)], [0]),
]


@pytest.mark.parametrize(("model", "instances", "ids"), LAYOUTS)
def test_instance_ids_tell_the_level_of_the_partition(
    model: str, instances: list[tuple[str, int]], ids: list[int]
) -> None:
    on = board(model)
    assert [create(on, *one).id for one in instances] == ids


def test_the_lowest_free_id_is_used_again() -> None:
    on = board()
    first, second = create(on, "1g.10gb", 0), create(on, "1g.10gb", 1)
    on.destroy_gpu_instance(first.id)
    assert create(on, "1g.10gb", 5).id == first.id
    assert on.gpu_instance(second.id, "").start == 1


def test_unknown_profiles_and_instances_are_told_apart() -> None:
    on = board()
    assert refusal(on.create_gpu_instance, 77, Placement(0, 1)) is Return.INVALID_ARGUMENT
    assert refusal(on.destroy_gpu_instance, 7) is Return.NOT_FOUND


def test_destroying_takes_what_is_inside_first() -> None:
    on = board()
    instance = create(on, "2g.20gb", 0)
    compute = on.create_compute_instance(instance.id, COMPUTE_PROFILES[2])
    assert refusal(on.destroy_gpu_instance, instance.id) is Return.IN_USE
    on.destroy_compute_instance(instance.id, compute.id)
    on.destroy_gpu_instance(instance.id)
    assert refusal(on.destroy_gpu_instance, instance.id) is Return.NOT_FOUND
    assert on.state.gpu_instances == []


# Compute instances


def test_compute_instances_share_the_slices_of_their_gpu_instance() -> None:
    on = board()
    instance = create(on, "3g.40gb", 0)
    ids = [on.create_compute_instance(instance.id, COMPUTE_PROFILES[slices]).id for slices in (1, 2)]
    assert ids == [0, 1]
    assert refusal(on.create_compute_instance, instance.id, COMPUTE_PROFILES[1]) is Return.INSUFFICIENT_RESOURCES
    on.destroy_compute_instance(instance.id, 0)
    assert on.create_compute_instance(instance.id, COMPUTE_PROFILES[1]).id == 0


@pytest.mark.parametrize(
    ("slices", "name"), [(1, "1g.10gb"), (2, "2g.20gb"), (3, "3g.40gb"), (4, "4g.40gb"), (7, "7g.80gb")]
)
def test_single_compute_instance_may_fill_a_gpu_instance(slices: int, name: str) -> None:
    on = board()
    instance = create(on, name, 0)
    assert on.create_compute_instance(instance.id, COMPUTE_PROFILES[slices]).id == 0
    assert refusal(on.create_compute_instance, instance.id, COMPUTE_PROFILES[1]) is Return.INSUFFICIENT_RESOURCES


def test_a_compute_instance_cannot_be_larger_than_its_gpu_instance() -> None:
    on = board()
    instance = create(on, "1g.20gb", 0)
    assert refusal(on.create_compute_instance, instance.id, COMPUTE_PROFILES[2]) is Return.INSUFFICIENT_RESOURCES


def test_compute_instances_that_cannot_be_are_told_apart() -> None:
    on = board()
    instance = create(on, "1g.10gb", 0)
    assert refusal(on.create_compute_instance, instance.id, 99) is Return.INVALID_ARGUMENT
    assert refusal(on.create_compute_instance, 8, 0) is Return.NOT_FOUND
    assert refusal(on.destroy_compute_instance, instance.id, 0) is Return.NOT_FOUND


def test_a_busy_compute_instance_stays() -> None:
    on = board()
    instance = create(on, "2g.20gb", 0)
    busy, idle = (on.create_compute_instance(instance.id, COMPUTE_PROFILES[1]) for _ in range(2))
    on.state.processes.append(ProcessState(os.getpid(), instance.id, busy.id))
    on.destroy_compute_instance(instance.id, idle.id)
    assert refusal(on.destroy_compute_instance, instance.id, busy.id) is Return.IN_USE
    on.state.processes.clear()
    on.destroy_compute_instance(instance.id, busy.id)


# Modes


def test_without_mig_mode_there_are_no_instances() -> None:
    assert refusal(create, board(mig=False), "1g.10gb", 0) is Return.NOT_SUPPORTED


def test_mig_mode_changes_at_once_on_an_idle_gpu() -> None:
    on = board(mig=False)
    assert on.set_mig_mode(True) is None
    assert (on.mig_mode().current, on.mig_mode().pending) == (True, True)
    create(on, "1g.10gb", 0)


def test_mig_mode_stays_pending_while_a_process_runs() -> None:
    on = board(mig=False)
    on.state.processes.append(ProcessState(os.getpid()))
    assert on.set_mig_mode(True) is Return.IN_USE
    assert (on.mig_mode().current, on.mig_mode().pending) == (False, True)
    assert refusal(create, on, "1g.10gb", 0) is Return.NOT_SUPPORTED
    assert refusal(reset_board, on) is Return.IN_USE
    on.state.processes.clear()
    reset_board(on)
    assert (on.mig_mode().current, on.mig_mode().pending) == (True, True)


def test_mig_mode_cannot_be_left_while_instances_exist() -> None:
    on = board()
    instance = create(on, "1g.10gb", 0)
    assert refusal(on.set_mig_mode, False) is Return.IN_USE
    assert on.mig_mode().pending
    on.destroy_gpu_instance(instance.id)
    assert on.set_mig_mode(False) is None


def test_a_reset_clears_instances_and_keeps_the_mode() -> None:
    on = board()
    create(on, "7g.80gb", 0)
    on.state.lost = True
    reset_board(on)
    assert on.state == BoardState(mig_current=True, mig_pending=True)


def test_a_state_survives_being_stored() -> None:
    on = board()
    instance = create(on, "2g.20gb", 2)
    on.create_compute_instance(instance.id, 0)
    on.state.processes.append(ProcessState(1, instance.id, 0))
    on.state.lost = True
    assert BoardState.from_json(json.loads(json.dumps(on.state, default=fields_of))) == on.state
