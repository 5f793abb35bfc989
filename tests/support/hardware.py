# SPDX-License-Identifier: Apache-2.0
"""The simulated node with what happens to hardware: GPUs are occupied, break, are reset and unplugged, drivers are
loaded and unloaded, and the simulated programs fail.
"""

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import uuid4

from dra_driver.gpu.nvml import (
    NO_INSTANCE,
    ComputeMode,
    EventType,
    FabricState,
    NvmlError,
    RecoveryAction,
    RemappedRows,
    Return,
)
from dra_driver.gpu.pci import NVIDIA_DRIVER
from dra_driver.gpu.simulated import SimulatedNode
from dra_driver.gpu.simulated.board import Board
from dra_driver.gpu.simulated.description import GpuDescription, NodeDescription
from dra_driver.gpu.simulated.fabric import SimulatedFabric
from dra_driver.gpu.simulated.files import SysFiles
from dra_driver.gpu.simulated.nvml import gpu_uuid, mig_uuid
from dra_driver.gpu.simulated.smi import reset_smi
from dra_driver.gpu.simulated.state import GpuInstanceState, ProcessState

_CURED_BY_RESET = (RecoveryAction.GPU_RESET, RecoveryAction.DRAIN_P2P, RecoveryAction.DRAIN_AND_RESET)
_UNLOADED = "module/.unloaded"
"""The place of an unloaded module's folder until the module is loaded again. So the two folders never have the same
inode, as in sysfs.
"""
_UNBOUND = ".unbound"
"""The place beside /sys of links from a driver to GPUs that it was unbound from, for the same reason."""


def reset_board(board: Board) -> None:
    """Reset a GPU: instances are removed, a pending mode becomes the current one, and pending repairs are made.

    Remapped rows stay remapped, a failed remapping stays failed, and a requested reboot is still required. Raises
    NvmlError with IN_USE, and changes nothing, while processes use the GPU.
    """
    if board.state.processes:
        raise NvmlError(Return.IN_USE, "GPU reset", "processes run")
    board.state.gpu_instances.clear()
    board.state.mig_current = board.state.mig_pending
    board.state.lost = False
    health = board.state.health
    health.rows_pending = health.pages_pending = False
    health.nvlinks_up = True
    health.fabric_state, health.fabric_status, health.fabric_health = None, 0, 0
    if health.recovery_action in _CURED_BY_RESET:
        health.recovery_action = RecoveryAction.NONE


def _probe(board: Board) -> None:
    """The NVIDIA driver initializes the GPU, as after it was plugged in or bound. No earlier state is left."""
    reset_board(board)
    board.state.slot.driver = NVIDIA_DRIVER
    board.state.compute_mode = ComputeMode.DEFAULT
    board.state.slot.probes += 1


class _Sys(SysFiles):
    """The files of /sys when GPUs and drivers come and go."""

    def unplug(self, gpu: GpuDescription) -> None:
        """Remove a GPU from the bus."""
        address = gpu.pci_address
        self.rebind(gpu, None)
        members = (self._sys / "bus/pci/devices" / address / "iommu_group/devices").resolve()
        (members / address).unlink()
        if not any(members.iterdir()):
            shutil.rmtree(members.parent)
        (self._sys / "bus/pci/devices" / address).unlink()
        shutil.rmtree(self._sys / "devices" / gpu.pcie_root / address)

    def rebind(self, gpu: GpuDescription, driver: str | None) -> None:
        """Bind a GPU to this driver only."""
        device = self._sys / "devices" / gpu.pcie_root / gpu.pci_address
        unbound = self._sys.with_name(_UNBOUND)
        unbound.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (device / "driver" / gpu.pci_address).rename(unbound / str(uuid4()))
        (device / "driver").unlink(missing_ok=True)
        if driver is not None:
            self.bind(gpu, driver)

    def load_module(self, version: str) -> None:
        """Load the NVIDIA module."""
        super().load_module(version)
        shutil.rmtree(self._sys / _UNLOADED, ignore_errors=True)

    def unload_module(self) -> None:
        """Unload the NVIDIA module. No GPU may be bound to it."""
        shutil.rmtree(self._sys / "bus/pci/drivers/nvidia", ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self._sys / "module/nvidia").rename(self._sys / _UNLOADED)


