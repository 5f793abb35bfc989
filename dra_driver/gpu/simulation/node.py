# SPDX-License-Identifier: Apache-2.0
"""A simulated node, with methods to create, occupy, break and repair its GPUs.

GPUs are counted in the order of their PCI addresses, including unplugged ones and those of another kernel driver. While
all GPUs are bound to the NVIDIA driver, this number is their NVML index.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ..nvml import NO_INSTANCE, EventType, FabricState, NvmlError, RecoveryAction, RemappedRows, Return
from ..pci import NVIDIA_DRIVER
from .board import COMPUTE_PROFILES, Board
from .description import DescriptionError, GpuDescription, NodeDescription
from .fabric import SimulatedFabric
from .faults import Fault
from .files import DriverFiles, SysFiles
from .imex import SimulatedImex
from .mps import SimulatedMps
from .nvml import SimulatedNvml, gpu_uuid, mig_uuid
from .smi import SimulatedSmi
from .state import BoardState, GpuInstanceState, ProcessState
from .store import Store, SystemState


class SimulatedNode:
    """The node in the folder `root`: `state` is its hardware, `driver` its installed driver. `sys` is the folder of
    its files in /sys, if these are not below `driver`.
    """

    def __init__(self, root: Path, sys: Path | None = None) -> None:
        self.root = root
        self._store = Store(root / "state")
        self._files = DriverFiles(root / "driver")
        self._sysfs = SysFiles(sys or root / "driver/sys")
        self.nvidia_smi = SimulatedSmi(root / "state/nvidia-smi")
        self.mps = SimulatedMps(root / "state/mps")
        self.imex = SimulatedImex(root / "state/imex")
        self.fabric = SimulatedFabric(root)

    @classmethod
    def create(cls, root: Path, description: NodeDescription, identity: str) -> "SimulatedNode":
        """Create the node in `root`, or use the existing one if it has the same description.

        The UUIDs are derived from `identity` (a node name). Raises DescriptionError if `root` has another node.
        """
        node = cls(root)
        if description.fabric is not None:
            description = replace(description, fabric=description.fabric.of_node(identity))
        node._store.folder.mkdir(parents=True, exist_ok=True)
        with node._store.lock("create"):
            existing = node._store.read_description()
            if existing is None:
                node._build(description, identity)
            elif existing != description:
                raise DescriptionError(f"{root} holds another simulated node; remove the folder or choose another")
            else:
                node._check()
        return node

    def _check(self) -> None:
        """Refuse a node of another version of this driver."""
        try:
            self._store.read_system()
            for index in range(len(self._description().gpus)):
                self._store.read_board(index)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise DescriptionError(
                f"the simulated node in {self.root} cannot be read ({error!r}), as when another version of the driver"
                " made it; remove the folder or choose another"
            ) from None

    @property
    def driver_root(self) -> Path:
        """The folder that represents the root folder of the host for the driver."""
        return self._files.root

    def nvml(self) -> SimulatedNvml:
        """An NVML interface to this node, which is not initialized."""
        return SimulatedNvml(self.root)

    # Processes and faults

    def occupy(self, uuid: str, pid: int) -> None:
        """Let process `pid` use a GPU or MIG device until it ends, or until `vacate`."""
        index, instance, compute = self._find(uuid)
        with self._changing(index) as board:
            board.state.processes.append(ProcessState(pid, instance, compute))

    def vacate(self, pid: int) -> None:
        """Let process `pid` use no GPU any more."""
        for index in range(len(self._description().gpus)):
            with self._changing(index) as board:
                board.state.processes = [one for one in board.state.processes if one.pid != pid]

    def inject(self, fault: Fault) -> None:
        """Let a call fail or be slow from now on."""
        with self._changing_system() as system:
            system.faults.append(fault)

    def clear_faults(self) -> None:
        """Remove all faults."""
        with self._changing_system() as system:
            system.faults.clear()

    # The driver

    def unload_driver(self, code: Return = Return.DRIVER_NOT_LOADED) -> None:
        """Unload the driver: every call fails with `code`, no GPU is bound to it, and MIG instances, processes and
        limits of memory are gone.
        """
        with self._changing_system() as system:
            system.absent = code
        for index in range(len(self._description().gpus)):
            if self._store.read_board(index).slot.is_nvidias:
                self._rebind(index, None)
        self._sysfs.unload_module()

    def load_driver(self, version: str | None = None) -> None:
        """Load the driver again, or replace it by another `version`. All GPUs without a driver are bound to it.

        NVML must then be initialized again.
        """
        before = self._store.read_system()
        if before.absent is None:
            self.unload_driver()
        now = version or before.driver_version or self._description().driver_version
        self._files.install(now)
        self._sysfs.load_module(now)
        for index in range(len(self._description().gpus)):
            slot = self._store.read_board(index).slot
            if slot.plugged and slot.driver is None:
                self._rebind(index, NVIDIA_DRIVER)
        with self._changing_system() as system:
            system.absent = None
            system.driver_loads += 1
            system.driver_version = now

    def bind_driver(self, index: int, driver: str | None) -> None:
        """Bind a GPU to another kernel driver (`nvidia`, `vfio-pci`), or to none.

        Raises NvmlError with IN_USE, and changes nothing, while processes use the GPU, because the kernel would wait
        for them.
        """
        state = self._store.read_board(index)
        if not state.slot.plugged:
            raise LookupError(f"GPU {index} is not plugged in")
        if state.processes:
            raise NvmlError(Return.IN_USE, "unbind", f"processes use GPU {index}")
        self._rebind(index, driver)

    def unplug(self, index: int) -> None:
        """Unplug a GPU, also if it is in use."""
        self._rebind(index, None)
        with self._changing(index) as board:
            board.state.slot.plugged = False
        self._sysfs.unplug(self._gpu(index))

    def plug(self, index: int) -> None:
        """Plug a GPU in again. It is bound to the NVIDIA driver if that is loaded."""
        with self._changing(index) as board:
            board.state.slot.plugged = True
        self._sysfs.plug(index, self._gpu(index))
        if self._store.read_system().absent is None:
            self._rebind(index, NVIDIA_DRIVER)

    # Health

    def set_nvlinks(self, index: int, up: bool) -> None:
        """Set all NVLinks of a GPU up or down."""
        with self._changing(index) as board:
            board.state.health.nvlinks_up = up

    def set_fabric(
        self, index: int, state: FabricState | None = None, *, health_mask: int = 0, status: Return | None = None
    ) -> None:
        """Set the state of a GPU's registration with the NVLink fabric. If `state` is None, it is as in the
        description.
        """
        with self._changing(index) as board:
            health = board.state.health
            health.fabric_state = None if state is None else int(state)
            health.fabric_health, health.fabric_status = health_mask, int(status or 0)

    def set_clique(self, cluster_uuid: str, clique: int) -> None:
        """Move all GPUs to another clique, as an administrator of the NVLink switches can. A cluster UUID of zeros is
        that of a fabric that does not leave the node.
        """
        for index in range(len(self._description().gpus)):
            with self._changing(index) as board:
                board.state.health.clique = (cluster_uuid, clique)

    def set_remapped_rows(self, index: int, rows: RemappedRows) -> None:
        """Set which rows of a GPU's memory were replaced, wait for the next reset, or could not be replaced."""
        with self._changing(index) as board:
            health = board.state.health
            health.correctable_rows, health.uncorrectable_rows = rows.correctable, rows.uncorrectable
            health.rows_pending, health.rows_failed = rows.pending, rows.failed

    def set_retired_pages_pending(self, index: int, pending: bool) -> None:
        """Set whether pages of a GPU's memory wait for a reset to be retired. GPUs since Ampere remap rows instead."""
        with self._changing(index) as board:
            board.state.health.pages_pending = pending

    def set_recovery_action(self, index: int, action: RecoveryAction) -> None:
        """Set the recovery action that the driver requests."""
        with self._changing(index) as board:
            board.state.health.recovery_action = int(action)

    def reset_gpu(self, index: int) -> None:
        """Reset a GPU: its instances are removed, a pending MIG mode becomes the current one, and pending repairs are
        made.

        Raises NvmlError with IN_USE, and changes nothing, while processes use the GPU.
        """
        with self._changing(index) as board:
            instances = list(board.state.gpu_instances)
            board.reset()
            self._remove_files(index, instances)

    def lose_gpu(self, index: int) -> None:
        """Let a GPU fall off the bus. `reset_gpu` brings it back."""
        with self._changing(index) as board:
            board.state.lost = True

    def raise_event(self, uuid: str, kind: EventType, data: int) -> None:
        """Report an event of a GPU or MIG device to every event set. For an XID, `data` is its number."""
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

    # Creating the node

    def _build(self, description: NodeDescription, identity: str) -> None:
        self._store.make_events()
        self._store.write_system(SystemState(identity=identity, faults=list(description.faults)))
        self._files.create(description, identity)
        self.nvidia_smi.create({gpu_uuid(identity, at): gpu for at, gpu in enumerate(description.gpus)})
        self.mps.create()
        if description.partitions:
            self.fabric.create(description.partitions)
        self._sysfs.load_module(description.driver_version)
        for index, gpu in enumerate(description.gpus):
            self._sysfs.plug(index, gpu)
            self._sysfs.bind(gpu, NVIDIA_DRIVER)
            self._store.write_board(index, self._initial_board(gpu))
        self._store.write_description(description)

    def _initial_board(self, gpu: GpuDescription) -> BoardState:
        board = Board(gpu.board, BoardState(mig_current=gpu.mig, mig_pending=gpu.mig))
        for wanted in gpu.instances:
            profile, placement = wanted.on(gpu.board)
            instance = board.create_gpu_instance(profile.info.id, placement)
            self._files.add_gpu_instance(gpu.minor, instance.id)
            compute = board.create_compute_instance(instance.id, COMPUTE_PROFILES[profile.info.slice_count])
            self._files.add_compute_instance(gpu.minor, instance.id, compute.id)
        return board.state

    # Changing the node

    def _description(self) -> NodeDescription:
        description = self._store.read_description()
        if description is None:
            raise DescriptionError(f"no simulated node in {self.root}")
        return description

    def _gpu(self, index: int) -> GpuDescription:
        return self._description().gpus[index]

    @contextlib.contextmanager
    def _changing(self, index: int) -> Iterator[Board]:
        """A board, for changing. After an error nothing has changed."""
        model = self._gpu(index).board
        with self._store.lock(f"gpu-{index}"):
            board = Board(model, self._store.read_board(index))
            yield board
            self._store.write_board(index, board.state)

    @contextlib.contextmanager
    def _changing_system(self) -> Iterator[SystemState]:
        with self._store.lock("system"):
            system = self._store.read_system()
            yield system
            self._store.write_system(system)

    def _rebind(self, index: int, driver: str | None) -> None:
        with self._changing(index) as board:
            self._remove_files(index, board.state.gpu_instances)
            board.state.gpu_instances.clear()
            board.state.processes.clear()
            board.state.memory_limits.clear()
            if driver == NVIDIA_DRIVER:
                board.probe()
                self.nvidia_smi.reset(gpu_uuid(self._store.read_system().identity, index))
            else:
                board.state.slot.driver = driver
        self._sysfs.bind(self._gpu(index), driver)

    def _remove_files(self, index: int, instances: Iterable[GpuInstanceState]) -> None:
        minor = self._gpu(index).minor
        for instance in instances:
            for compute in instance.compute_instances:
                self._files.remove_compute_instance(minor, instance.id, compute.id)
            self._files.remove_gpu_instance(minor, instance.id)

    def _find(self, uuid: str) -> tuple[int, int, int]:
        """(GPU index, GPU instance, compute instance) of a UUID. The instances are -1 for a whole GPU."""
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
