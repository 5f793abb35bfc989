# SPDX-License-Identifier: Apache-2.0
"""Whatever is asked of a board in whatever order, its instances never overlap and all of them can go again."""

import json
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.simulated.board import COMPUTE_PROFILES, Board, boards
from dra_driver.gpu.simulated.state import BoardState, GpuInstanceState, fields_of
from tests.support import examples

T = TypeVar("T")


class BoardUser(RuleBasedStateMachine):
    """Makes and destroys instances, and keeps its own books about them."""

    instances = Bundle("instances")
    computes = Bundle("computes")

    @initialize(model=st.sampled_from([name for name, model in boards().items() if model.profiles]))
    def choose(self, model: str) -> None:
        self.board = Board(boards()[model], BoardState(mig_current=True, mig_pending=True))
        self.alive: dict[int, list[int]] = {}

    @rule(target=instances, data=st.data())
    def create(self, data: st.DataObject) -> object:
        profile = data.draw(st.sampled_from(self.board.model.profiles))
        placement = data.draw(st.sampled_from(profile.placements))
        taken = {slot for one in self.board.state.gpu_instances for slot in _slots(one)}
        made, code = _attempt(lambda: self.board.create_gpu_instance(profile.info.id, placement))
        if made is None:
            assert code is Return.INSUFFICIENT_RESOURCES
            return multiple()
        assert not taken.intersection(_slots(made))
        assert (made.start, made.size) == (placement.start, placement.size)
        assert made.id not in self.alive
        self.alive[made.id] = []
        return made.id

    @rule(target=computes, instance=instances, slices=st.sampled_from(list(COMPUTE_PROFILES)))
    def fill(self, instance: int, slices: int) -> object:
        made, code = _attempt(lambda: self.board.create_compute_instance(instance, COMPUTE_PROFILES[slices]))
        if made is None:
            assert code is (Return.INSUFFICIENT_RESOURCES if instance in self.alive else Return.NOT_FOUND)
            return multiple()
        assert made.id not in self.alive[instance]
        self.alive[instance].append(made.id)
        return instance, made.id

    @rule(compute=consumes(computes))
    def destroy_compute(self, compute: tuple[int, int]) -> None:
        instance, number = compute
        there = number in self.alive.get(instance, ())
        _, code = _attempt(lambda: self.board.destroy_compute_instance(instance, number))
        assert code is (None if there else Return.NOT_FOUND)
        if there:
            self.alive[instance].remove(number)

    @rule(instance=instances)
    def destroy(self, instance: int) -> None:
        inside = self.alive.get(instance)
        _, code = _attempt(lambda: self.board.destroy_gpu_instance(instance))
        assert code is (Return.NOT_FOUND if inside is None else Return.IN_USE if inside else None)
        if code is None:
            del self.alive[instance]

    @invariant()
    def nothing_overlaps(self) -> None:
        state = self.board.state
        slots = Counter(slot for one in state.gpu_instances for slot in _slots(one))
        assert all(count == 1 for count in slots.values())
        assert all(slot < self.board.model.memory_slices for slot in slots)
        computes = {one.id: [compute.id for compute in one.compute_instances] for one in state.gpu_instances}
        assert computes == self.alive
        assert BoardState.from_json(json.loads(json.dumps(state, default=fields_of))) == state

    def teardown(self) -> None:
        if hasattr(self, "board"):
            for instance, computes in list(self.alive.items()):
                for compute in computes:
                    self.board.destroy_compute_instance(instance, compute)
                self.board.destroy_gpu_instance(instance)
            assert self.board.state == BoardState(mig_current=True, mig_pending=True)


def _attempt(call: Callable[[], T]) -> tuple[T | None, Return | None]:
    """What the call returns and the code that it fails with; one of them is None."""
    try:
        return call(), None
    except NvmlError as error:
        return None, error.code


def _slots(instance: GpuInstanceState) -> range:
    return range(instance.start, instance.start + instance.size)


TestBoardUser = BoardUser.TestCase
TestBoardUser.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