class ControlledFabric(SimulatedFabric):
    """Fabric Manager, which can be stopped and started."""

    def stop(self) -> None:
        """It ends. Active partitions stay active."""
        with self.changing() as state:
            state.running = False
        self._socket.unlink(missing_ok=True)

    def start(self, *, resilient: bool = True, starting: bool = False) -> None:
        """It is started again. If it is not `resilient`, it deactivates all partitions."""
        with self.changing() as state:
            state.running, state.starting = True, starting
            state.resilient, state.told = resilient, not resilient
            state.active = state.active if resilient else []
        self._listen()


class SmiControl:
    """The state of the simulated nvidia-smi in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def persistence(self, uuid: str) -> bool:
        """The persistence mode of a GPU."""
        return (self._folder / "persistence" / uuid).read_text("ascii").strip() == "1"

    def set_persistence(self, uuid: str, on: bool) -> None:
        """Set the persistence mode of a GPU, as an administrator could."""
        (self._folder / "persistence" / uuid).write_text(f"{int(on)}\n", encoding="ascii")

    def level(self, uuid: str) -> int:
        """The time-slice level of a GPU."""
        return int((self._folder / "levels" / uuid).read_text("ascii"))

    def set_level(self, uuid: str, level: int) -> None:
        """Set the time-slice level of a GPU, as an administrator could."""
        (self._folder / "levels" / uuid).write_text(f"{level}\n", encoding="ascii")

    def calls(self) -> list[str]:
        """The arguments of all calls so far."""
        path = self._folder / "calls"
        return path.read_text("utf-8").splitlines() if path.exists() else []

    def fail(self, code: int, text: str) -> None:
        """Let calls print this text and exit with this code, until `mend`."""
        (self._folder / "fail").write_text(f"{code}\n{text}\n", encoding="utf-8")

    def hang(self) -> None:
        """Let calls, and a process that they start, hang until `mend`."""
        (self._folder / "hang").touch()

    def mend(self) -> None:
        """Let calls work again."""
        for name in ("fail", "hang"):
            (self._folder / name).unlink(missing_ok=True)


class ProgramFaults:
    """Faults of the simulated MPS or IMEX of a node: files in `folder`, which these programs describe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fail_start(self, text: str) -> None:
        """Let daemons print this text and end at their start, until `mend`."""
        self.write("start-fails", text)

    def mend(self) -> None:
        """Remove all faults."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, name: str, text: str = "") -> None:
        """Make the file of a fault."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / name).write_text(text, encoding="utf-8")


class MpsFaults(ProgramFaults):
    """Faults of the simulated MPS."""

    def fail(self, command: str, text: str) -> None:
        """Let this command print this text and fail, until `mend`."""
        self.write(f"fail-{command}", text)

    def hang(self, command: str) -> None:
        """Let this command hang, until `mend`."""
        self.write(f"hang-{command}")


class ImexFaults(ProgramFaults):
    """Faults of the simulated IMEX."""

    def stay(self, state: str) -> None:
        """Let the daemon stay in a state such as WAITING_FOR_RECOVERY, until `mend`."""
        self.write("state", state)

    def hang(self, what: str) -> None:
        """Let the daemon ignore SIGTERM (`end`), not answer the command service (`control`), or let the command for
        the nodes of the domain hang (`nodes`), until `mend`.
        """
        self.write(f"{what}-hangs")

    def partition(self, *peers: int) -> None:
        """Let no message pass to and from these node IDs, until `mend`."""
        self.write("partition", "\n".join(map(str, peers)))


