# SPDX-License-Identifier: Apache-2.0
"""Fabric Manager of a simulated node with NVSwitches.

It is as strict as the real one about partitions that overlap, unknown partitions and modes. After a restart in its
resiliency mode (FABRIC_MODE_RESTART=1), it answers NOT_CONFIGURED until it was told which partitions are active. After
any other start, no partition is active, and it does not want to be told. An injected fault (`faults`) happens before
the effect of a call.
"""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...process.files import write_file
from ..fabric import FabricCode, FabricError, FabricManager, Partition, SwitchFacts
from .access import Access
from .store import StateFolder

_SOCKET = "driver/run/nvidia-fabricmanager/socket"
_STATE = "fabric.json"


@dataclass
class ManagerState:
    """The state. `mode` is FABRIC_MODE. `resilient` tells that it was restarted in this mode, and `told` is false from
    then on until it is told the active partitions.
    """

    partitions: dict[int, list[int]] = field(default_factory=dict)
    mode: int = 1
    running: bool = True
    starting: bool = False
    resilient: bool = False
    told: bool = True
    active: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


class SimulatedFabric(FabricManager):
    """Fabric Manager of the simulated node in `root`. `partitions` of the node's description have the IDs from 1 on."""

    def __init__(self, root: Path) -> None:
        self._store = StateFolder(root / "state")
        self._access = Access(self._store)
        self._socket = root / _SOCKET

    def create(self, partitions: Collection[Collection[int]]) -> None:
        """Start it for the first time."""
        numbered = {number: list(modules) for number, modules in enumerate(partitions, start=1)}
        self._write(ManagerState(numbered))
        self._listen()

    @property
    def state(self) -> ManagerState:
        """The current state."""
        value = json.loads((self._store.folder / _STATE).read_bytes())
        return ManagerState(
            **{**value, "partitions": {int(key): modules for key, modules in value["partitions"].items()}}
        )

    @property
    def facts(self) -> SwitchFacts:
        """The partitions, for a description of the node's devices."""
        return SwitchFacts(self._partitions(self.state), True) if self.exists else SwitchFacts()

    @property
    def exists(self) -> bool:
        """Whether the node has NVSwitches."""
        return (self._store.folder / _STATE).exists()

    def links(self, module: int) -> bool:
        """Whether the GPU with this module ID is in an active partition, or the node has no partitions."""
        if not self.exists:
            return True
        state = self.state
        return state.mode == 0 or any(module in state.partitions[partition] for partition in state.active)

    @contextmanager
    def changing(self) -> Iterator[ManagerState]:
        """The state, for changing."""
        with self._store.lock("fabric"):
            state = self.state
            yield state
            self._write(state)

    # The interface

    @property
    def identity(self) -> str:
        try:
            found = self._socket.stat()
        except OSError:
            return ""
        return f"{found.st_ino}-{found.st_ctime_ns}"

    def has_switches(self) -> bool:
        return True

    def supported_partitions(self) -> tuple[Partition, ...]:
        with self._called("fmGetSupportedFabricPartitions") as state:
            return self._partitions(state)

    def activate(self, partition: int) -> None:
        call = "fmActivateFabricPartition"
        with self._called(call) as state:
            modules = _modules(state, partition, call)
            if any(not modules.isdisjoint(state.partitions[active]) for active in state.active):
                raise FabricError(FabricCode.IN_USE, call)
            if partition in state.broken:
                raise FabricError(FabricCode.NVLINK_ERROR, call)
            state.active.append(partition)

    def deactivate(self, partition: int) -> None:
        call = "fmDeactivateFabricPartition"
        with self._called(call) as state:
            _modules(state, partition, call)
            if partition not in state.active:
                raise FabricError(FabricCode.UNINITIALIZED, call)
            state.active.remove(partition)

    def set_activated(self, partitions: Collection[int]) -> None:
        call = "fmSetActivatedFabricPartitions"
        with self._called(call, told=False) as state:
            if not state.resilient:
                raise FabricError(FabricCode.NOT_SUPPORTED, call)
            modules = [module for partition in partitions for module in _modules(state, partition, call)]
            if len(modules) != len(set(modules)):
                raise FabricError(FabricCode.BADPARAM, call)
            state.told, state.active = True, list(partitions)

    def failed_gpus(self) -> frozenset[str]:
        call = "fmGetNvlinkFailedDevices"
        with self._called(call) as state:
            if state.resilient:
                raise FabricError(FabricCode.NOT_SUPPORTED, call)
            return frozenset(state.failed)

    def unsupported_partitions(self) -> tuple[Partition, ...]:
        with self._called("fmGetUnsupportedFabricPartitions") as state:
            broken = ((partition, state.partitions[partition]) for partition in state.broken)
            return tuple(Partition(partition, tuple(modules)) for partition, modules in broken)

    # Parts

    @contextmanager
    def _called(self, call: str, told: bool = True) -> Iterator[ManagerState]:
        """A call: raises the error that a connection or the state demands, and keeps what the call changes."""
        code = self._access.fault(call)
        if code is not None:
            raise FabricError(FabricCode[code.name], call)
        with self.changing() as state:
            if not state.running:
                raise FabricError(FabricCode.CONNECTION_NOT_VALID, "fmConnect")
            if state.mode == 0:
                raise FabricError(FabricCode.NOT_SUPPORTED, call)
            if state.starting or (told and not state.told):
                raise FabricError(FabricCode.NOT_CONFIGURED, call)
            yield state

    def _partitions(self, state: ManagerState) -> tuple[Partition, ...]:
        return tuple(
            Partition(number, tuple(sorted(modules)), number in state.active)
            for number, modules in state.partitions.items()
        )

    def _write(self, state: ManagerState) -> None:
        file = self._store.folder / _STATE
        write_file(file, json.dumps(asdict(state)).encode(), file.with_name(f"{_STATE}.new"))

    def _listen(self) -> None:
        """Replace the file of the socket."""
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._socket.with_name("socket.new")
        fresh.touch()
        fresh.replace(self._socket)


def _modules(state: ManagerState, partition: int, call: str) -> set[int]:
    if partition not in state.partitions:
        raise FabricError(FabricCode.BADPARAM, call)
    return set(state.partitions[partition])
