# SPDX-License-Identifier: Apache-2.0
"""A simulated node as its owner handles it: made, occupied, broken, reset."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

from ..nvml import NO_INSTANCE, EventType, Return
from .board import COMPUTE_PROFILES, Board, BoardState, GpuInstanceState, ProcessState
from .description import DescriptionError, GpuDescription, NodeDescription
from .faults import Fault
from .files import DriverFiles
from .gateway import SimulatedNvml, gpu_uuid, mig_uuid
from .store import Store, SystemState


class SimulatedNode:
    """The node kept in `root`: `state` there is its hardware, `driver` what its driver installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store = Store(root / "state")
        self._files = DriverFiles(root / "driver")

    @classmethod
    def create(cls, root: Path, description: NodeDescription, identity: str) -> "SimulatedNode":
        """Make the node in `root`, or take the one that is there if it has this description.

        `identity` (a node name) goes into the UUIDs. Raises DescriptionError when `root` holds another node.
        """
        node = cls(root)
        node._store.folder.mkdir(parents=True, exist_ok=True)
        with node._store.lock("create"):
            existing = node._store.read_description()
            if existing is None:
                node._build(description, identity)
            elif existing != description:
                raise DescriptionError(f"{root} holds another simulated node; remove the folder or choose another")
        return node

    @property
    def driver_root(self) -> Path:
        """The folder that stands for the host's root as far as the driver is concerned."""
        return self._files.root

    def nvml(self) -> SimulatedNvml:
        """A gateway to this node."""
        return SimulatedNvml(self.root)

    # Things that happen to hardware

    def occupy(self, uuid: str, pid: int) -> None:
        """Let process `pid` use a GPU or MIG device for as long as it lives, or until `vacate`."""
        index, instance, compute = self._find(uuid)
        self._change(index, lambda board: board.state.processes.append(ProcessState(pid, instance, compute)))

    def vacate(self, pid: int) -> None:
        """Process `pid` uses no GPU any more."""

        def leave(board: Board) -> None:
            board.state.processes = [one for one in board.state.processes if one.pid != pid]

        for index in range(len(self._description().gpus)):
            self._change(index, leave)

    def inject(self, fault: Fault) -> None:
        """From now on, a call fails or is slow."""
        self._change_system(lambda system: system.faults.append(fault))

    def clear_faults(self) -> None:
        """No call fails or is slow any more."""
        self._change_system(lambda system: system.faults.clear())

    def unload_driver(self, code: Return = Return.DRIVER_NOT_LOADED) -> None:
        """Take the driver away: every call fails with `code`, and MIG instances are gone as after a reboot."""

        def unload(system: SystemState) -> None:
            system.absent = code

        self._change_system(unload)
        for index in range(len(self._description().gpus)):
            self._change(index, functools.partial(self._forget_instances, index))

    def load_driver(self) -> None:
        """Bring the driver back."""

        def load(system: SystemState) -> None:
            system.absent = None

        self._change_system(load)

    def reset_gpu(self, index: int) -> None:
        """Reset a GPU: its instances go, and a pending MIG mode becomes the current one.

        Raises NvmlError with IN_USE, and changes nothing, while processes use it.
        """

        def reset(board: Board) -> None:
            instances = list(board.state.gpu_instances)
            board.reset()
            self._remove_files(index, instances)

        self._change(index, reset)

    def lose_gpu(self, index: int) -> None:
        """A GPU falls off the bus; `reset_gpu` brings it back."""

        def lose(board: Board) -> None:
            board.state.lost = True

        self._change(index, lose)

    def raise_event(self, uuid: str, kind: EventType, data: int) -> None:
        """Report an event of a GPU or MIG device to every waiting event set; for XIDs, `data` is the XID."""
        index, instance, compute = self._find(uuid)
        self._store.append_event(
            {
                "gpu": index,
                "type": int(kind),
                "data": data,
                "gpuInstance": NO_INSTANCE if instance < 0 else instance,
                "computeInstance": NO_INSTANCE if compute < 0 else compute,
            }
        )

    # Making it

    def _build(self, description: NodeDescription, identity: str) -> None:
        self._store.events.touch()
        self._store.write_system(SystemState(identity=identity, faults=list(description.faults)))
        self._files.create(description)
        for index, gpu in enumerate(description.gpus):
            self._store.write_board(index, self._initial_board(index, gpu))
        self._store.write_description(description)

    def _initial_board(self, index: int, gpu: GpuDescription) -> BoardState:
        board = Board(gpu.board, BoardState(mig_current=gpu.mig, mig_pending=gpu.mig))
        for wanted in gpu.instances:
            profile, placement = wanted.on(gpu.board)
            instance = board.create_gpu_instance(profile.info.id, placement)
            self._files.add_gpu_instance(index, instance.id)
            compute = board.create_compute_instance(instance.id, COMPUTE_PROFILES[profile.info.slice_count])
            self._files.add_compute_instance(index, instance.id, compute.id)
        return board.state

    # Changing it

    def _description(self) -> NodeDescription:
        description = self._store.read_description()
        if description is None:
            raise DescriptionError(f"no simulated node in {self.root}")
        return description

    def _change(self, index: int, change: Callable[[Board], None]) -> None:
        model = self._description().gpus[index].board
        with self._store.lock(f"gpu-{index}"):
            board = Board(model, self._store.read_board(index))
            change(board)
            self._store.write_board(index, board.state)

    def _change_system(self, change: Callable[[SystemState], None]) -> None:
        with self._store.lock("system"):
            system = self._store.read_system()
            change(system)
            self._store.write_system(system)

    def _forget_instances(self, index: int, board: Board) -> None:
        self._remove_files(index, board.state.gpu_instances)
        board.state.gpu_instances.clear()

    def _remove_files(self, index: int, instances: Iterable[GpuInstanceState]) -> None:
        for instance in instances:
            for compute in instance.compute_instances:
                self._files.remove_compute_instance(index, instance.id, compute.id)
            self._files.remove_gpu_instance(index, instance.id)

    def _find(self, uuid: str) -> tuple[int, int, int]:
        """(GPU index, GPU instance, compute instance) of a UUID; -1 for the instances of a whole GPU."""
        identity = self._store.read_system().identity
        for index in range(len(self._description().gpus)):
            gpu = gpu_uuid(identity, index)
            if gpu == uuid:
                return index, -1, -1
            for instance in self._store.read_board(index).gpu_instances:
                for compute in instance.compute_instances:
                    if mig_uuid(gpu, instance.id, compute.id) == uuid:
                        return index, instance.id, compute.id
        raise LookupError(f"no device {uuid} on the simulated node in {self.root}")