class ControlledNode(SimulatedNode):
    """A simulated node under control of the test. `sys` is the folder of its files in /sys, if these are not below its
    driver.

    GPUs are counted in the order of their PCI addresses, including unplugged ones and those of another kernel driver.
    While all GPUs are bound to the NVIDIA driver, this number is their NVML index.
    """

    def __init__(self, root: Path, sys: Path | None = None) -> None:
        super().__init__(root)
        self._sysfs = _Sys(sys or root / "driver/sys")
        self.nvidia_smi = SmiControl(root / "state/nvidia-smi")
        self.mps = MpsFaults(root / "state/mps")
        self.imex = ImexFaults(root / "state/imex")
        self.fabric: ControlledFabric = ControlledFabric(root)

    # Processes

    def occupy(self, uuid: str, pid: int) -> None:
        """Let process `pid` use a GPU or MIG device until it ends, or until `vacate`."""
        index, instance, compute = self._find(uuid)
        with self._changing(index) as board:
            board.state.processes.append(ProcessState(pid, instance, compute))

    def vacate(self, pid: int) -> None:
        """Let process `pid` use no GPU any more."""
        for index in range(len(self._gpus)):
            with self._changing(index) as board:
                board.state.processes = [one for one in board.state.processes if one.pid != pid]

    # The driver

    def unload_driver(self, code: Return = Return.DRIVER_NOT_LOADED) -> None:
        """Unload the driver: every call fails with `code`, no GPU is bound to it, and MIG instances, processes and
        limits of memory are gone.
        """
        with self._changing_system() as system:
            system.absent = code
        for index in range(len(self._gpus)):
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
        now = version or before.driver_version or self._description.driver_version
        self._files.install(now)
        self._sysfs.load_module(now)
        for index in range(len(self._gpus)):
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
        self._sysfs.unplug(self._gpus[index])

    def plug(self, index: int) -> None:
        """Plug a GPU in again. It is bound to the NVIDIA driver if that is loaded."""
        with self._changing(index) as board:
            board.state.slot.plugged = True
        self._sysfs.plug(index, self._gpus[index])
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
        for index in range(len(self._gpus)):
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
            reset_board(board)
            self._remove_files(index, instances)

    def lose_gpu(self, index: int) -> None:
        """Let a GPU fall off the bus. `reset_gpu` brings it back."""
        with self._changing(index) as board:
            board.state.lost = True

    def raise_event(self, uuid: str, kind: EventType, data: int) -> None:
        """Report an event of a GPU or MIG device to every event set. For an XID, `data` is its number."""
        index, instance, compute = self._find(uuid)
        event = {
            "gpu": index,
            "type": int(kind),
            "data": data,
            "gpuInstance": NO_INSTANCE if instance < 0 else instance,
            "computeInstance": NO_INSTANCE if compute < 0 else compute,
        }
        with Path(self._store.events).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    # Changing the node

    @property
    def _description(self) -> NodeDescription:
        description = self._store.read_description()
        assert description is not None, f"no simulated node in {self.root}"
        return description

    @property
    def _gpus(self) -> tuple[GpuDescription, ...]:
        return self._description.gpus

    @contextlib.contextmanager
    def _changing(self, index: int) -> Iterator[Board]:
        """A board, for changing. After an error nothing has changed."""
        model = self._gpus[index].board
        with self._store.lock(f"gpu-{index}"):
            board = Board(model, self._store.read_board(index))
            yield board
            self._store.write_board(index, board.state)

    def _rebind(self, index: int, driver: str | None) -> None:
        with self._changing(index) as board:
            self._remove_files(index, board.state.gpu_instances)
            board.state.gpu_instances.clear()
            board.state.processes.clear()
            board.state.memory_limits.clear()
            if driver == NVIDIA_DRIVER:
                _probe(board)
                reset_smi(self._store.folder / "nvidia-smi", gpu_uuid(self._store.read_system().identity, index))
            else:
                board.state.slot.driver = driver
        self._sysfs.rebind(self._gpus[index], driver)

    def _remove_files(self, index: int, instances: Iterable[GpuInstanceState]) -> None:
        minor = self._gpus[index].minor
        for instance in instances:
            for compute in instance.compute_instances:
                self._files.remove_instance(minor, instance.id, compute.id)
            self._files.remove_instance(minor, instance.id)

    def _find(self, uuid: str) -> tuple[int, int, int]:
        """(GPU index, GPU instance, compute instance) of a UUID. The instances are -1 for a whole GPU."""
        identity = self._store.read_system().identity
        for index in range(len(self._gpus)):
            gpu = gpu_uuid(identity, index)
            if gpu == uuid:
                return index, -1, -1
            for instance in self._store.read_board(index).gpu_instances:
                for compute in instance.compute_instances:
                    if mig_uuid(gpu, instance.id, compute.id) == uuid:
                        return index, instance.id, compute.id
        raise LookupError(f"no device {uuid} on the simulated node in {self.root}")
