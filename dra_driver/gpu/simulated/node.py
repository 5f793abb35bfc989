# SPDX-License-Identifier: Apache-2.0
"""A simulated node: creates its hardware in a folder, or opens what is there."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

from ...errors import DescriptionError
from ..pci import NVIDIA_DRIVER
from .description import GpuDescription, NodeDescription, first_state
from .fabric import SimulatedFabric
from .faults import Fault
from .files import DriverFiles, SysFiles
from .nvml import SimulatedNvml, gpu_uuid
from .smi import create_smi
from .state import BoardState
from .store import StateFolder, SystemState


class SimulatedNode:
    """The node in the folder `root`: `state` is its hardware, `driver` its installed driver."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store = StateFolder(root / "state")
        self._files = DriverFiles(root / "driver")
        self.fabric = SimulatedFabric(root)

    @classmethod
    def create(cls, root: Path, description: NodeDescription, identity: str) -> Self:
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
                node._check(len(existing.gpus))
        return node

    def _check(self, gpus: int) -> None:
        """Refuse a node of another version of this driver."""
        try:
            self._store.read_system()
            for index in range(gpus):
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

    def inject(self, *faults: Fault) -> None:
        """Let calls fail or be slow from now on."""
        with self._changing_system() as system:
            system.faults.extend(faults)

    def faults(self) -> tuple[Fault, ...]:
        """The faults. A fault of a limited number of calls is removed by the last of these calls."""
        return tuple(self._store.read_system().faults)

    def clear_faults(self) -> None:
        """Remove all faults."""
        with self._changing_system() as system:
            system.faults.clear()

    @contextlib.contextmanager
    def _changing_system(self) -> Iterator[SystemState]:
        with self._store.lock("system"):
            system = self._store.read_system()
            yield system
            self._store.write_system(system)

    def _build(self, description: NodeDescription, identity: str) -> None:
        self._store.create()
        self._store.write_system(SystemState(identity=identity, faults=list(description.faults)))
        self._files.create(description, identity)
        create_smi(
            self._store.folder / "nvidia-smi", {gpu_uuid(identity, at): gpu for at, gpu in enumerate(description.gpus)}
        )
        if description.partitions:
            self.fabric.create(description.partitions)
        sysfs = SysFiles(self.driver_root / "sys")
        sysfs.load_module(description.driver_version)
        for index, gpu in enumerate(description.gpus):
            sysfs.plug(index, gpu)
            sysfs.bind(gpu, NVIDIA_DRIVER)
            self._store.write_board(index, self._first_state(gpu))
        self._store.write_description(description)

    def _first_state(self, gpu: GpuDescription) -> BoardState:
        """The state of a GPU, with the files of the instances that exist from the start."""
        state = first_state(gpu)
        for instance in state.gpu_instances:
            self._files.add_instance(gpu.minor, instance.id)
            for compute in instance.compute_instances:
                self._files.add_instance(gpu.minor, instance.id, compute.id)
        return state
